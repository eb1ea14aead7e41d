"""A step without its bodies."""

from dataclasses import replace

import pytest

from everstep.agent_domain.loop.facts import ExecutionFacts
from everstep.agent_domain.loop.hook_requests import Wishes
from everstep.agent_domain.loop.step_error import ErrorType, StepError
from everstep.agent_domain.loop.step_facts import (
    Besides,
    CallFacts,
    CallNeed,
    StepFacts,
    StepType,
    type_of_step,
)
from everstep.agent_domain.loop.usage import Usage
from tests.agent_domain.executions import (
    a_call,
    a_failed_call,
    a_failed_step,
    a_step,
    an_answered_call,
    names,
)

PSEUDO = StepError("", ErrorType.VALIDATION, "decision_extraction")


@pytest.mark.parametrize(
    ("step", "kind"),
    [
        (a_step(), "final"),
        (a_step(a_call()), "tool_execution"),
        (a_step(an_answered_call()), "tool_execution"),
        (a_step(an_answered_call("a"), a_failed_call("b")), "error"),
        (a_step(pseudo_errors=(PSEUDO,)), "error"),
        (a_failed_step(), "final"),
        (a_step(a_failed_call(), own_type=StepType.TOOL_EXECUTION), "tool_execution"),
        (a_step(own_type=StepType.ERROR), "error"),
    ],
)
def test_the_type_of_a_step(step: StepFacts, kind: str) -> None:
    """4.3.2: its own; any failing execution: error; tool calls: tool_execution; else final."""
    assert step.step_type == kind


@pytest.mark.parametrize(
    ("failed", "called", "kind"),
    [
        (True, True, StepType.ERROR),
        (True, False, StepType.ERROR),
        (False, True, StepType.TOOL_EXECUTION),
        (False, False, StepType.FINAL),
    ],
)
def test_failing_outranks_calling(failed: bool, called: bool, kind: StepType) -> None:
    """4.3.2: in this order."""
    assert type_of_step(failed=failed, called=called) is kind


@pytest.mark.parametrize(
    ("word", "kind"),
    [
        ("final", StepType.FINAL),
        ("final_response", StepType.FINAL),
        ("tool_execution", StepType.TOOL_EXECUTION),
        ("error", StepType.ERROR),
    ],
)
def test_an_older_word_for_final_is_read(word: str, kind: StepType) -> None:
    """4.3.2: readers accept final_response."""
    assert StepType.parse(word) is kind


def test_an_unknown_type_is_refused() -> None:
    """4.3.2: tool_execution, final and error are all."""
    with pytest.raises(ValueError, match="'thinking' is not a valid StepType"):
        StepType.parse("thinking")


def test_the_errors_of_a_step_are_its_own_or_those_of_its_calls() -> None:
    """4.3.3: explicit ones, else those of failing executions, pseudo executions first."""
    failing = a_step(a_failed_call("a", message="first"), an_answered_call("b"), pseudo_errors=(PSEUDO,))
    own = replace(failing, own_errors=(StepError("own"),))

    assert [error.message for error in failing.errors] == ["", "first"]
    assert [error.message for error in own.errors] == ["own"]
    assert [error.message for error in own.tool_errors] == ["", "first"]
    assert failing.has_errors
    assert not a_step(an_answered_call()).has_errors


def test_one_failing_call_among_several_makes_the_step_fail() -> None:
    """3.4.3: it counts as a step with errors."""
    assert a_step(an_answered_call("a"), a_failed_call("b"), an_answered_call("c")).has_errors


def test_a_step_is_complete_once_every_call_has_its_result() -> None:
    """1.1.3, 4.5.2: pending calls are in response order."""
    step = a_step(a_call("a"), an_answered_call("b"), a_call("c"))

    assert (names(step.pending), step.is_complete) == (["a", "c"], False)
    assert a_step(an_answered_call(), a_failed_call("b")).is_complete
    assert a_step().is_complete


def test_calls_count_with_any_result() -> None:
    """2.5: has at least one tool call, successful or not."""
    assert a_step(a_failed_call()).has_tool_calls
    assert a_step(a_call()).has_tool_calls
    assert not a_step().has_tool_calls


def test_results_complete_the_calls_that_they_name() -> None:
    """2.7.1: and their seconds of work add up."""
    step = a_step(a_call("a"), a_call("b"), seconds=1.5)
    settled = step.settled([CallFacts("b", "search", error=StepError("", ErrorType.TIMEOUT))], 2.25)

    assert names(settled.pending) == ["a"]
    assert settled.calls[1] == CallFacts("b", "search", CallNeed.RUN, True, StepError("", ErrorType.TIMEOUT))
    assert settled.seconds == 3.75
    assert step.calls[1] == a_call("b")


def test_a_call_keeps_its_first_result() -> None:
    """1.1.3: each tool call gets exactly one recorded result."""
    step = a_step(an_answered_call("a"), a_call("b"))

    assert step.settled([a_failed_call("a"), a_failed_call("elsewhere")]) == step


def test_the_need_of_a_call_can_change() -> None:
    """8.6.2: such as to run once it is approved; the others do not change."""
    step = a_step(a_call("a", CallNeed.APPROVAL), a_call("b", CallNeed.APPROVAL))

    assert step.needing("b", CallNeed.RUN) == a_step(a_call("a", CallNeed.APPROVAL), a_call("b"))


def test_the_defaults_of_a_step() -> None:
    """4.3.1: an answer without usage or failures."""
    assert StepFacts(1) == StepFacts(1, (), None, Usage(), (), (), None, False, 0.0)
    assert CallFacts("a", "search") == CallFacts("a", "search", CallNeed.RUN, False, None)
    assert [str(need) for need in CallNeed] == ["run", "approval", "input", "subagent"]


def test_a_request_of_a_hook_takes_effect_once() -> None:
    """2.4.1: its cost stays with the step."""
    spent = Besides(Usage(input=5), child_tokens=7)
    step = replace(a_step(a_call()), besides=replace(spent, wishes=Wishes(pause=True)))
    facts = ExecutionFacts().with_step(step)
    resumed = replace(facts, is_paused=False)

    assert facts.is_paused
    assert facts.current_step
    assert facts.current_step.besides == spent
    assert not resumed.with_step(facts.current_step.settled([an_answered_call("call")])).is_paused
