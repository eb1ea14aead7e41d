import hashlib
from typing import Any

import pytest
from hypothesis import given, strategies as st

from everstep.agent_domain.capabilities.approvals import (
    NO_APPROVAL,
    Approval,
    ApprovalDecision,
    args_digest,
    parse_approval,
)
from everstep.agent_domain.capabilities.rights import DecisionPolicy
from everstep.agent_domain.errors import InvalidInput
from everstep.agent_domain.values import frozen_map

ARGS = frozen_map({"command": "rm x"})
DIGEST = args_digest("bash", ARGS)

MALFORMED = [
    "",
    " ",
    DIGEST.upper(),
    DIGEST[:63],
    f"{DIGEST}0",
    f"{DIGEST}\n",
    f" {DIGEST}",
    "g" * 64,
    "\u0660" * 64,
]
"""Invalid digests."""


def rules(*entries: tuple[str, dict[str, str], str]) -> Any:
    return parse_approval([{"tool": tool, "args": args, "approval": mode} for tool, args, mode in entries])


def needs_approval(approval: Approval, tool: str, args: dict[str, Any]) -> bool:
    return approval.policy_of(tool, args) is not None


def a_decision(decision: str = "approve", **fields: Any) -> ApprovalDecision:
    return ApprovalDecision.parse({"decision": decision, "args_digest": DIGEST, **fields})


# --- Which calls ---


@pytest.mark.parametrize(
    "given",
    [
        "never",
        "always",
        [{"tool": "x", "args": {"a": "b"}, "approval": "always"}],
        [{"tool": "x", "args": {}, "approval": "always", "approver": ["role:boss"], "four_eyes": True}],
        {"approval": "always", "approver": ["owner"]},
        {"approval": "always", "four_eyes": True, "expires_after": 60.0},
    ],
)
def test_an_approval_can_be_written(given: Any) -> None:
    """8.6.1: as it was given."""
    assert parse_approval(given).to_json() == given


def test_never_and_always_ignore_the_call() -> None:
    """8.6.1: `never`, `always`."""
    assert parse_approval("never") == NO_APPROVAL
    assert not needs_approval(parse_approval("never"), "bash", ARGS)
    assert needs_approval(parse_approval("always"), "bash", ARGS)


def test_the_first_rule_that_matches_decides() -> None:
    """8.6.1: the first rule whose tool name and argument patterns all match."""
    approval = rules(("bash", {"command": "ls*"}, "never"), ("ba*", {}, "always"), ("*", {}, "never"))
    assert not needs_approval(approval, "bash", {"command": "ls -l"})
    assert needs_approval(approval, "bash", {"command": "rm x"})
    assert not needs_approval(approval, "read_file", {})


def test_without_a_matching_rule_the_call_runs() -> None:
    """8.6.1: `never` is the default."""
    assert not needs_approval(rules(("bash", {"command": "rm*"}, "always")), "bash", {"command": "ls"})
    assert not needs_approval(parse_approval(()), "bash", {})


@pytest.mark.parametrize(
    ("globs", "args", "matches"),
    [
        ({"command": "rm*"}, {"command": "rm x"}, True),
        ({"command": "rm*"}, {"command": "RM x"}, False),
        ({"command": "*rm*"}, {"command": "ls\nrm x\n"}, True),
        ({"command": "rm*", "force": "true"}, {"command": "rm x", "force": True}, True),
        ({"command": "rm*", "force": "true"}, {"command": "rm x", "force": False}, False),
        ({"force": "true"}, {}, False),
        ({"force": "*"}, {}, False),
        ({"force": "null"}, {"force": None}, True),
        ({"n": "1?"}, {"n": 12}, True),
        ({"to": '*"ä@x.de"*'}, {"to": ["a", "ä@x.de"]}, True),
        ({"o": '{"a":1,*}'}, {"o": {"a": 1, "b": 2}}, True),
        ({"name": "[ab]"}, {"name": "b"}, True),
    ],
)
def test_argument_patterns(globs: dict[str, str], args: dict[str, Any], matches: bool) -> None:
    """8.6.1: case-sensitive; JSON text for what is no string; an absent one never matches."""
    assert needs_approval(rules(("bash", globs, "always")), "bash", args) == matches


def test_tool_patterns_are_case_sensitive() -> None:
    """8.6.1: globs."""
    assert needs_approval(rules(("write_*", {}, "always")), "write_file", {})
    assert not needs_approval(rules(("Write_*", {}, "always")), "write_file", {})


@pytest.mark.parametrize(
    "value",
    [
        "sometimes",
        None,
        {},
        ["always"],
        [{"tool": "x"}],
        [{"tool": "x", "approval": "maybe"}],
        [{"tool": "x", "approval": "never", "arg": {}}],
        [{"tool": "x", "approval": "never", "args": {"n": 1}}],
    ],
)
def test_a_meaningless_approval_is_refused(value: object) -> None:
    """8.6.1: unknown fields too, as a misspelt rule would let calls run."""
    with pytest.raises(InvalidInput, match="approval"):
        parse_approval(value)


@pytest.mark.parametrize(
    ("value", "complaint"),
    [
        (
            {"approval": "always", "by": "owner"},
            "no key 'by'; use approval, approver, four_eyes, expires_after",
        ),
        ({"approver": "owner"}, "None is not an approval"),
        (
            {"approval": "always", "approver": "boss"},
            "'boss' is no approver; use 'owner', 'approve', 'scope:",
        ),
        ({"approval": "always", "approver": []}, r"\[\] is no approver"),
        ({"approval": "always", "approver": "role:"}, "'role:' is no approver"),
        ({"approval": "always", "approver": "scope:two words"}, "is no approver"),
        ({"approval": "always", "approver": ["owner", 5]}, "5 is no approver"),
        ({"approval": "always", "approver": "owner", "four_eyes": True}, "four_eyes leaves no one to decide"),
        ({"approval": "always", "four_eyes": "perhaps"}, "four_eyes"),
        ({"approval": "always", "expires_after": 0}, "more than 0"),
        ({"approval": "always", "expires_after": True}, "expires_after"),
        ({"approval": "always", "expires_after": 1e12}, "at most a hundred years"),
        ([{"tool": "x", "approval": "always", "approver": "boss"}], "rule #1 does not fit: approver"),
        (
            {"approval": [{"tool": "x", "approval": "always", "four_eyes": True}], "approver": "owner"},
            "four_eyes leaves no one to decide",
        ),
    ],
)
def test_an_approval_that_no_one_can_give_is_refused(value: object, complaint: str) -> None:
    """8.6.7: one sentence that says what to change."""
    with pytest.raises(InvalidInput, match=complaint):
        parse_approval(value)


def test_a_rule_may_name_its_own_approver() -> None:
    """8.6.7: the rule's values, else those of the tool, else those of the agent."""
    rule = {"tool": "pay", "args": {"euros": "???"}, "approval": "always", "approver": "role:head of sales"}
    more = {"tool": "pay", "approval": "always", "four_eyes": False}
    given = {"approval": [rule, more], "four_eyes": True}
    approval = parse_approval(given, {"approver": "owner", "expires_after": 60})

    assert approval.policy_of("pay", {"euros": 100}) == DecisionPolicy(
        approver=("role:head of sales",), four_eyes=True, expires_after=60
    )
    assert approval.policy_of("pay", {"euros": 10}) == DecisionPolicy(approver=("owner",), expires_after=60)
    assert approval.policy_of("sell", {}) is None


def test_a_remembered_approval_covers_calls_with_the_same_approver() -> None:
    """8.6.4: the owner, who may allow small amounts, cannot allow large ones with it."""
    owner, boss = DecisionPolicy(approver=("owner",)), DecisionPolicy(approver=("role:boss",))
    rule = a_decision(remember=True).rule_to_remember("bash", ARGS, owner)
    assert rule is not None
    assert rule.covers("bash", {"command": "ls"}, owner)
    assert not rule.covers("bash", {"command": "ls"}, boss)
    assert not rule.covers("bash", {"command": "ls"}, DecisionPolicy(approver=("owner",), four_eyes=True))
    default = a_decision(remember=True).rule_to_remember("bash", ARGS)
    assert default is not None
    assert default.model_dump(mode="json") == {"tool": "bash", "approval": "never", "args": {}}
    assert default.covers("bash", {}, DecisionPolicy())


def test_a_refused_rule_is_named_with_its_place() -> None:
    """8.6.1: the rule, and its error."""
    with pytest.raises(InvalidInput, match=r"^approval rule #2 does not fit: tool: Field required$"):
        parse_approval([{"tool": "a", "approval": "never"}, {"approval": "never"}])


# --- The digest ---


def test_the_digest_is_sha_256_of_sorted_compact_json() -> None:
    """8.6.3: lower-case hex of {args, tool}, keys sorted at every level."""
    text = '{"args":{"a":[{"x":1,"y":"ä/"}],"b":null},"tool":"bash"}'
    expected = hashlib.sha256(text.encode()).hexdigest()
    assert args_digest("bash", {"b": None, "a": [{"y": "ä/", "x": 1}]}) == expected


def test_a_known_digest() -> None:
    """8.6.3: so that other languages can compare."""
    assert args_digest("bash", {}) == "decd91065e3abe359304e5d724756391572aa4642f99b512c0c62f052a0d8209"


@pytest.mark.parametrize(
    ("tool", "args"), [("bash", {"command": "rm y"}), ("sh", {"command": "rm x"}), ("bash", {})]
)
def test_another_call_has_another_digest(tool: str, args: dict[str, Any]) -> None:
    """8.6.3: it never covers another call."""
    assert args_digest(tool, args) != args_digest("bash", ARGS)


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=8,
)


@given(st.dictionaries(st.text(max_size=3), json_values))
def test_the_order_of_keys_does_not_matter(args: dict[str, Any]) -> None:
    """8.6.3: keys sorted."""
    try:
        digest = args_digest("t", args)
    except InvalidInput:
        return
    assert args_digest("t", dict(reversed(args.items()))) == digest


# --- Decisions ---


def test_an_approved_call_runs_with_exactly_the_requested_arguments() -> None:
    """8.6.2: approve."""
    assert a_decision("approve").effective_args(ARGS) == ARGS
    assert a_decision("approve").result_text("done") == "done"


def test_a_denied_call_does_not_run() -> None:
    """8.6.2: deny; the text for the model."""
    assert a_decision("deny").effective_args(ARGS) is None
    assert a_decision("deny", reason=" too risky ").denial == "Denied by user: too risky"
    assert a_decision("deny").denial == a_decision("deny", reason=" ").denial == "Denied by user"


def test_an_edited_call_runs_with_the_new_arguments_and_says_so() -> None:
    """8.6.2: edit; the result text starts with the arguments."""
    decision = a_decision("edit", args={"command": "ls /ä"})
    assert decision.effective_args(ARGS) == {"command": "ls /ä"}
    assert decision.result_text("a.txt") == '[Arguments edited by user: {"command":"ls /ä"}]\na.txt'
    assert a_decision("edit", args={}).effective_args(ARGS) == {}


@pytest.mark.parametrize(
    ("fields", "detail"),
    [
        ({"decision": "edit", "args_digest": DIGEST}, "send args with the decision 'edit', and only with it"),
        ({"decision": "approve", "args_digest": DIGEST, "args": {}}, "send args with the decision 'edit'"),
        ({"decision": "yes", "args_digest": DIGEST}, "decision: Input should be"),
        ({"decision": "approve"}, "args_digest: Field required"),
        ({"decision": "approve", "args_digest": None}, "args_digest: Input should be a valid string"),
        ({"decision": "edit", "args_digest": DIGEST, "args": [1]}, "args: Input should be"),
        (
            {"decision": "edit", "args_digest": DIGEST, "args": {"a": "\x00"}},
            "args: Value error, value.a contains",
        ),
        ({"decision": "approve", "args_digest": DIGEST, "all": True}, "all: there is no such key"),
        (None, "Input should be"),
    ],
)
def test_a_meaningless_decision_is_refused(fields: object, detail: str) -> None:
    """8.6.2: the body of the request."""
    with pytest.raises(InvalidInput) as refused:
        ApprovalDecision.parse(fields)
    assert detail in str(refused.value)


@pytest.mark.parametrize("digest", MALFORMED, ids=repr)
def test_a_malformed_digest_is_refused(digest: str) -> None:
    """8.6.3: the expected form, and its source."""
    with pytest.raises(InvalidInput, match="64 lower-case hexadecimal digits; send the args_digest of the"):
        a_decision(args_digest=digest)


def test_a_decision_fits_one_pending_call_once() -> None:
    """8.6.3: wrong digest, second decision."""
    assert a_decision().conflict(DIGEST, resolved=False) is None
    assert a_decision().conflict("other", resolved=False) == "Approval does not match the pending call"
    assert a_decision().conflict(DIGEST, resolved=True) == "Approval already resolved"
    assert a_decision().conflict("other", resolved=True) == "Approval already resolved"


@given(
    st.dictionaries(st.sampled_from(["decision", "args_digest", "reason", "args", "remember"]), json_values)
)
def test_any_request_is_a_decision_or_refused(data: dict[str, Any]) -> None:
    """8.6.2: nothing but InvalidInput."""
    try:
        decision = ApprovalDecision.parse(data)
    except InvalidInput:
        return
    assert (decision.args is None) or decision.decision == "edit"


@pytest.mark.parametrize(
    ("remember", "args", "covered"),
    [
        (True, {"path": "b"}, True),
        ({"path": "a*"}, {"path": "ab"}, True),
        ({"path": "a*"}, {"path": "b"}, False),
        ({"path": "a*"}, {}, False),
    ],
)
def test_an_approval_may_cover_other_calls(
    remember: bool | dict[str, str], args: dict[str, str], covered: bool
) -> None:
    """8.6.4: as the approving person chooses, and never another tool."""
    decision = ApprovalDecision.parse({"decision": "approve", "args_digest": DIGEST, "remember": remember})
    rule = decision.rule_to_remember("delete", {"path": "a"})
    assert rule
    assert rule.matches("delete", args) is covered
    assert not rule.matches("delete_all", args)


def test_a_tool_whose_name_looks_like_a_pattern_is_matched_literally() -> None:
    """8.6.4"""
    decision = ApprovalDecision.parse({"decision": "approve", "args_digest": DIGEST, "remember": True})
    rule = decision.rule_to_remember("de*[a]?", {})
    assert rule
    assert rule.matches("de*[a]?", {})
    assert not rule.matches("delete_a!", {})


def test_an_approval_covers_the_call_that_it_is_given_for() -> None:
    """8.6.4"""
    decision = ApprovalDecision.parse(
        {"decision": "approve", "args_digest": DIGEST, "remember": {"path": "b"}}
    )
    with pytest.raises(InvalidInput, match="does not match the call that is approved"):
        decision.rule_to_remember("delete", {"path": "a"})


@pytest.mark.parametrize("fields", [{"decision": "deny"}, {"decision": "edit", "args": {}}])
def test_only_an_approval_covers_other_calls(fields: dict[str, Any]) -> None:
    """8.6.4"""
    with pytest.raises(InvalidInput, match="only an approval can be remembered"):
        ApprovalDecision.parse({**fields, "args_digest": DIGEST, "remember": True})
