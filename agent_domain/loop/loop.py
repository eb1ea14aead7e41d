"""The agent loop, as a protocol without I/O.

Ask `decide` what comes next, carry it out, fold what happened into the state, ask again:

    Infer          begin the step if it has not begun, ask the model        with_step
    RunTools       run these calls, all at once                             with_step
    RunSubagents   run these calls as agents of their own                   with_step
    AwaitApproval  a person has to allow these calls                        with_step
    AwaitInput     a person has to answer this one                          with_step
    AwaitResume    somebody paused the execution                            resumed
    Process        show processors the step that is complete                processed
    Stop           the execution ends                                       ended

A step that is complete is recorded with the outcome that the next `Infer` or `Stop` carries,
so that the evaluation after a step is part of its record. An exception is folded in as a
failure step, and the error policy decides like about any other. A person's cancel is a stop
signal: give the step under way up with `abandoned`, then ask.

Whoever drives this (the workflow, the in-process runner, a what-if over recorded facts) adds no
policy. Nothing here knows the time or the world: `now` is an argument, and `state` is either the
constant-size `ExecutionFacts` or a full `AgentState`; the same history gives the same decisions.
"""

from dataclasses import dataclass
from datetime import datetime
from typing import TypeAlias

from everstep.agent_domain.loop.continuation import (
    ContinuationCriteria,
    ContinuationDecision,
    ContinuationOutcome,
)
from everstep.agent_domain.loop.error_policy import ErrorPolicy
from everstep.agent_domain.loop.status import StopReason
from everstep.agent_domain.loop.step_facts import CallFacts, CallNeed
from everstep.agent_domain.loop.views import LoopState


@dataclass(frozen=True, slots=True)
class Infer:
    """Ask the model for step `number`."""

    number: int
    outcome: ContinuationOutcome | None = None
    """Why the step follows; None when it had begun before and was interrupted."""
    hears: int = 0
    """How many steered messages enter the conversation before it."""


@dataclass(frozen=True, slots=True)
class RunTools:
    """Run these calls, concurrently."""

    calls: tuple[CallFacts, ...]


@dataclass(frozen=True, slots=True)
class RunSubagents:
    """Run these calls as executions of their own, concurrently."""

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
class AwaitResume:
    """Wait until somebody resumes the execution."""


@dataclass(frozen=True, slots=True)
class Process:
    """Let processors look at step `number`, which is complete."""

    number: int


@dataclass(frozen=True, slots=True)
class Stop:
    """End the execution."""

    outcome: ContinuationOutcome
    unheard: int = 0
    """Steered messages that came too late for this execution."""

    @property
    def reason(self) -> StopReason:
        """Why the execution ends."""
        return self.outcome.stop_reason


Decision: TypeAlias = (
    Infer | RunTools | RunSubagents | AwaitApproval | AwaitInput | AwaitResume | Process | Stop
)


@dataclass(frozen=True, slots=True)
class Rules:
    """What governs an execution from its first step to its last."""

    criteria: ContinuationCriteria
    error_policy: ErrorPolicy = ErrorPolicy()
    parallel_tools: bool = True
    processes: bool = False
    """Whether there are processors."""


def decide(state: LoopState, rules: Rules, now: datetime) -> Decision:
    """What comes next."""
    if state.status.is_terminal:
        return Stop(state.last_outcome or _ENDED_BEFORE)
    # The work under way is done before anybody pauses.
    if rules.processes and state.awaits_processing and not _is_cancelled(state):
        return Process(state.next_step_number - 1)
    if state.is_paused and not _is_cancelled(state):
        return AwaitResume()
    if state.awaits_reply:
        return Infer(state.next_step_number)
    # Calls before anything else: no conversation keeps a call without a result.
    if state.pending:
        return _settle(state.pending if rules.parallel_tools else state.pending[:1])
    return _boundary(state.at(now), rules.criteria)


def _settle(calls: tuple[CallFacts, ...]) -> Decision:
    """What can go on without a person goes first."""
    if ready := _needing(CallNeed.RUN, calls):
        return RunTools(ready)
    if subagents := _needing(CallNeed.SUBAGENT, calls):
        return RunSubagents(subagents)
    if unapproved := _needing(CallNeed.APPROVAL, calls):
        return AwaitApproval(unapproved)
    return AwaitInput(calls[0])


def _needing(need: CallNeed, calls: tuple[CallFacts, ...]) -> tuple[CallFacts, ...]:
    return tuple(call for call in calls if call.need is need)


def _boundary(state: LoopState, criteria: ContinuationCriteria) -> Infer | Stop:
    """Between two steps: a steered message asks for one more, unless a guard forbids it."""
    if state.steered:
        heard = criteria.evaluate(state.requested())
        if heard.should_continue:
            return Infer(state.next_step_number, heard, hears=state.steered)
    outcome = criteria.evaluate(state)
    if outcome.should_continue:
        return Infer(state.next_step_number, outcome)
    return Stop(outcome, unheard=state.steered)


def _is_cancelled(state: LoopState) -> bool:
    signal = state.stop_signal
    return signal is not None and signal.reason is StopReason.USER_REQUESTED


_ENDED_BEFORE = ContinuationOutcome(ContinuationDecision.STOP, False, "AgentStatus", StopReason.COMPLETED)
