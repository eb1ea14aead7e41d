from typing import Any

import pytest
from hypothesis import given, strategies as st

from everstep.agent_domain.capabilities.critique import (
    CRITIC_RETRIES,
    Critique,
    CritiquePolicy,
    approval,
    evidence,
    iteration_of,
    parse_critique,
    review_text,
)
from everstep.agent_domain.errors import InvalidInput

POLICY = CritiquePolicy()


def a_rejection(**fields: Any) -> Critique:
    given: dict[str, Any] = {
        "summary": "No source",
        "weaknesses": ("unproven",),
        "suggestions": ("cite",),
        **fields,
    }
    return Critique(approved=False, **given)


def test_the_defaults_of_the_policy() -> None:
    """9.7.1: max_iterations=2, verbose=True, llm_preset=None; 2 retries."""
    assert CritiquePolicy(max_iterations=2, verbose=True, llm_preset=None) == POLICY
    assert CRITIC_RETRIES == 2
    with pytest.raises(InvalidInput, match="max_iterations is -1"):
        CritiquePolicy(max_iterations=-1)


@pytest.mark.parametrize(
    ("step_type", "text", "iteration", "due"),
    [
        ("final", "Done", 0, True),
        ("final", "Done", 1, True),
        ("final", "Done", 2, False),
        ("final", " \n", 0, False),
        ("tool_execution", "Done", 0, False),
        ("error", "Done", 0, False),
    ],
)
def test_a_final_answer_with_text_is_criticised_up_to_the_maximum(
    step_type: str, text: str, iteration: int, due: bool
) -> None:
    """9.7.1: after a `final` step with text, while iteration < max."""
    assert POLICY.due(step_type, text, iteration) == due


def test_the_reply_of_the_critic_is_parsed() -> None:
    """9.7.1: {approved, summary, strengths, weaknesses, suggestions}."""
    answer = """{
        "approved": false, "summary": "s", "strengths": ["a"], "weaknesses": ["b"], "suggestions": ["c"],
        "score": 3
    }"""
    expected = Critique(approved=False, summary="s", strengths=("a",), weaknesses=("b",), suggestions=("c",))
    assert parse_critique(answer) == expected


@pytest.mark.parametrize(
    "answer",
    [
        '{"approved": true}',
        'Sure:\n```json\n{"approved": "yes", "strengths": null}\n```',
        '{"approved":1,"weaknesses":[]}',
    ],
)
def test_small_errors_of_the_critic_are_accepted(answer: str) -> None:
    """9.7.1: text around the object, and missing lists."""
    assert parse_critique(answer) == Critique(approved=True)


def test_one_point_counts_as_a_list_of_one() -> None:
    """9.7.1: a list of short sentences."""
    assert parse_critique('{"approved": false, "weaknesses": "short"}').weaknesses == ("short",)


@pytest.mark.parametrize(
    "answer", ["", "Looks good", "}{", '{"summary": "s"}', '{"approved": "maybe"}', "[true]"]
)
def test_a_reply_without_verdict_is_refused(answer: str) -> None:
    """9.7.1: so that the critic is asked again."""
    with pytest.raises(InvalidInput, match="the critic's answer"):
        parse_critique(answer)


def test_a_failing_critic_approves() -> None:
    """9.7.1: a failing critic approves."""
    assert approval("rate limit").approved


def test_the_evidence_shows_calls_arguments_and_results() -> None:
    """9.7.1: tool calls, arguments, text results."""
    text = evidence([("bash", {"command": "ls /ä"}, "a.txt"), ("read_file", {}, "x")])
    first = 'Tool: bash\nArguments: {"command":"ls /ä"}\nResult: a.txt'
    assert text == first + "\n\nTool: read_file\nArguments: {}\nResult: x"
    assert evidence([]) == "(no tool calls)"


def test_long_evidence_loses_its_middle() -> None:
    """9.7.1: longer than 6000: first 3000 and last 3000 around a note."""
    frame = len(evidence([("t", {}, "")]))
    whole = evidence([("t", {}, "ä" * (6000 - frame))])
    assert (len(whole), "omitted" in whole) == (6000, False)
    text = evidence([("t", {}, "a" * 4000 + "b" * 4000)])
    assert text[:3000] == ("Tool: t\nArguments: {}\nResult: " + "a" * 3000)[:3000]
    assert text[3000:-3000] == f"\n... ({8000 + frame - 6000} characters omitted) ...\n"
    assert text[-3000:] == "b" * 3000


@given(st.lists(st.tuples(st.text(max_size=5), st.just({}), st.text("ab", max_size=4000)), max_size=4))
def test_evidence_is_bounded(calls: list[Any]) -> None:
    """9.7.1: the length bound."""
    assert len(evidence(calls)) <= 6000 + 60


def test_the_critic_reads_task_evidence_and_answer() -> None:
    """9.7.1: on the task, the evidence and the response."""
    text = review_text("Count files", [("bash", {}, "3")], "There are 3")
    assert text.index("Count files") < text.index("Tool: bash") < text.index("There are 3")


def test_the_critique_is_kept_in_the_metadata() -> None:
    """9.7.2: `self_critic_result`, `self_critic_iteration`."""
    metadata = a_rejection().to_metadata(1)
    assert set(metadata) == {"self_critic_result", "self_critic_iteration"}
    assert metadata["self_critic_result"] == {
        "approved": False,
        "summary": "No source",
        "strengths": [],
        "weaknesses": ["unproven"],
        "suggestions": ["cite"],
    }
    assert (Critique.model_validate(metadata["self_critic_result"]), iteration_of(metadata)) == (
        a_rejection(),
        1,
    )


@pytest.mark.parametrize("metadata", [{}, {"self_critic_iteration": "x"}, {"self_critic_iteration": -1}])
def test_metadata_without_a_critique_counts_as_none(metadata: dict[str, Any]) -> None:
    """9.7.2: there was no critique yet."""
    assert iteration_of(metadata) == 0


def test_a_rejected_answer_is_sent_back_with_advice() -> None:
    """9.7.3: problem, bullets of weaknesses and suggestions, a call to act."""
    message = a_rejection().revision(1, POLICY)
    assert message is not None
    lines = message.split("\n")
    assert lines[0] == "[Critique 1: revise your answer]"
    assert lines[2] == "Problem: No source"
    assert [line for line in lines if line.startswith("- ")] == ["- unproven", "- cite"]
    assert lines[-1].startswith("Act on this now")


def test_a_rejection_without_points_still_names_a_problem() -> None:
    """9.7.3: no empty list is shown."""
    message = a_rejection(summary=" ", weaknesses=(" ",), suggestions=()).revision(1, POLICY)
    assert message is not None
    assert "Problem: the answer was not approved" in message
    assert "Weaknesses" not in message


@pytest.mark.parametrize(("iteration", "revised"), [(1, True), (2, False), (3, False)])
def test_max_two_means_two_critiques_and_one_revision(iteration: int, revised: bool) -> None:
    """9.7.3: rejected at i ≥ max → stop."""
    assert (a_rejection().revision(iteration, POLICY) is not None) == revised


def test_an_approved_answer_is_not_revised() -> None:
    """9.7.3: approved → stop."""
    assert Critique(approved=True).revision(1, POLICY) is None


@given(st.text() | st.text('{}[]":,approvedtrue ', max_size=40))
def test_any_reply_of_the_critic_is_a_critique_or_refused(answer: str) -> None:
    """9.7.1: nothing but InvalidInput."""
    try:
        critique = parse_critique(answer)
    except InvalidInput:
        return
    assert parse_critique(critique.model_dump_json()) == critique
