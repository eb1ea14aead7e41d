"""One table of scenarios for every shell of the loop.

A scenario defines the actions of the model and the tools, and the decisions that follow. Each shell of the
loop must reach exactly these decisions. Attempts below the loop (3.5.1) are no decisions: the table has none.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta

from everstep.agent_domain.agents.plan import REGISTERED, ExecutionPlan
from everstep.agent_domain.errors import InvalidInput, RateLimited
from everstep.agent_domain.loop.continuation import ContinuationDecision
from everstep.agent_domain.loop.error_policy import ErrorPolicy
from everstep.agent_domain.loop.facts import ExecutionFacts
from everstep.agent_domain.loop.loop import (
    AwaitApproval,
    AwaitBudget,
    AwaitInput,
    AwaitResume,
    Decision,
    Infer,
    Process,
    RunSubagents,
    RunTools,
    Stop,
    decide,
)
from everstep.agent_domain.loop.status import AgentStatus, StopReason
from everstep.agent_domain.loop.step_error import ErrorType, StepError
from everstep.agent_domain.loop.step_facts import CallFacts, StepFacts
from everstep.agent_domain.loop.usage import Usage

START = datetime(2026, 1, 16, 10, 5, tzinfo=UTC)
TICK = timedelta(seconds=1)


@dataclass(frozen=True)
class Turn:
    """The model's actions in one step; a tool whose name starts with `bad` fails."""

    calls: tuple[str, ...] = ()
    tokens: int = 1
    finish_reason: str = "stop"
    raises: Exception | None = None


@dataclass(frozen=True)
class Scenario:
    """A script, its plan, and the decisions that follow."""

    name: str
    turns: Sequence[Turn]
    decisions: Sequence[str]
    plan: ExecutionPlan
    status: AgentStatus = AgentStatus.COMPLETED
    reason: StopReason = StopReason.COMPLETED
    because: str = "completed: the model answered without calling tools"
    """Why it ends."""
    because_of_facts: str | None = None
    """The same without the texts of errors, if it has any."""


def base(**settings: object) -> ExecutionPlan:
    """The usual plan, with some settings changed."""
    defaults: dict[str, object] = {"max_steps": 20, "max_tokens": 32768, "finish_reasons": ()}
    return ExecutionPlan.model_validate(defaults | settings)


def describe(decision: Decision) -> str:
    """A decision in a word or two, without the parts in which shells differ."""
    match decision:
        case Infer(number, outcome):
            return f"infer {number}" + (f" for {outcome.resolved_by}" if outcome else "")
        case RunTools(calls) | RunSubagents(calls) | AwaitApproval(calls):
            return f"{type(decision).__name__} " + " ".join(call.name for call in calls)
        case AwaitInput(call):
            return f"AwaitInput {call.name}"
        case AwaitBudget() | AwaitResume():
            return type(decision).__name__
        case Process(number):
            return f"process {number}"
        case Stop(outcome):
            return f"stop {outcome.stop_reason} by {outcome.resolved_by}"


@REGISTERED.function("tests.at-most-one-failure")
def at_most_one_failure(state: ExecutionFacts) -> ContinuationDecision:
    """A custom registered criterion."""
    return ContinuationDecision.FORBID if state.trailing_failures > 1 else ContinuationDecision.ALLOW


@REGISTERED.function("tests.broken")
def broken(state: ExecutionFacts) -> ContinuationDecision:
    """A criterion with a bug, which shows after the first step."""
    return ContinuationDecision.ALLOW if state.step_count == 0 else ContinuationDecision("maybe")


ANSWER = Turn()
LOOK = Turn(("look",), finish_reason="tool_calls")
FAIL = Turn(("bad",), finish_reason="tool_calls")
WORK = "ToolCallPresenceCheck"
RETRYING = {"error_policy": ErrorPolicy.retry_all(2)}

SCENARIOS = (
    Scenario("an answer at once", [ANSWER], [f"infer 1 for {WORK}", f"stop completed by {WORK}"], base()),
    Scenario(
        "two calls of one response, then an answer",
        [Turn(("look", "listen")), ANSWER],
        [f"infer 1 for {WORK}", "RunTools look listen", f"infer 2 for {WORK}", f"stop completed by {WORK}"],
        base(),
    ),
    Scenario(
        "calls one after the other",
        [Turn(("look", "listen")), ANSWER],
        [
            f"infer 1 for {WORK}",
            "RunTools look",
            "RunTools listen",
            f"infer 2 for {WORK}",
            f"stop completed by {WORK}",
        ],
        base(parallel_tools=False),
    ),
    Scenario(
        "no step is allowed",
        [],
        ["stop steps_limit by StepsLimit"],
        base(max_steps=0),
        reason=StopReason.STEPS_LIMIT,
        because="stopped: 0 of 0 steps",
    ),
    Scenario(
        "the answer comes with the last step",
        [ANSWER],
        [f"infer 1 for {WORK}", f"stop completed by {WORK}"],
        base(max_steps=1),
    ),
    Scenario(
        "the last step still has work",
        [LOOK],
        [f"infer 1 for {WORK}", "RunTools look", "stop steps_limit by StepsLimit"],
        base(max_steps=1),
        reason=StopReason.STEPS_LIMIT,
        because="stopped: 1 of 1 steps",
    ),
    Scenario(
        "tokens run out in the second step",
        [replace(LOOK, tokens=9), replace(LOOK, tokens=2)],
        [
            f"infer 1 for {WORK}",
            "RunTools look",
            f"infer 2 for {WORK}",
            "RunTools look",
            "stop token_limit by TokenUsageLimit",
        ],
        base(max_tokens=10),
        reason=StopReason.TOKEN_LIMIT,
        because="stopped: 11 of 10 tokens",
    ),
    Scenario(
        "the model is cut off by its provider",
        [replace(LOOK, finish_reason="content_filter")],
        [f"infer 1 for {WORK}", "RunTools look", "stop finish_reason by FinishReasonCheck"],
        base(finish_reasons=("content_filter",)),
        reason=StopReason.FINISH_REASON,
        because="stopped: the model's finish reason is content_filter",
    ),
    Scenario(
        "a failing tool stops the run by default",
        [FAIL],
        [f"infer 1 for {WORK}", "RunTools bad", "stop error by ErrorPolicyCriterion"],
        base(),
        AgentStatus.FAILED,
        StopReason.ERROR,
        because="failed: tool error in bad: it does not work; 1 failure in a row, max_retries 0",
        because_of_facts="failed: tool error in bad, 1 failure in a row, max_retries 0",
    ),
    Scenario(
        "a failing tool is forgiven once, and once only",
        [FAIL, FAIL],
        [
            f"infer 1 for {WORK}",
            "RunTools bad",
            f"infer 2 for {WORK}",
            "RunTools bad",
            "stop error by ErrorPolicyCriterion",
        ],
        base(**RETRYING),
        AgentStatus.FAILED,
        StopReason.ERROR,
        because="failed: tool error in bad: it does not work; 2 failures in a row, max_retries 2",
        because_of_facts="failed: tool error in bad, 2 failures in a row, max_retries 2",
    ),
    Scenario(
        "a step between two failures makes them two beginnings",
        [FAIL, LOOK, FAIL, ANSWER],
        [
            f"infer 1 for {WORK}",
            "RunTools bad",
            f"infer 2 for {WORK}",
            "RunTools look",
            f"infer 3 for {WORK}",
            "RunTools bad",
            f"infer 4 for {WORK}",
            f"stop completed by {WORK}",
        ],
        base(**RETRYING),
    ),
    Scenario(
        "a step whose model call failed is followed by another one",
        [Turn(raises=RateLimited("slow down", 3)), ANSWER],
        [f"infer 1 for {WORK}", f"infer 2 for {WORK}", f"stop completed by {WORK}"],
        base(**RETRYING),
    ),
    Scenario(
        "a retry is pending when the steps run out",
        [Turn(raises=RateLimited("slow down"))],
        [f"infer 1 for {WORK}", "stop steps_limit by StepsLimit"],
        base(max_steps=1, error_policy=ErrorPolicy.retry_all(5)),
        AgentStatus.FAILED,
        StopReason.STEPS_LIMIT,
        because="failed: 1 of 1 steps, and the last step failed: slow down",
        because_of_facts="failed: 1 of 1 steps, and the last step failed: RateLimited",
    ),
    Scenario(
        "an error outranks a limit that is named first",
        [FAIL],
        [f"infer 1 for {WORK}", "RunTools bad", "stop error by ErrorPolicyCriterion"],
        base(max_steps=1),
        AgentStatus.FAILED,
        StopReason.ERROR,
        because="failed: tool error in bad: it does not work; 1 failure in a row, max_retries 0",
        because_of_facts="failed: tool error in bad, 1 failure in a row, max_retries 0",
    ),
    Scenario(
        "failures that are ignored",
        [FAIL, FAIL, ANSWER],
        [
            f"infer 1 for {WORK}",
            "RunTools bad",
            f"infer 2 for {WORK}",
            "RunTools bad",
            f"infer 3 for {WORK}",
            f"stop completed by {WORK}",
        ],
        base(error_policy=ErrorPolicy.ignore_tool_errors()),
    ),
    Scenario(
        "a criterion of somebody's own",
        [FAIL, FAIL],
        [
            f"infer 1 for {WORK}",
            "RunTools bad",
            f"infer 2 for {WORK}",
            "RunTools bad",
            "stop guard by at-most-one-failure",
        ],
        base(
            error_policy=ErrorPolicy.ignore_tool_errors(),
            criteria=({"name": "tests.at-most-one-failure"},),
        ),
        reason=StopReason.GUARD,
        because="stopped: at-most-one-failure forbids another step",
    ),
    Scenario(
        "the same call again and again",
        [LOOK, LOOK, LOOK],
        [
            *(decision for n in (1, 2, 3) for decision in (f"infer {n} for {WORK}", "RunTools look")),
            "stop guard by RepeatedCallLimit",
        ],
        base(repeated_call_limit=3),
        reason=StopReason.GUARD,
        because="stopped: the same call returned the same result 3 of 3 times in a row",
    ),
    Scenario(
        "another call in between",
        [LOOK, LOOK, replace(LOOK, calls=("listen",)), LOOK, ANSWER],
        [
            *(f"infer 1 for {WORK}", "RunTools look", f"infer 2 for {WORK}", "RunTools look"),
            *(f"infer 3 for {WORK}", "RunTools listen", f"infer 4 for {WORK}", "RunTools look"),
            *(f"infer 5 for {WORK}", f"stop completed by {WORK}"),
        ],
        base(repeated_call_limit=3),
    ),
    Scenario(
        "a criterion that raises",
        [LOOK],
        [f"infer 1 for {WORK}", "RunTools look", "stop error by broken"],
        base(criteria=({"name": "tests.broken"},)),
        AgentStatus.FAILED,
        StopReason.ERROR,
        because="failed: broken raised ValueError",
    ),
)


def drive(scenario: Scenario, on_decision: Callable[[Decision], object]) -> ExecutionFacts:
    """Run the scenario on bare facts: `decide` and its transitions, and nothing else."""
    rules, now = scenario.plan.rules(), START
    facts, turns = ExecutionFacts().entered(now), iter(scenario.turns)
    while True:
        now += TICK
        decision = decide(facts, rules, now)
        on_decision(decision)
        match decision:
            case Infer(_, outcome):
                facts = facts.recorded(outcome) if facts.is_applied else facts
                facts = _answer_calls(facts.step_started(now), next(turns))
            case RunTools(calls) if facts.current_step:
                facts = facts.with_step(facts.current_step.settled(map(_result, calls)))
            case Stop(outcome):
                return facts.ended(outcome, rules.error_policy)
            case _:
                raise InvalidInput(f"no scenario waits for people, this one came to {decision}")


def _answer_calls(facts: ExecutionFacts, turn: Turn) -> ExecutionFacts:
    if turn.raises:
        return facts.failed(StepError.of(turn.raises))
    calls = tuple(CallFacts(f"call-{index}", name) for index, name in enumerate(turn.calls))
    return facts.with_step(
        StepFacts(facts.next_step_number, calls, turn.finish_reason, Usage(output=turn.tokens))
    )


def _result(call: CallFacts) -> CallFacts:
    error = StepError("", ErrorType.TOOL, call.name) if call.name.startswith("bad") else None
    return replace(call, error=error, digest=call.name)
