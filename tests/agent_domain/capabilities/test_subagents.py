import pytest
from hypothesis import given, strategies as st

from everstep.agent_domain.capabilities.subagents import (
    CHILD_MAX_STEPS,
    CHILD_MAX_TOKENS,
    CHILD_TIMEOUT_SECONDS,
    SubagentListing,
    SubagentPolicy,
    description,
    failure_text,
    inherited_tools,
    outcome_text,
    parameters,
    success_text,
    unknown_agent_text,
)
from everstep.agent_domain.errors import InvalidInput
from everstep.agent_domain.loop.child_end import ChildEnd
from everstep.agent_domain.loop.status import ExecutionStatus

POLICY = SubagentPolicy()


def test_the_defaults_of_the_policy() -> None:
    """9.6.1: SubagentPolicy."""
    assert SubagentPolicy(max_depth=3, summary_max_chars=8000) == POLICY


def test_a_meaningless_policy_is_refused() -> None:
    """9.6.1: the error gives advice."""
    with pytest.raises(InvalidInput, match="max_depth is -1; pass a whole number of at least 0"):
        SubagentPolicy(max_depth=-1)


@pytest.mark.parametrize(
    ("end", "text"),
    [
        (ChildEnd(ExecutionStatus.COMPLETED, " Three "), "[Subagent: hand] Three"),
        (ChildEnd(ExecutionStatus.COMPLETED), "[Subagent: hand] (no response)"),
        (ChildEnd(ExecutionStatus.FAILED, error="too long"), "Error: Subagent 'hand' failed: too long"),
        (ChildEnd(ExecutionStatus.FAILED), "Error: Subagent 'hand' failed: It gave no reason"),
        (ChildEnd(ExecutionStatus.CANCELLED), "Error: Subagent 'hand' failed: It was cancelled"),
    ],
)
def test_every_end_has_a_text(end: ChildEnd, text: str) -> None:
    """9.6.3: results, never failures."""
    assert outcome_text("hand", end, POLICY) == text


def test_the_description_lists_the_agents_with_their_tools() -> None:
    """9.6.1: the literal lines."""
    agents = [
        SubagentListing("reviewer", "Reads code", ("read_file", "bash")),
        SubagentListing("writer", "Writes"),
        SubagentListing("thinker", "Thinks", ()),
    ]
    assert description(agents).split("\n")[1:] == [
        "- reviewer: Reads code (tools: read_file, bash)",
        "- writer: Writes (tools: all parent tools)",
        "- thinker: Thinks (tools: none)",
    ]


def test_the_subagent_is_an_enum_of_names() -> None:
    """9.6.1: `subagent` is an enum of registry names."""
    schema = parameters(["reviewer", "writer"])
    assert schema["properties"]["subagent"]["enum"] == ["reviewer", "writer"]
    assert schema["required"] == ["subagent", "prompt"]
    assert "enum" not in parameters([])["properties"]["subagent"]


def test_the_limits_of_a_child() -> None:
    """9.6.2: 20 steps / 32768 tokens / 300 s."""
    assert (CHILD_MAX_STEPS, CHILD_MAX_TOKENS, CHILD_TIMEOUT_SECONDS) == (20, 32768, 300)


def test_the_parent_reads_the_trimmed_response() -> None:
    """9.6.3: `[Subagent: {name}] {response}`."""
    assert success_text("reviewer", "\n Fine. \n", POLICY) == "[Subagent: reviewer] Fine."


def test_a_missing_response_is_reported() -> None:
    """9.6.3: `(no response)`."""
    assert success_text("reviewer", " \n", POLICY) == "[Subagent: reviewer] (no response)"


def test_the_problems_of_a_child_are_error_texts() -> None:
    """9.6.3: results, never failures."""
    assert failure_text("reviewer", "no tokens left") == "Error: Subagent 'reviewer' failed: no tokens left"
    assert unknown_agent_text("x", ["a", "b"]) == "Error: No agent named 'x'. Choose from: a, b"
    assert POLICY.refusal("reviewer", 3) == (
        "Error: Subagent 'reviewer' not started, subagents nest at most 3 deep"
    )


def test_a_long_response_is_cut_right_trimmed_and_marked() -> None:
    """9.6.3: first n characters, right-trimmed, + `⏎...`."""
    policy = SubagentPolicy(summary_max_chars=5)
    assert success_text("a", "12345", policy) == "[Subagent: a] 12345"
    assert success_text("a", "123456", policy) == "[Subagent: a] 12345\n..."
    assert success_text("a", "äö   ü", policy) == "[Subagent: a] äö\n..."


@pytest.mark.parametrize("maximum", [0, -1])
def test_zero_or_less_is_unlimited(maximum: int) -> None:
    """9.6.3: ≤ 0 unlimited."""
    assert SubagentPolicy(summary_max_chars=maximum).trimmed("x" * 9000) == "x" * 9000


@given(st.text(), st.integers(1, 20))
def test_a_trimmed_response_is_a_beginning_of_bounded_length(response: str, maximum: int) -> None:
    """9.6.3: the length bound."""
    text = SubagentPolicy(summary_max_chars=maximum).trimmed(response)
    assert len(text) <= maximum + 4
    assert response.strip().startswith(
        text.removesuffix("\n...") if len(response.strip()) > maximum else text
    )


@pytest.mark.parametrize(("depth", "refused"), [(0, False), (2, False), (3, True), (4, True)])
def test_a_call_at_the_maximum_depth_is_refused(depth: int, refused: bool) -> None:
    """9.6.4: depth is 0 at the top; at depth ≥ max_depth refused."""
    assert (POLICY.refusal("a", depth) is not None) == refused


def test_depth_zero_allows_no_subagents_at_all() -> None:
    """9.6.4: max_depth 0."""
    assert SubagentPolicy(max_depth=0).refusal("a", 0) is not None


@pytest.mark.parametrize(
    ("wanted", "tools"),
    [
        (None, ("bash", "read_file", "spawn_subagent")),
        (["spawn_subagent", "bash", "nope"], ("bash", "spawn_subagent")),
        (["bash", "bash"], ("bash",)),
        ([], ()),
    ],
)
def test_tools_are_inherited_or_filtered(wanted: list[str] | None, tools: tuple[str, ...]) -> None:
    """9.6.5: None = all, a list filters (unknown names dropped), [] none."""
    assert inherited_tools(["bash", "read_file", "spawn_subagent"], wanted) == tools


@pytest.mark.parametrize(("wanted", "spawns"), [(None, True), (["spawn_subagent"], True), (["bash"], False)])
def test_a_child_may_spawn_if_it_inherits_all_tools_or_lists_that_one(
    wanted: list[str] | None, spawns: bool
) -> None:
    """9.6.4: the child gets `spawn_subagent` if it inherits all tools or lists it."""
    assert ("spawn_subagent" in inherited_tools(["bash", "spawn_subagent"], wanted)) == spawns
