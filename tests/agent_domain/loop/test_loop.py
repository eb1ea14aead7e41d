"""The next decision in every phase of an execution, for criteria that read facts or full states alike."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any, cast
from uuid import UUID

import pytest
from hypothesis import given, strategies as st

from everstep.agent_domain.agents.drivers import (
    OnText,
    Reply,
    ToolCallingDriver,
    state_with_reply,
    state_with_results,
)
from everstep.agent_domain.agents.plan import ExecutionPlan
from everstep.agent_domain.loop.continuation import (
    ContinuationCriteria,
    ContinuationDecision,
    ContinuationOutcome,
)
from everstep.agent_domain.loop.criteria import (
    CumulativeExecutionTimeLimit,
    ErrorPresenceCheck,
    ExecutionTimeLimit,
    RetryLimit,
    StepsLimit,
    StopOnFinalDecision,
    ToolCallPresenceCheck,
)
from everstep.agent_domain.loop.error_policy import ErrorHandlingDecision, ErrorPolicy
from everstep.agent_domain.loop.facts import ExecutionFacts
from everstep.agent_domain.loop.loop import (
    AwaitApproval,
    AwaitBudget,
    AwaitInput,
    AwaitResume,
    Decision,
    Infer,
    Process,
    Rules,
    RunSubagents,
    RunTools,
    Stop,
    decide,
)
from everstep.agent_domain.loop.status import AgentStatus, StopReason
from everstep.agent_domain.loop.step_error import ErrorType, StepError
from everstep.agent_domain.loop.step_facts import CallFacts, CallNeed, StepFacts
from everstep.agent_domain.loop.stop_signal import StopSignal
from everstep.agent_domain.loop.usage import Usage
from everstep.agent_domain.messages.cached_context import InferenceRequest
from everstep.agent_domain.messages.messages import user
from everstep.agent_domain.state.state import AgentState
from everstep.agent_domain.state.steps import InferenceResponse
from everstep.agent_domain.tools.tools import ToolCall, ToolExecution
from tests.agent_domain.executions import (
    CANCEL,
    DONE,
    GO_ON,
    NOON,
    a_call,
    a_failed_call,
    a_failed_step,
    a_step,
    after,
    an_answered_call,
    an_execution,
    names,
)

RULES = ExecutionPlan().rules()
ONE_AT_A_TIME = ExecutionPlan(parallel_tools=False).rules()
RUN, APPROVAL, INPUT, SUBAGENT = CallNeed


def up_to(steps: int) -> Rules:
    """Rules that allow this many steps."""
    return ExecutionPlan(max_steps=steps).rules()


def next_after(facts: ExecutionFacts, rules: Rules = RULES, seconds: float = 0) -> Decision:
    return decide(facts, rules, after(seconds))


def waiting_for(*calls: CallFacts) -> ExecutionFacts:
    """A step whose reply has these calls."""
    return an_execution(a_step(*calls))


def why(decision: Decision) -> tuple[bool, str, StopReason]:
    assert isinstance(decision, Infer | Stop)
    assert decision.outcome is not None
    return isinstance(decision, Infer), decision.outcome.resolved_by, decision.outcome.stop_reason


# --- Before the first step ---


def test_an_execution_begins_by_asking_the_model() -> None:
    """2.6.1: evaluation happens before the first step; a step follows because nothing has run yet."""
    decision = next_after(ExecutionFacts())

    assert why(decision) == (True, "ToolCallPresenceCheck", StopReason.COMPLETED)
    assert isinstance(decision, Infer)
    assert (decision.number, decision.hears) == (1, 0)


def test_a_limit_may_allow_no_step_at_all() -> None:
    """2.6.1: StepsLimit(0) executes none."""
    assert why(next_after(ExecutionFacts(), up_to(0))) == (False, "StepsLimit", StopReason.STEPS_LIMIT)


def test_an_execution_that_is_cancelled_before_it_began_never_begins() -> None:
    """8.2.1: a cancelled pending execution never starts."""
    decision = next_after(ExecutionFacts().signalled(CANCEL))

    assert isinstance(decision, Stop)
    assert decision.reason is StopReason.USER_REQUESTED
    assert decision.outcome.resolved_by == "StopSignal"


# --- During the model call ---


def test_a_missing_reply_is_requested() -> None:
    """1.1.1: an execution continues in the step it was in; its reason was stated before."""
    first = ExecutionFacts().step_started(NOON)
    second = an_execution(a_step(an_answered_call())).recorded(GO_ON).step_started(NOON)

    assert next_after(first) == Infer(1)
    assert next_after(second) == Infer(2)
    assert Infer(1) == Infer(1, outcome=None, hears=0)


def test_no_criterion_interrupts_a_step() -> None:
    """2.6.1: evaluation is before the first step and after each, not within one."""
    begun = ExecutionFacts().step_started(NOON)
    rules = ExecutionPlan(max_steps=0, timeout_seconds=1).rules()

    assert next_after(begun.signalled(StopSignal(StopReason.GUARD)), rules, 60) == Infer(1)
    assert next_after(begun.with_step(a_step(a_call())), rules, 60) == RunTools((a_call(),))


# --- While calls wait for their results ---


def test_calls_run_at_the_same_time() -> None:
    """5.4.1: unless the agent was built otherwise."""
    calls = a_call("a"), a_call("b"), a_call("c")

    assert next_after(waiting_for(*calls)) == RunTools(calls)


def test_calls_run_one_after_the_other_in_response_order() -> None:
    """5.4.1: with_parallel_tools(False)."""
    calls = a_call("a"), a_call("b"), a_call("c")

    assert next_after(waiting_for(*calls), ONE_AT_A_TIME) == RunTools(calls[:1])
    answered = waiting_for(an_answered_call("a"), *calls[1:])
    assert next_after(answered, ONE_AT_A_TIME) == RunTools((calls[1],))


def test_a_call_with_a_result_is_not_run_again() -> None:
    """1.1.3: each tool call gets exactly one recorded result, a failure too."""
    facts = waiting_for(an_answered_call("a"), a_call("b"), a_failed_call("c"), a_call("d"))

    assert next_after(facts) == RunTools((a_call("b"), a_call("d")))


@pytest.mark.parametrize(
    ("needs", "expected"),
    [
        ([APPROVAL, RUN, INPUT, SUBAGENT, RUN], (RunTools, ["1", "4"])),
        ([APPROVAL, INPUT, SUBAGENT, SUBAGENT], (RunSubagents, ["2", "3"])),
        ([INPUT, APPROVAL, APPROVAL], (AwaitApproval, ["1", "2"])),
        ([INPUT, INPUT], (AwaitInput, ["0"])),
    ],
)
def test_calls_without_a_need_for_people_go_first(
    needs: list[CallNeed], expected: tuple[type, list[str]]
) -> None:
    """8.4.1, 8.5.2, 8.6.2: approvals together, questions one after the other."""
    decision = next_after(waiting_for(*(a_call(str(i), need) for i, need in enumerate(needs))))
    calls = (decision.call,) if isinstance(decision, AwaitInput) else getattr(decision, "calls", ())

    assert (type(decision), names(calls)) == expected


@pytest.mark.parametrize(
    ("need", "expected"),
    [
        (RUN, RunTools((a_call("a", RUN),))),
        (SUBAGENT, RunSubagents((a_call("a", SUBAGENT),))),
        (APPROVAL, AwaitApproval((a_call("a", APPROVAL),))),
        (INPUT, AwaitInput(a_call("a", INPUT))),
    ],
)
def test_sequential_calls_wait_for_people_too(need: CallNeed, expected: Decision) -> None:
    """5.4.1, 8.4.1: the first call is first, with any need."""
    assert next_after(waiting_for(a_call("a", need), a_call("b")), ONE_AT_A_TIME) == expected


def test_an_approved_call_runs() -> None:
    """8.6.2: approve."""
    step = a_step(a_call("a", APPROVAL), a_call("b", APPROVAL))
    approved = an_execution(step).with_step(step.needing("b", RUN))

    assert next_after(approved) == RunTools((a_call("b"),))
    done = approved.with_step(step.needing("b", RUN).settled([a_call("b")]))
    assert next_after(done) == AwaitApproval((a_call("a", APPROVAL),))


# --- Between two steps ---


def test_a_step_with_calls_is_followed_by_another() -> None:
    """2.5: the current step's response has tool calls."""
    decision = next_after(an_execution(a_step(an_answered_call())))

    assert why(decision) == (True, "ToolCallPresenceCheck", StopReason.COMPLETED)
    assert isinstance(decision, Infer)
    assert decision.number == 2


def test_an_answer_ends_the_execution() -> None:
    """2.2.2: no work is left."""
    decision = next_after(an_execution(a_step(an_answered_call()), a_step()))

    assert why(decision) == (False, "ToolCallPresenceCheck", StopReason.COMPLETED)
    assert isinstance(decision, Stop)
    assert (decision.reason, decision.unheard) == (StopReason.COMPLETED, 0)


def test_the_next_decision_is_the_same_once_the_step_is_recorded() -> None:
    """1.1.1: a worker that is lost between recording and acting changes nothing."""
    for step in (a_step(), a_step(an_answered_call()), a_failed_step()):
        facts = an_execution(step)
        assert next_after(facts.recorded(GO_ON)) == next_after(facts)


def test_a_failed_step_is_retried_until_the_policy_stops() -> None:
    """3.3.1: n = 2: first failure retry, second stop."""
    rules = ExecutionPlan(error_policy=ErrorPolicy.retry_all(2)).rules()
    once, twice = an_execution(a_failed_step()), an_execution(a_failed_step(), a_failed_step())

    assert why(next_after(once, rules)) == (True, "ToolCallPresenceCheck", StopReason.COMPLETED)
    assert why(next_after(twice, rules)) == (False, "ErrorPolicyCriterion", StopReason.ERROR)


def test_an_exception_is_judged_like_any_failure() -> None:
    """4.5.4: it becomes a failure step and the error policy decides."""
    facts = ExecutionFacts().step_started(NOON).failed(StepError("late", ErrorType.TIMEOUT))
    retrying = ExecutionPlan(error_policy=ErrorPolicy.retry_tool_errors()).rules()

    assert why(next_after(facts)) == (False, "ErrorPolicyCriterion", StopReason.ERROR)
    assert next_after(facts, retrying) == Infer(2, retrying.criteria.evaluate(facts))


def test_the_limits_use_the_given_time() -> None:
    """1.1.2: time is an argument; 2.7: now - execution_started_at."""
    facts = an_execution(a_step(an_answered_call()))
    rules = Rules(ContinuationCriteria(ExecutionTimeLimit(60), ToolCallPresenceCheck()))

    assert why(next_after(facts, rules, 59))[0]
    assert why(next_after(facts, rules, 60)) == (False, "ExecutionTimeLimit", StopReason.TIME_LIMIT)
    assert why(next_after(facts.resumed(after(3600)), rules, 3659))[0]


def test_a_stop_signal_takes_effect_at_the_next_boundary() -> None:
    """2.4.1, 2.4.2: from any source."""
    facts = an_execution(a_step(an_answered_call())).signalled(StopSignal(StopReason.GUARD, "Enough"))
    decision = next_after(facts)

    assert why(decision) == (False, "StopSignal", StopReason.GUARD)


def test_a_continuation_request_causes_one_more_step() -> None:
    """2.4.2: it is cleared when that step starts."""
    facts = an_execution(a_step()).requested()
    after_it = facts.recorded(GO_ON).step_started(NOON).with_step(a_step())

    assert why(next_after(facts)) == (True, "ContinuationRequest", StopReason.COMPLETED)
    assert not why(next_after(after_it))[0]


# --- Steered messages ---


def test_a_steered_message_causes_one_more_step_that_receives_it() -> None:
    """8.3.1: inserted at the next step boundary, counting as a continuation request there."""
    decision = next_after(an_execution(a_step()).steered_by(2))

    assert why(decision) == (True, "ContinuationRequest", StopReason.COMPLETED)
    assert isinstance(decision, Infer)
    assert (decision.number, decision.hears) == (2, 2)


def test_a_steered_message_is_inserted_although_there_was_work_anyway() -> None:
    """8.3.1: at the boundary before the first step, too."""
    working = next_after(an_execution(a_step(an_answered_call())).steered_by())
    starting = next_after(ExecutionFacts().steered_by())

    for decision in (working, starting):
        assert isinstance(decision, Infer)
        assert (decision.hears, why(decision)[1]) == (1, "ToolCallPresenceCheck")


def test_a_steered_message_never_comes_between_a_call_and_its_result() -> None:
    """8.3.1: after the step is recorded."""
    assert next_after(waiting_for(a_call()).steered_by()) == RunTools((a_call(),))
    assert next_after(ExecutionFacts().step_started(NOON).steered_by()) == Infer(1)


def test_a_steered_message_outweighs_a_hook_that_wanted_to_stop() -> None:
    """8.3.1, 2.4.2: as a continuation request it suppresses a pending signal."""
    decision = next_after(an_execution(a_step()).signalled(StopSignal(StopReason.GUARD)).steered_by())

    assert why(decision) == (True, "ContinuationRequest", StopReason.COMPLETED)


@pytest.mark.parametrize(
    ("facts", "rules", "resolved_by", "reason"),
    [
        # Without the message there is an answer: the limit forbids further work only.
        (an_execution(a_step()), up_to(1), "ToolCallPresenceCheck", StopReason.COMPLETED),
        (an_execution(a_step(an_answered_call())), up_to(1), "StepsLimit", StopReason.STEPS_LIMIT),
        (an_execution(a_failed_step()), RULES, "ErrorPolicyCriterion", StopReason.ERROR),
        (an_execution(a_step()).signalled(CANCEL), RULES, "StopSignal", StopReason.USER_REQUESTED),
    ],
)
def test_a_steered_message_that_a_guard_forbids_is_not_inserted(
    facts: ExecutionFacts, rules: Rules, resolved_by: str, reason: StopReason
) -> None:
    """8.3.1: the boundary is evaluated without it, and it is returned to the queue."""
    decision = next_after(facts.steered_by(3), rules)

    assert decision == Stop(rules.criteria.evaluate(facts.at(NOON)), unheard=3)
    assert why(decision) == (False, resolved_by, reason)


# --- Pausing and cancelling ---


@pytest.mark.parametrize(
    "facts",
    [
        ExecutionFacts(),
        ExecutionFacts().step_started(NOON),
        waiting_for(a_call()),
        an_execution(a_step(an_answered_call())),
        an_execution(a_step()),
        an_execution(a_step()).steered_by(),
        an_execution(a_step()).signalled(StopSignal(StopReason.GUARD)),
    ],
)
def test_a_paused_execution_waits_and_continues_where_it_was(facts: ExecutionFacts) -> None:
    """8.4.1: it resumes as the same execution in the same step."""
    assert next_after(facts.paused()) == AwaitResume()
    assert next_after(facts.paused().resumed(NOON)) == next_after(facts)


@pytest.mark.parametrize(
    "facts",
    [
        ExecutionFacts(),
        ExecutionFacts().step_started(NOON),
        waiting_for(a_call("a", INPUT), a_failed_call("b"), a_call("c")),
        an_execution(a_step(an_answered_call())),
        an_execution(a_step()),
        an_execution(a_failed_step()).recorded(GO_ON).step_started(NOON),
    ],
)
@pytest.mark.parametrize("parallel_tools", [False, True])
@pytest.mark.parametrize("paused", [False, True])
def test_cancelling_gives_the_step_up_and_stops(
    facts: ExecutionFacts, parallel_tools: bool, paused: bool
) -> None:
    """8.2.1: stop reason user_requested, also for a paused execution, and despite failures in the step."""
    rules = ExecutionPlan(error_policy=ErrorPolicy.retry_all(), parallel_tools=parallel_tools).rules()
    cancelled = (facts.paused() if paused else facts).signalled(CANCEL).abandoned()
    decision = next_after(cancelled, rules)

    assert why(decision) == (False, "StopSignal", StopReason.USER_REQUESTED)
    assert isinstance(decision, Stop)
    assert cancelled.ended(decision.outcome, rules.error_policy).status is AgentStatus.COMPLETED


# --- After the end ---


@pytest.mark.parametrize("status", [AgentStatus.COMPLETED, AgentStatus.FAILED])
@pytest.mark.parametrize(
    "facts",
    [
        ExecutionFacts(),
        ExecutionFacts().step_started(NOON),
        waiting_for(a_call()),
        an_execution(a_step(an_answered_call())).requested().steered_by(),
        an_execution(a_step()).paused(),
    ],
)
def test_an_ended_execution_stays_ended(facts: ExecutionFacts, status: AgentStatus) -> None:
    """4.5.3, 8.2.1: no decision follows a terminal status, with the outcome that ended it."""
    over = replace(facts, status=status, last_outcome=DONE)

    assert next_after(over) == Stop(DONE)


def test_an_execution_that_ended_without_an_outcome_is_reported() -> None:
    """4.5.3: a state that was passed in with a terminal status."""
    decision = next_after(ExecutionFacts(status=AgentStatus.COMPLETED))

    assert why(decision) == (False, "AgentStatus", StopReason.COMPLETED)


# --- The same history, the same decisions ---


class Silent:
    """A model that is never called: the test makes up the replies."""

    async def respond(self, request: InferenceRequest, on_text: OnText) -> InferenceResponse:
        raise AssertionError("nobody asks")


DRIVER = ToolCallingDriver(Silent())


@dataclass
class Twins:
    """The same execution twice: as bare facts and as a full state."""

    facts: ExecutionFacts
    state: AgentState

    def both(self, facts: Callable[[ExecutionFacts], ExecutionFacts]) -> None:
        """The result, which must be the same for both."""
        self.facts, self.state = facts(self.facts), replace(self.state, facts=facts(self.state.facts))

    def begins(self) -> None:
        self.facts, self.state = self.facts.step_started(NOON), self.state.with_step_started(NOON)

    def is_answered(self, step: StepFacts) -> None:
        number = self.facts.recorded_steps + 1
        step = replace(step, number=number, calls=tuple(replace(c, id=f"{number}{c.id}") for c in step.calls))
        self.facts = self.facts.with_step(step)
        calls = tuple(ToolCall(call.id, call.name) for call in step.calls)
        response = InferenceResponse("Hm", calls, step.finish_reason, step.usage)
        needs = {call.id: call.need for call in step.calls}
        reply = Reply(response, errors=step.own_errors)
        self.state = state_with_reply(DRIVER, self.state, reply, step.seconds, lambda call: needs[call.id])

    def fails(self, error: StepError) -> None:
        self.facts, self.state = self.facts.failed(error, 0.5), self.state.failed(error, NOON, 0.5)

    def settles(self, calls: list[CallFacts]) -> None:
        assert self.facts.current_step
        self.facts = self.facts.with_step(self.facts.current_step.settled(calls, 0.25))
        executions = [ToolExecution(ToolCall(c.id, c.name), "found", c.error, NOON, NOON) for c in calls]
        self.state = state_with_results(DRIVER, self.state, executions, 0.25)

    def approves(self, call: CallFacts) -> None:
        assert self.facts.current_step
        assert self.state.current_step
        self.facts = self.facts.with_step(self.facts.current_step.needing(call.id, RUN))
        step = self.state.current_step
        self.state = self.state.with_current_step(replace(step, needs=step.needs.merged({call.id: RUN})))

    def is_cancelled(self) -> None:
        self.facts = self.facts.signalled(CANCEL).abandoned()
        self.state = self.state.with_stop_signal(CANCEL).abandoned(NOON, DRIVER.outputs)

    def records(self, outcome: ContinuationOutcome | None) -> None:
        if self.facts.is_applied:
            self.facts, self.state = self.facts.recorded(outcome), self.state.recorded(outcome, NOON)

    def ends(self, stop: Stop, policy: ErrorPolicy) -> None:
        self.facts = self.facts.ended(stop.outcome, policy)
        self.state = self.state.ended(stop.outcome, policy, NOON)


def errors() -> st.SearchStrategy[StepError]:
    return st.builds(StepError, st.just("boom"), st.sampled_from([None, *ErrorType]))


@st.composite
def replies(draw: st.DrawFn) -> StepFacts:
    needs = draw(st.lists(st.sampled_from([RUN, RUN, APPROVAL, INPUT, SUBAGENT]), max_size=3))
    return StepFacts(
        1,
        tuple(a_call(f"call-{i}", need) for i, need in enumerate(needs)),
        draw(st.sampled_from(["stop", "length"])),
        Usage(draw(st.integers(0, 9))),
        own_errors=tuple(draw(st.lists(errors(), max_size=1))),
        seconds=draw(st.sampled_from([0.0, 0.5, 2.0])),
    )


@st.composite
def some_rules(draw: st.DrawFn) -> Rules:
    handling = st.sampled_from(list(ErrorHandlingDecision))
    decisions: dict[str, Any] = {f"on_{kind}_error": draw(handling) for kind in ErrorType}
    plan = ExecutionPlan(
        max_steps=draw(st.none() | st.integers(0, 5)),
        max_tokens=draw(st.none() | st.integers(1, 30)),
        finish_reasons=draw(st.none() | st.just(("length",))),
        error_policy=ErrorPolicy(**decisions, max_retries=draw(st.integers(0, 3))),
        parallel_tools=draw(st.booleans()),
    )
    own = st.sampled_from(
        [ErrorPresenceCheck(), RetryLimit(2), StopOnFinalDecision(), CumulativeExecutionTimeLimit(4)]
    )
    rules = plan.rules()
    return replace(rules, criteria=rules.criteria.with_criteria(*draw(st.lists(own, max_size=2))))


def goes_on(twins: Twins, decision: Decision, draw: Callable[[st.SearchStrategy[Any]], Any]) -> None:
    """Carry out the decision with random results."""
    match decision:
        case Infer(outcome=outcome):
            if not twins.facts.awaits_reply:
                twins.records(outcome)
                twins.begins()
            if draw(st.integers(0, 4)):
                twins.is_answered(draw(replies()))
            else:
                twins.fails(draw(errors()))
        case RunTools(calls) | RunSubagents(calls):
            failing = draw(st.lists(st.none() | errors(), min_size=len(calls), max_size=len(calls)))
            named = [e and replace(e, tool_name=c.name) for e, c in zip(failing, calls, strict=True)]
            settled = [replace(c, error=e) for c, e in zip(calls, named, strict=True)]
            twins.settles(settled[: draw(st.integers(1, len(settled)))])
        case AwaitApproval(calls):
            twins.approves(draw(st.sampled_from(calls)))
        case AwaitInput(call):
            twins.settles([call])
        case AwaitBudget() | AwaitResume():
            twins.both(lambda facts: facts.budget_raised().resumed(NOON))
        case Process():
            twins.both(lambda facts: facts.processed())
        case Stop():
            raise AssertionError("it is over")


def is_disturbed(twins: Twins, draw: Callable[[st.SearchStrategy[Any]], Any]) -> None:
    """A random event from outside, or none."""
    match draw(st.sampled_from(["", "", "", "", "pause", "cancel", "halt", "request", "steer", "exception"])):
        case "pause":
            twins.both(ExecutionFacts.paused)
        case "cancel":
            twins.is_cancelled()
        case "halt":
            reason = draw(st.sampled_from([StopReason.GUARD, StopReason.TOKEN_LIMIT]))
            twins.both(lambda facts: facts.signalled(StopSignal(reason)))
        case "request":
            twins.both(ExecutionFacts.requested)
        case "steer":
            twins.both(ExecutionFacts.steered_by)
        case "exception":
            if twins.facts.is_applied:
                twins.fails(draw(errors()))
        case _:
            pass


def open_call_ids(state: AgentState) -> list[str]:
    """Calls of the conversation that have no result after them."""
    open_calls: list[str] = []
    for message in state.messages:
        open_calls += [call["id"] for call in message.calls]
        answered = message.metadata.get("tool_call_id")
        open_calls = [call_id for call_id in open_calls if call_id != answered]
    return open_calls


@given(some_rules(), st.data())
def test_facts_and_state_of_the_same_history_are_decided_alike(rules: Rules, data: st.DataObject) -> None:
    """1.1.2: a decision is a function of what happened; 1.1.5: no call is left without a result."""
    state = AgentState.empty().with_messages(user("Go")).identified(UUID(int=1), UUID(int=2)).entered(NOON)
    twins = Twins(replace(state.facts), state)
    for _ in range(25):
        decision = decide(twins.facts, rules, NOON)
        assert decide(twins.facts, rules, NOON) == decision
        assert decide(twins.state.facts, rules, NOON, twins.state.with_facts) == decision
        assert open_call_ids(twins.state) == []
        if isinstance(decision, Stop):
            twins.ends(decision, rules.error_policy)
            break
        goes_on(twins, decision, data.draw)
        is_disturbed(twins, data.draw)
    assert without_bodies(twins.facts) == without_bodies(twins.state.facts)
    assert twins.state.step_count == len(twins.state.steps) == twins.facts.step_count


def test_criteria_read_what_the_view_makes_of_the_facts() -> None:
    """2.1.1: in-process a criterion reads texts, and the clock and the requests of the moment."""
    read = list[tuple[str, bool, datetime | None]]()

    def stops(state: AgentState) -> ContinuationDecision:
        read.append((state.task, state.continuation_requested, state.state_info.updated_at))
        return ContinuationDecision.STOP

    state = AgentState.empty().with_messages("Go").with_facts(an_execution(a_step()).steered_by())
    rules = Rules(ContinuationCriteria(ContinuationCriteria.when(stops)))

    decision = decide(state.facts, rules, after(1), state.with_facts)

    assert isinstance(decision, Infer)
    assert read == [("Go", True, after(1))]


def test_a_state_is_decided_with_a_warning() -> None:
    """1.1.2: earlier releases took a full state."""
    state = AgentState.empty().with_messages("Go").with_facts(an_execution(a_step()))

    with pytest.warns(DeprecationWarning, match=r"decide\(state.facts, rules, now, state.with_facts\)"):
        decision = decide(cast("Any", state), RULES, NOON)

    assert decision == decide(state.facts, RULES, NOON)


def without_bodies(facts: ExecutionFacts) -> ExecutionFacts:
    """The texts of errors stay with the full state."""
    step = facts.current_step
    if step is None:
        return facts
    calls = tuple(replace(c, error=c.error and replace(c.error, message="")) for c in step.calls)
    own = tuple(replace(error, message="") for error in step.own_errors)
    return replace(facts, current_step=replace(step, calls=calls, own_errors=own))


def test_every_rule_is_looked_up_in_the_given_plan() -> None:
    """1.1.2: other rules, another decision, about the same facts."""
    facts = an_execution(a_step(an_answered_call()))
    never = ContinuationCriteria(ContinuationCriteria.when(lambda _state: ContinuationDecision.FORBID))

    assert why(next_after(facts, Rules(never))) == (False, "CallableCriterion", StopReason.GUARD)
    assert why(next_after(facts, Rules(ContinuationCriteria()))) == (
        False,
        "ContinuationCriteria",
        StopReason.COMPLETED,
    )
    assert why(next_after(facts, Rules(ContinuationCriteria(StepsLimit(2)))))[:2] == (True, "aggregate")
