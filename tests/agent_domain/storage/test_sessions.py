"""A message's effects on its session, and the valid content of sessions."""

from typing import Any
from uuid import uuid4

import pytest

from everstep.agent_domain.errors import InvalidInput
from everstep.agent_domain.ids import Scope
from everstep.agent_domain.loop.status import StopReason, WireStatus
from everstep.agent_domain.storage.sessions import (
    MAX_TITLE,
    NewSession,
    OnBusy,
    Route,
    SessionBusy,
    SessionChanges,
    choose_route,
    merge_metadata,
)
from everstep.agent_domain.stream.session_messages import Context, ended_announcement, limited_text
from everstep.agent_domain.values import frozen_map


@pytest.mark.parametrize(
    ("busy", "asked", "on_busy", "taken"),
    [
        *((False, False, on_busy, Route.START) for on_busy in OnBusy),
        (True, False, OnBusy.ENQUEUE, Route.QUEUE),
        (True, False, OnBusy.STEER, Route.STEER),
        (True, False, OnBusy.INTERRUPT, Route.INTERRUPT),
        (True, True, OnBusy.ENQUEUE, Route.ANSWER),
        (True, True, OnBusy.STEER, Route.ANSWER),
        (True, True, OnBusy.REJECT, Route.ANSWER),
        (True, True, OnBusy.INTERRUPT, Route.INTERRUPT),
    ],
)
def test_the_effects_of_a_message(busy: bool, asked: bool, on_busy: OnBusy, taken: Route) -> None:
    """8.2.4, 8.3.1, 8.5.3"""
    assert choose_route(is_busy=busy, has_question=asked, on_busy=on_busy) is taken


def test_a_message_that_may_not_wait_is_refused() -> None:
    """8.3.1"""
    with pytest.raises(SessionBusy, match=r"^Session is busy$"):
        choose_route(is_busy=True, has_question=False, on_busy=OnBusy.REJECT)


def test_a_scope_covers_a_tenant_or_a_user() -> None:
    assert Scope("acme").covers("ann")
    assert Scope("acme", "ann").covers("ann")
    assert not Scope("acme", "ann").covers("bob")
    assert not Scope("acme", "ann").covers(None)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"related_id": "1"}, "related_id needs a related_type; send both, or neither"),
        ({"related_type": "x" * 2001}, "related_type has 2001 characters; send at most 2000"),
        ({"url": "\0"}, "url"),
    ],
)
def test_a_context_is_bounded(fields: dict[str, Any], message: str) -> None:
    """8.2.2"""
    with pytest.raises(InvalidInput, match=message):
        Context(**fields)


def test_a_numeric_id_is_kept_as_text() -> None:
    """8.2.6"""
    assert Context("order", 42).related_id == "42"  # type: ignore[arg-type] -- what users write
    with pytest.raises(InvalidInput, match="related_id"):
        Context("order", related_id=True)  # type: ignore[arg-type] -- what users write


def test_titles_are_bounded() -> None:
    long = "x" * (MAX_TITLE + 1)
    for made in (lambda: NewSession(uuid4(), "t", "u", title=long), lambda: SessionChanges(title=long)):
        with pytest.raises(InvalidInput, match="title has 201 characters; send at most 200"):
            made()
    assert limited_text("title", "x", 1) == "x"


def test_a_null_removes_a_key() -> None:
    kept = merge_metadata(frozen_map({"a": 1, "b": 2}), {"a": None, "c": None, "b": 3})

    assert kept == {"b": 3}


@pytest.mark.parametrize(
    ("status", "reason", "response", "error", "published"),
    [
        (WireStatus.COMPLETED, StopReason.COMPLETED, "Hi", None, ("execution.completed", "assistant", "Hi")),
        (
            WireStatus.STOPPED,
            StopReason.STEPS_LIMIT,
            None,
            None,
            ("execution.completed", "notification", "Ended without an answer: steps_limit"),
        ),
        (WireStatus.FAILED, StopReason.ERROR, None, "Ouch", ("execution.failed", "notification", "Ouch")),
        (
            WireStatus.FAILED,
            StopReason.ERROR,
            "Hi",
            None,
            ("execution.failed", "notification", "stopped: error"),
        ),
        (
            WireStatus.CANCELLED,
            StopReason.USER_REQUESTED,
            "Hi",
            None,
            ("execution.cancelled", "info", "Execution cancelled"),
        ),
    ],
)
def test_an_end_is_published(
    *,
    status: WireStatus,
    reason: StopReason,
    response: str | None,
    error: str | None,
    published: tuple[str, str, str],
) -> None:
    """7.7.1"""
    message = ended_announcement(status, reason, response, error)

    assert (message.event_type, message.role, message.content) == published
