"""The agent loop, as a protocol without I/O.

Call `decide` for the next action, carry it out, apply its result to the facts with the transition
on the right, and call `decide` again:

    Infer          start the step if it has not started, call the model     with_step
    RunTools       run these calls concurrently                             with_step
    RunSubagents   run these calls as child executions                      with_step
    AwaitApproval  wait until a person decides about one of these calls     with_step
    AwaitInput     wait until a person answers this call                    with_step
    AwaitBudget    wait until a person raises the exhausted budget          budget_raised
    AwaitResume    wait until the paused execution is resumed               resumed
    Process        run the processors on the complete step                  processed
    Stop           end the execution                                        ended

A complete step is recorded with the outcome that the next `Infer` or `Stop` carries, so that the
evaluation after a step is part of its record. An exception becomes a failure step, and the error
policy decides about it like about any other failure. A user's cancellation is a stop signal: abandon
the step in progress with `abandoned`, then call `decide`.

The driver (the workflow, the in-process runner, a what-if over recorded facts) adds no
policy. Nothing here reads a clock or does I/O: `now` is an argument, and `facts` have constant size. So the
same history gives the same decisions. Criteria of in-process runs may read more than facts: `view` makes
the state that they read.
"""

import warnings
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any, TypeAlias, cast

from everstep.agent_domain.loop.budget import BudgetLimit, ExhaustedBudget
from everstep.agent_domain.loop.continuation import (
    ContinuationCriteria,
    ContinuationDecision,
    ContinuationOutcome,
)
from everstep.agent_domain.loop.error_policy import ErrorPolicy
from everstep.agent_domain.loop.facts import ExecutionFacts
from everstep.agent_domain.loop.repeated_calls import LoopReminder, RepeatedCallLimit
from everstep.agent_domain.loop.status import StopReason
from everstep.agent_domain.loop.step_facts import CallFacts, CallNeed
from everstep.agent_domain.loop.views import ExecutionView


@dataclass(frozen=True, slots=True)
class Infer:
    """Call the model for step `number`."""

    number: int
    outcome: ContinuationOutcome | None = None
    """The evaluation that requested the step; None if the step was started before and interrupted."""
    hears: int = 0
    """The number of steered messages that enter the conversation before it."""
    reminder: LoopReminder | None = None
    """What the model reads first, if it repeats itself."""
    is_last_turn: bool = False
    """Whether the model has to answer now, without tools."""


@dataclass(frozen=True, slots=True)
class RunTools:
    """Run these calls, concurrently."""

    calls: tuple[CallFacts, ...]


@dataclass(frozen=True, slots=True)
class RunSubagents:
    """Run these calls as child executions, concurrently."""

    calls: tuple[CallFacts, ...]


@dataclass(frozen=True, slots=True)
class AwaitApproval:
    """Wait until a person has decided about one of these calls."""

    calls: tuple[CallFacts, ...]


@dataclass(frozen=True, slots=True)
class AwaitInput:
    """Wait until a person has answered this call."""

    call: CallFacts


@dataclass(frozen=True, slots=True)
class AwaitBudget:
    """Wait until a person has raised this budget."""

    budget: ExhaustedBudget


@dataclass(frozen=True, slots=True)
class AwaitResume:
    """Wait until the execution is resumed."""


@dataclass(frozen=True, slots=True)
class Process:
    """Run the processors on step `number`, which is complete."""

    number: int


@dataclass(frozen=True, slots=True)
class Stop:
    """End the execution."""

    outcome: ContinuationOutcome
    unheard: int = 0
    """The number of steered messages that arrived too late for this execution."""

    @property
    def reason(self) -> StopReason:
        """Why the execution ends."""
        return self.outcome.stop_reason


Decision: TypeAlias = (
    Infer | RunTools | RunSubagents | AwaitApproval | AwaitInput | AwaitBudget | AwaitResume | Process | Stop
)


@dataclass(frozen=True, slots=True)
class Rules:
    """The policies of an execution, which do not change during it."""

    criteria: ContinuationCriteria
    error_policy: ErrorPolicy = ErrorPolicy()
    parallel_tools: bool = True
    processes: bool = False
    """Whether there are processors."""
    last_turn: int | None = None
    """The step in which the model has to answer without tools; None if there is none."""


CriteriaView: TypeAlias = Callable[[ExecutionFacts], ExecutionView]
"""Makes what criteria read from facts, such as the full state with these facts (`AgentState.with_facts`)."""


def only_facts(facts: ExecutionFacts) -> ExecutionView:
    """The view of durable executions: criteria read the facts themselves."""
    return facts


def decide(facts: ExecutionFacts, rules: Rules, now: datetime, view: CriteriaView = only_facts) -> Decision:
    """Decide the next action of an execution.

    Args:
        facts: Its progress.
        rules: Its policies.
        now: The current time.
        view: What the criteria read.
    """
    given = cast("object", facts)
    if not isinstance(given, ExecutionFacts):
        facts, view = _parts_of_state(given)
    if facts.status.is_terminal:
        return Stop(facts.last_outcome or _ENDED_BEFORE)
    # Work in progress is finished before the execution pauses.
    if rules.processes and facts.awaits_processing and not _is_cancelled(facts):
        return Process(facts.step_count)
    if facts.is_paused and not _is_cancelled(facts):
        return AwaitResume()
    if facts.awaits_reply:
        awaited = facts.awaited_budget
        again = Infer(facts.next_step_number, reminder=facts.reminder)
        return AwaitBudget(awaited) if awaited else _with_turn(again, rules)
    # Calls come before anything else: providers reject a conversation with an unanswered call.
    if facts.pending:
        return _decide_calls(facts.pending if rules.parallel_tools else facts.pending[:1])
    decision = _decide_boundary(facts.at(now), rules.criteria, view)
    return _with_turn(decision, rules) if isinstance(decision, Infer) else decision


def _parts_of_state(state: Any) -> tuple[ExecutionFacts, CriteriaView]:
    """The facts and the view of a full state, which `decide` took in earlier releases."""
    warnings.warn(
        "decide takes facts: write decide(state.facts, rules, now, state.with_facts); a later release "
        "does not take a state",
        DeprecationWarning,
        stacklevel=3,
    )
    return state.facts, state.with_facts


def _decide_calls(calls: tuple[CallFacts, ...]) -> Decision:
    """Calls that do not wait for a person come first."""
    if ready := _calls_needing(CallNeed.RUN, calls):
        return RunTools(ready)
    if subagents := _calls_needing(CallNeed.SUBAGENT, calls):
        return RunSubagents(subagents)
    if unapproved := _calls_needing(CallNeed.APPROVAL, calls):
        return AwaitApproval(unapproved)
    return AwaitInput(calls[0])


def _calls_needing(need: CallNeed, calls: tuple[CallFacts, ...]) -> tuple[CallFacts, ...]:
    return tuple(call for call in calls if call.need is need)


def _decide_boundary(
    facts: ExecutionFacts, criteria: ContinuationCriteria, view: CriteriaView
) -> Infer | Stop:
    """Decide between two steps: a steered message requests one more, unless a guard forbids it."""
    if facts.exhausted:
        criteria = criteria.with_criteria(BudgetLimit(facts.exhausted))
    if facts.steered:
        steered_outcome = criteria.evaluate(view(facts.requested()))
        if steered_outcome.should_continue:
            reminder = _reminder(facts, criteria)
            return Infer(facts.next_step_number, steered_outcome, facts.steered, reminder)
    outcome = criteria.evaluate(view(facts))
    if outcome.should_continue:
        return Infer(facts.next_step_number, outcome, reminder=_reminder(facts, criteria))
    return Stop(outcome, unheard=facts.steered)


def _reminder(facts: ExecutionFacts, criteria: ContinuationCriteria) -> LoopReminder | None:
    """The reminder of a limit of repeated calls, if one is due."""
    limits = (each for each in criteria.criteria if isinstance(each, RepeatedCallLimit))
    calls = facts.current_step.calls if facts.current_step else ()
    due = (limit.reminder(facts.repeated, calls[-1].name) for limit in limits if calls)
    return next((reminder for reminder in due if reminder), None)


def _with_turn(decision: Infer, rules: Rules) -> Infer:
    """The decision, as the last turn if it is for that step."""
    return replace(decision, is_last_turn=True) if decision.number == rules.last_turn else decision


def _is_cancelled(facts: ExecutionFacts) -> bool:
    signal = facts.stop_signal
    return signal is not None and signal.reason is StopReason.USER_REQUESTED


_ENDED_BEFORE = ContinuationOutcome(ContinuationDecision.STOP, False, "AgentStatus", StopReason.COMPLETED)
