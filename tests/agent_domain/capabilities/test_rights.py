"""Who may decide about a call, answer, steer and cancel."""

from datetime import UTC, datetime
from typing import Any
from uuid import UUID

import pytest

from everstep.agent_domain.capabilities.rights import (
    ANSWER,
    Actor,
    Decider,
    DecisionPolicy,
    command_decider,
    parse_approvers,
)
from everstep.agent_domain.errors import InvalidInput, NotPermitted

NOW = datetime(2026, 1, 16, 10, 5, tzinfo=UTC)
KEY = UUID(int=7)


def policy(approver: Any = "approve", **given: Any) -> DecisionPolicy:
    return DecisionPolicy(approver=approver, **given)


def actor(subject: str, *scopes: str, roles: tuple[str, ...] = ()) -> Actor:
    return Actor(subject, scopes, roles, KEY)


@pytest.mark.parametrize(
    ("given", "by", "edits", "scopes", "roles"),
    [
        (policy(), actor("ben", "approve"), False, ["approve"], []),
        (policy(), actor("ann", "approve"), False, ["approve"], []),
        (policy(), actor("ben", "approve", "approve:edit"), True, ["approve", "approve:edit"], []),
        (policy("owner"), actor("ann"), False, [], []),
        (policy("owner"), actor("ann", "approve:edit"), True, ["approve:edit"], []),
        (policy("owner"), actor("robot", "sessions:all"), False, ["sessions:all"], []),
        (policy("scope:shop:refund"), actor("ben", "shop:refund"), False, ["shop:refund"], []),
        (policy("role:head of sales"), actor("ben", roles=("head of sales",)), False, [], ["head of sales"]),
        (policy(["role:boss", "approve"]), actor("ben", "approve", roles=("boss",)), False, [], ["boss"]),
        (policy(["role:boss", "approve"]), actor("ben", "approve"), False, ["approve"], []),
        (policy(four_eyes=True), actor("ben", "approve"), False, ["approve"], []),
    ],
)
def test_a_decision_records_the_rights_that_it_used(
    given: DecisionPolicy, by: Actor, edits: bool, scopes: list[str], roles: list[str]
) -> None:
    """8.6.7, 8.6.8"""
    decider = given.decider(by, "ann", NOW, edits=edits)

    assert decider == Decider(by.subject, NOW, tuple(scopes), tuple(roles), KEY)
    assert given.permits(by, "ann")
    assert Decider.from_dict(decider.to_dict()) == decider


@pytest.mark.parametrize(
    ("given", "by", "edits", "words"),
    [
        (policy(), actor("ann"), False, "Only callers with the scope 'approve' may decide"),
        (policy(), actor("ann", "sessions:all", "approve:edit"), False, "the scope 'approve'"),
        (policy("owner"), actor("ben", "approve"), False, "Only the owner of the execution"),
        (
            policy(["scope:x", "role:boss"]),
            actor("ann", "approve", roles=("x",)),
            False,
            "Only callers with the scope 'x' or callers with the role 'boss'",
        ),
        (policy("scope:boss"), actor("ann", roles=("boss",)), False, "the scope 'boss'"),
        (policy(four_eyes=True), actor("ann", "approve"), False, "made for 'ann', so another person"),
        (policy(["owner", "approve"], four_eyes=True), actor("ann", "approve"), False, "another person"),
        (policy(), actor("ben", "approve"), True, "Other arguments need the scope 'approve:edit'"),
        (policy("owner"), actor("ann"), True, "Other arguments need the scope 'approve:edit'"),
    ],
)
def test_a_decision_without_the_right_is_refused(
    given: DecisionPolicy, by: Actor, edits: bool, words: str
) -> None:
    """8.6.7"""
    with pytest.raises(NotPermitted, match=words):
        given.decider(by, "ann", NOW, edits=edits)
    assert given.permits(by, "ann") is edits


def test_four_eyes_need_a_user() -> None:
    """8.6.7: an execution without a user was made for no one who could decide about it."""
    assert policy(four_eyes=True).decider(actor("ben", "approve"), None, NOW).subject == "ben"


@pytest.mark.parametrize(
    ("value", "approvers"),
    [
        ("owner", ("owner",)),
        ("approve", ("scope:approve",)),
        (["approve", "scope:approve", "role:a b"], ("scope:approve", "role:a b")),
    ],
)
def test_approvers_are_words(value: object, approvers: tuple[str, ...]) -> None:
    """8.6.7"""
    assert parse_approvers(value) == approvers


@pytest.mark.parametrize(
    ("by", "scopes"),
    [
        (actor("ann"), ()),
        (actor("ann", "sessions:all"), ()),
        (actor("ben", "answer"), ("answer",)),
        (actor("robot", "sessions:all"), ("sessions:all",)),
    ],
)
def test_a_command_records_its_sender(by: Actor, scopes: tuple[str, ...]) -> None:
    """8.9.5"""
    assert command_decider(by, ANSWER, "ann", NOW) == Decider(by.subject, NOW, scopes, key_id=KEY)


@pytest.mark.parametrize("by", [actor("ben"), actor("ben", "approve", "steer", "cancel")])
def test_a_command_for_another_user_needs_its_scope(by: Actor) -> None:
    """8.9.5"""
    with pytest.raises(NotPermitted, match="another user this needs the scope 'answer'"):
        command_decider(by, ANSWER, "ann", NOW)


def test_a_decider_has_a_text_for_people() -> None:
    assert Decider("ann", NOW).text == "ann"
    assert Decider("ben", NOW, ("approve",), ("boss",)).text == "ben (approve, role boss)"
    with pytest.raises(InvalidInput, match="'at' is missing"):
        Decider.from_dict({"subject": "ann"})
