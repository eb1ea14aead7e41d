"""A stop signal as a value."""

from typing import Any

import pytest

from everstep.agent_domain.errors import InvalidInput
from everstep.agent_domain.loop.status import StopReason
from everstep.agent_domain.loop.stop_signal import StopSignal
from everstep.agent_domain.values import FrozenDict


def test_a_signal_needs_only_a_reason() -> None:
    """2.4.1: StopSignal(reason, message="", context={}, source="")."""
    signal = StopSignal(StopReason.GUARD)

    assert (signal.reason, signal.message, signal.context, signal.source) == ("guard", "", {}, "")
    assert signal == StopSignal(StopReason.GUARD, "", FrozenDict(), "")


def test_a_reason_may_be_given_as_text() -> None:
    """2.4.1, 2.3.1: as one of the nine values."""
    words: Any = "user_requested", "frobnicated"

    assert StopSignal(words[0]).reason is StopReason.USER_REQUESTED
    with pytest.raises(InvalidInput, match="'frobnicated' is not a stop reason; use one of: completed, "):
        StopSignal(words[1])


def test_the_context_of_a_signal_cannot_be_changed() -> None:
    """0.8: domain values are immutable."""
    given: Any = {"budget": {"left": 0}}
    signal = StopSignal(StopReason.GUARD, context=given)
    given["budget"]["left"] = 5

    assert signal.context == {"budget": {"left": 0}}
    with pytest.raises(TypeError, match="frozen"):
        signal.context["budget"] = 1


def test_a_context_that_is_not_json_is_refused() -> None:
    """0.8: it must be possible to write it later."""
    given: Any = {"at": object()}

    with pytest.raises(InvalidInput, match=r"the context of a stop signal\.at is of type object"):
        StopSignal(StopReason.GUARD, context=given)


def test_the_written_form_of_a_signal() -> None:
    """4.6.1: {reason, message, source, context}."""
    signal = StopSignal(StopReason.GUARD, "Enough", FrozenDict(left=0), "hook")
    written = signal.to_dict()

    assert list(written.items()) == [
        ("reason", "guard"),
        ("message", "Enough"),
        ("source", "hook"),
        ("context", {"left": 0}),
    ]
    assert StopSignal.from_dict({**written, "since": 2}) == signal


def test_a_written_signal_may_lack_all_but_its_reason() -> None:
    """2.4.1: the defaults complete it."""
    assert StopSignal.from_dict({"reason": "guard"}) == StopSignal(StopReason.GUARD)
    assert StopSignal.from_dict({"reason": "guard", "context": None}) == StopSignal(StopReason.GUARD)
