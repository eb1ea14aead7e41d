"""Executions under other policies: what is repeated, where they part, and what the record does not say."""

from dataclasses import replace
from decimal import Decimal

import pytest
from hypothesis import given, strategies as st

from everstep.agent_domain.agents.plan import REGISTERED, CriterionRef, CumulativeTimeout, ExecutionPlan
from everstep.agent_domain.errors import RateLimited
from everstep.agent_domain.loop.boundary import Boundary
from everstep.agent_domain.loop.budget import Budget, BudgetScope, BudgetUnit, ExhaustedBudget
from everstep.agent_domain.loop.continuation import ContinuationDecision
from everstep.agent_domain.loop.error_policy import ErrorPolicy
from everstep.agent_domain.loop.hook_requests import Wishes
from everstep.agent_domain.loop.loop import Infer, Stop, decide
from everstep.agent_domain.loop.status import ExecutionStatus, StopReason
from everstep.agent_domain.loop.step_error import StepError
from everstep.agent_domain.loop.step_facts import Besides
from everstep.agent_domain.loop.stop_signal import StopSignal
from everstep.agent_domain.loop.usage import Usage
from everstep.agent_domain.storage.recorded_executions import RecordedExecution, RecordedProcessing
from everstep.agent_domain.values import EMPTY, frozen_map
from everstep.agent_domain.what_if.policy_change import PolicyChange
from everstep.agent_domain.what_if.repeating import ChangedEnd, WhatIfResult, compare
from tests.agent_domain.what_if.recording import (
    ANSWER,
    FAIL,
    LOOK,
    Call,
    Recorder,
    ScriptedStep,
    recorded_run,
)
from tests.scenarios import base

UNCHANGED = PolicyChange()


@REGISTERED.function("tests.reads-bodies")
def reads_bodies(state: object) -> ContinuationDecision:
    """A criterion that needs the conversation, which a record does not have."""
    return ContinuationDecision.ALLOW if getattr(state, "messages") else ContinuationDecision.FORBID  # noqa: B009


def looks(count: int) -> list[ScriptedStep]:
    """Calls with different results, then an answer."""
    return [ScriptedStep((Call(digest=str(n)),)) for n in range(count)] + [ANSWER]


def under(record: RecordedExecution, **change: object) -> WhatIfResult:
    return compare(record, PolicyChange(**change))  # type: ignore[arg-type]


class TestTheRecordedPolicy:
    @pytest.mark.parametrize(
        ("plan", "script"),
        [
            (base(), [ANSWER]),
            (base(max_steps=3), looks(5)),
            (base(max_tokens=20), looks(5)),
            (base(timeout_seconds=2), looks(5)),
            (base(cumulative_timeout=CumulativeTimeout(seconds=2)), looks(5)),
            (base(finish_reasons=("length",)), [replace(LOOK, finish_reason="length"), ANSWER]),
            (base(), [FAIL]),
            (base(error_policy=ErrorPolicy.retry_all(2)), [FAIL, LOOK, FAIL, FAIL]),
            (base(repeated_call_limit=3), [LOOK, LOOK, LOOK]),
            (base(), [replace(LOOK, raises=RateLimited("slow"))]),
            (base(criteria=({"name": "tests.broken"},)), [LOOK, ANSWER]),
            (base(), [replace(LOOK, steered=2), replace(ANSWER, steered=1), ANSWER]),
            (base(max_steps=1), [replace(ANSWER, steered=1)]),
            (base(max_steps=2), [replace(LOOK, besides=Besides(wishes=Wishes(pause=True))), ANSWER]),
            (
                base(processes=True),
                [replace(LOOK, processing=RecordedProcessing(0.5, error=StepError("", exception="Oops")))],
            ),
            (
                base(processes=True),
                [
                    replace(
                        LOOK,
                        processing=RecordedProcessing(
                            0.5, Besides(Usage(3), wishes=Wishes(stop=StopSignal(StopReason.GUARD)))
                        ),
                    )
                ],
            ),
        ],
        ids=str,
    )
    def test_every_decision_is_reproduced(self, plan: ExecutionPlan, script: list[ScriptedStep]) -> None:
        """15.2.2"""
        record = recorded_run(plan, script)
        found = compare(record, UNCHANGED)
        assert (found.verdict, found.parts_at_step) == (ChangedEnd.SAME, None)
        assert found.decisions >= len([step for step in record.steps if step.outcome])

    def test_a_decision_that_is_not_reproduced_is_undetermined(self) -> None:
        """15.2.3: such as one of a criterion whose code is another one now."""
        record = recorded_run(base(max_steps=2), looks(4))
        other = replace(record, plan=frozen_map(base(max_steps=3).model_dump(mode="json")))
        found = compare(other, UNCHANGED)
        assert (found.verdict, found.parts_at_step) == (ChangedEnd.UNDETERMINED, 2)
        assert "does not reproduce" in found.because

    def test_the_votes_are_compared_as_well(self) -> None:
        """15.2.2"""
        record = recorded_run(base(), looks(2))
        first = record.steps[0]
        assert first.outcome
        votes = [dict(vote) for vote in first.outcome["evaluations"]]
        votes[0]["decision"] = "forbid"
        altered = replace(first, outcome=frozen_map({**first.outcome, "evaluations": votes}))
        found = compare(replace(record, steps=(altered, *record.steps[1:])), UNCHANGED)
        assert (found.verdict, found.parts_at_step) == (ChangedEnd.UNDETERMINED, 1)

    def test_an_execution_that_runs_is_examined_up_to_its_last_step(self) -> None:
        """15.2.5"""
        found = compare(recorded_run(base(), looks(3)[:3]), UNCHANGED)
        assert (found.verdict, found.decisions) == (ChangedEnd.SAME, 4)
        assert "has not ended" in found.note


class TestOtherPolicies:
    def test_fewer_steps_end_it_earlier_and_save_the_rest(self) -> None:
        """15.2.1"""
        script = [replace(step, usage=Usage(10, 5).with_cost(Decimal("0.5"))) for step in looks(5)]
        found = under(recorded_run(base(), script), max_steps=3)
        assert (found.verdict, found.parts_at_step, found.would) == (
            ChangedEnd.EARLIER,
            3,
            StopReason.STEPS_LIMIT,
        )
        assert (found.saved.tokens, found.saved.seconds, found.saved.cost_usd) == (45, 3.0, Decimal("1.5"))
        assert found.because == "stopped: 3 of 3 steps"

    def test_an_unknown_cost_of_the_rest_is_unknown(self) -> None:
        """15.2.1"""
        assert under(recorded_run(base(), looks(5)), max_steps=3).saved.cost_usd is None

    @pytest.mark.parametrize(
        ("change", "step"),
        [
            ({"max_tokens": 30}, 2),
            ({"timeout_seconds": 2.5}, 3),
            ({"cumulative_timeout_seconds": 2.5}, 3),
            ({"criteria": (CriterionRef(name="StepsLimit", params=frozen_map({"max_steps": 1})),)}, 1),
        ],
        ids=str,
    )
    def test_each_limit_ends_it_where_it_is_reached(self, change: dict[str, object], step: int) -> None:
        """15.2.1"""
        found = under(recorded_run(base(), looks(5)), **change)
        assert (found.verdict, found.parts_at_step) == (ChangedEnd.EARLIER, step)

    def test_a_wall_clock_limit_counts_waits_and_one_of_work_does_not(self) -> None:
        """15.2.1"""
        script = [replace(step, waits=10.0) for step in looks(3)]
        record = recorded_run(base(), script)
        assert under(record, timeout_seconds=15).parts_at_step == 2
        assert under(record, cumulative_timeout_seconds=15).verdict is ChangedEnd.SAME

    def test_more_steps_let_it_go_on_into_the_unknown(self) -> None:
        """15.2.1"""
        found = under(recorded_run(base(max_steps=3), looks(5)), max_steps=9)
        assert (found.verdict, found.parts_at_step, found.would) == (ChangedEnd.LATER, 3, None)
        assert found.saved.is_nothing

    def test_a_criterion_can_be_left_out(self) -> None:
        """15.2.4"""
        record = recorded_run(base(criteria=({"name": "tests.broken"},)), [LOOK, ANSWER])
        assert record.stop_reason is StopReason.ERROR
        found = under(record, without_criteria=("tests.broken",))
        assert (found.verdict, found.parts_at_step) == (ChangedEnd.LATER, 1)

    def test_another_error_policy_retries_what_ended_it(self) -> None:
        """15.2.1"""
        found = under(recorded_run(base(), [FAIL]), error_policy="retry_all")
        assert (found.verdict, found.parts_at_step) == (ChangedEnd.LATER, 1)

    def test_an_end_for_another_reason_after_the_same_step_is_otherwise(self) -> None:
        """15.2.1"""
        record = recorded_run(base(max_steps=2), looks(5))
        found = under(record, max_tokens=30, without_criteria=("StepsLimit",))
        assert (found.verdict, found.would) == (ChangedEnd.OTHERWISE, StopReason.TOKEN_LIMIT)

    def test_a_policy_that_decides_alike_is_the_same(self) -> None:
        """15.2.1"""
        assert under(recorded_run(base(), looks(3)), max_steps=10).verdict is ChangedEnd.SAME


class TestWhatTheRecordDoesNotSay:
    def test_a_criterion_that_reads_bodies_is_undetermined(self) -> None:
        """15.2.3"""
        found = under(recorded_run(base(), looks(2)), criteria=(CriterionRef(name="tests.reads-bodies"),))
        assert (found.verdict, found.parts_at_step) == (ChangedEnd.UNDETERMINED, 0)
        assert "raised" in found.because

    def test_a_reminder_that_the_model_did_not_read_is_undetermined(self) -> None:
        """15.2.3"""
        found = under(recorded_run(base(), [LOOK, LOOK, LOOK, LOOK, ANSWER]), repeated_call_limit=3)
        assert (found.verdict, found.parts_at_step) == (ChangedEnd.UNDETERMINED, 2)
        found = under(recorded_run(base(), [LOOK, LOOK, LOOK, ANSWER]), repeated_call_limit=2)
        assert (found.verdict, found.parts_at_step) == (ChangedEnd.EARLIER, 2)

    def test_times_that_were_not_recorded_decide_where_they_can(self) -> None:
        """15.2.3: rows of older releases."""
        record = recorded_run(base(), looks(3))
        old = replace(record, steps=tuple(replace(step, boundary=None) for step in record.steps))
        assert compare(old, UNCHANGED).verdict is ChangedEnd.SAME
        assert under(old, max_steps=2).verdict is ChangedEnd.EARLIER
        assert under(old, timeout_seconds=100).verdict is ChangedEnd.SAME
        found = under(old, timeout_seconds=1.5)
        assert (found.verdict, found.parts_at_step) == (ChangedEnd.UNDETERMINED, 1)

    def test_calls_without_digests_decide_where_they_can(self) -> None:
        """15.2.3: rows of older releases."""
        calls = [ScriptedStep((Call(seconds=0.1),))] * 3
        record = recorded_run(base(), [*calls, ANSWER])
        steps = [
            replace(step, calls=tuple(replace(call, digest=None) for call in step.calls))
            for step in record.steps
        ]
        old = replace(record, steps=tuple(steps))
        assert under(old, repeated_call_limit=2).verdict is ChangedEnd.UNDETERMINED
        assert under(old, repeated_call_limit=20).verdict is ChangedEnd.SAME

    def test_an_execution_without_a_plan_is_undetermined(self) -> None:
        """15.2.5"""
        found = compare(replace(recorded_run(base(), [ANSWER]), plan=EMPTY), UNCHANGED)
        assert (found.verdict, found.decisions) == (ChangedEnd.UNDETERMINED, 0)

    def test_missing_steps_are_named(self) -> None:
        """15.2.5"""
        record = recorded_run(base(), looks(3))
        found = compare(replace(record, steps=record.steps[2:]), UNCHANGED)
        assert "pruned or erased" in found.because
        found = compare(replace(record, steps=record.steps[:2]), UNCHANGED)
        assert found.because.startswith("2 of its 4 steps are stored")

    def test_a_criterion_that_is_not_loaded_is_named(self) -> None:
        """15.2.5"""
        record = recorded_run(base(), [ANSWER])
        plan = base(criteria=({"name": "tests.of-another-process"},)).model_dump(mode="json")
        found = compare(replace(record, plan=frozen_map(plan)), UNCHANGED)
        assert found.verdict is ChangedEnd.UNDETERMINED
        assert "tests.of-another-process" in found.because


class TestEndsFromOutside:
    def cancelled(self, plan: ExecutionPlan, steps: int) -> RecordedExecution:
        record = recorded_run(plan, looks(9)[:steps])
        return replace(record, status=ExecutionStatus.CANCELLED, stop_reason=StopReason.USER_REQUESTED)

    def test_a_cancel_is_no_decision_of_the_policy(self) -> None:
        """15.2.2"""
        record = self.cancelled(base(), 3)
        assert compare(record, UNCHANGED).verdict is ChangedEnd.SAME
        assert under(record, max_steps=9).verdict is ChangedEnd.SAME
        assert under(record, max_steps=2).verdict is ChangedEnd.EARLIER

    def test_a_lost_workflow_is_no_decision_of_the_policy(self) -> None:
        """15.2.2"""
        record = replace(
            recorded_run(base(), looks(9)[:3]), status=ExecutionStatus.FAILED, stop_reason=StopReason.ERROR
        )
        assert compare(record, UNCHANGED).verdict is ChangedEnd.SAME
        assert under(record, max_steps=2).parts_at_step == 2


def exhausted(unit: BudgetUnit, scope: BudgetScope = BudgetScope.EXECUTION) -> ExhaustedBudget:
    amounts = Decimal(2), Decimal(2), Decimal(0), Decimal(1)
    return ExhaustedBudget(ANSWER_ID, unit, scope, *amounts)


ANSWER_ID = recorded_run(base(), [ANSWER]).ref.execution_id


class TestBudgets:
    def stopped_by(self, budget: ExhaustedBudget, steps: int = 2) -> RecordedExecution:
        """An execution that a budget ended."""
        recorder = Recorder(base(), looks(9)[:steps])
        record = recorder.run()
        rules, facts = base().rules(), recorder.facts
        decided = decide(facts, rules, recorder.now)
        assert isinstance(decided, Infer)
        facts = facts.recorded(decided.outcome).step_started(recorder.now).budget_exhausted(budget)
        decided = decide(facts, rules, recorder.now)
        assert isinstance(decided, Stop)
        elapsed, worked = facts.at(recorder.now).clock
        final = replace(
            record.steps[-1],
            outcome=frozen_map(decided.outcome.to_dict()),
            boundary=Boundary(elapsed, worked, exhausted=budget),
        )
        return replace(
            record,
            steps=(*record.steps[:-1], final),
            status=ExecutionStatus.COMPLETED,
            stop_reason=decided.reason,
        )

    def test_an_exhausted_budget_is_a_recorded_fact(self) -> None:
        """15.2.2"""
        record = self.stopped_by(exhausted(BudgetUnit.STEPS))
        assert record.stop_reason is StopReason.STEPS_LIMIT
        assert compare(record, UNCHANGED).verdict is ChangedEnd.SAME
        assert under(record, max_tokens=10**6).verdict is ChangedEnd.SAME
        more = Budget(BudgetUnit.STEPS, Decimal(50))
        assert under(record, budgets=(more,)).verdict is ChangedEnd.LATER

    def test_a_budget_in_steps_is_exact(self) -> None:
        """15.2.6"""
        record = recorded_run(base(), looks(5))
        found = under(record, budgets=(Budget(BudgetUnit.STEPS, Decimal(3)),))
        assert (found.verdict, found.parts_at_step, found.would) == (
            ChangedEnd.EARLIER,
            3,
            StopReason.STEPS_LIMIT,
        )
        assert under(record, budgets=(Budget(BudgetUnit.STEPS, Decimal(6)),)).verdict is ChangedEnd.SAME

    def test_a_budget_in_tokens_decides_unless_the_estimate_would(self) -> None:
        """15.2.6"""
        script = [replace(step, usage=Usage(1000, 2000)) for step in looks(5)]
        record = recorded_run(base(max_tokens=None), script)
        found = under(record, budgets=(Budget(BudgetUnit.TOKENS, Decimal(3_500)),))
        assert (found.verdict, found.parts_at_step, found.would) == (
            ChangedEnd.UNDETERMINED,
            0,
            None,
        )
        assert under(record, budgets=(Budget(BudgetUnit.TOKENS, Decimal(900)),)).parts_at_step == 0
        assert under(record, budgets=(Budget(BudgetUnit.TOKENS, Decimal(10**6)),)).verdict is ChangedEnd.SAME

    def test_a_budget_in_money_uses_the_recorded_costs(self) -> None:
        """15.2.6"""
        script = [replace(step, usage=Usage(1000, 2000).with_cost(Decimal(1))) for step in looks(5)]
        record = recorded_run(base(max_tokens=None), script)
        assert under(record, budgets=(Budget(BudgetUnit.USD, Decimal(100)),)).verdict is ChangedEnd.SAME
        found = under(record, budgets=(Budget(BudgetUnit.USD, Decimal(4)),))
        assert (found.verdict, found.parts_at_step) == (ChangedEnd.UNDETERMINED, 2)
        unknown = under(recorded_run(base(), looks(3)), budgets=(Budget(BudgetUnit.USD, Decimal(4)),))
        assert (unknown.verdict, unknown.parts_at_step) == (ChangedEnd.UNDETERMINED, 0)


STEPS = st.builds(
    ScriptedStep,
    calls=st.lists(
        st.builds(
            Call,
            fails=st.booleans(),
            seconds=st.sampled_from([0.0, 0.25, 3.0]),
            digest=st.sampled_from(["a", "b"]),
            besides=st.builds(
                Besides,
                st.builds(Usage, st.integers(0, 9)),
                st.integers(0, 20),
                st.builds(Wishes, pause=st.booleans()),
            ),
        ),
        max_size=2,
    ).map(tuple),
    usage=st.builds(Usage, st.integers(0, 20), st.integers(0, 20)),
    finish_reason=st.sampled_from(["stop", "length"]),
    raises=st.sampled_from([None, None, None, RateLimited("slow"), TimeoutError()]),
    waits=st.sampled_from([0.0, 5.0]),
    steered=st.sampled_from([0, 0, 0, 1]),
    besides=st.builds(
        Besides,
        wishes=st.builds(
            Wishes,
            stop=st.sampled_from([None, None, None, StopSignal(StopReason.GUARD, source="hook")]),
            another_step=st.sampled_from([False, False, True]),
        ),
    ),
)

POLICIES = st.sampled_from(["stop_on_any_error", "retry_tool_errors", "ignore_tool_errors", "retry_all"])

LIMITS = {
    "max_steps": st.integers(1, 8),
    "max_tokens": st.integers(1, 200),
    "timeout_seconds": st.floats(0.5, 40),
    "repeated_call_limit": st.integers(1, 4),
}

PLANS = st.fixed_dictionaries(
    {"max_steps": st.integers(0, 8), "error_policy": POLICIES.map(ErrorPolicy.named)},
    optional={
        "max_tokens": st.integers(1, 200),
        "finish_reasons": st.just(("length",)),
        "repeated_call_limit": st.integers(1, 4),
        "timeout_seconds": st.floats(0.5, 40),
        "cumulative_timeout": st.builds(CumulativeTimeout, seconds=st.floats(0.5, 20)),
    },
).map(lambda fields: base(**fields))

CHANGES = st.fixed_dictionaries({}, optional={**LIMITS, "error_policy": POLICIES})


class TestAnyRun:
    @given(PLANS, st.lists(STEPS, max_size=8))
    def test_the_recorded_policy_reproduces_every_decision(
        self, plan: ExecutionPlan, script: list[ScriptedStep]
    ) -> None:
        """15.2.2: for random plans and scripts, also where values are missing as in older rows."""
        record = recorded_run(plan, script)
        assert compare(record, UNCHANGED).verdict is ChangedEnd.SAME
        old = replace(record, steps=tuple(replace(step, boundary=None) for step in record.steps))
        assert compare(old, UNCHANGED).verdict is ChangedEnd.SAME

    @given(PLANS, st.lists(STEPS, max_size=8), CHANGES)
    def test_a_verdict_is_what_a_run_under_the_other_policy_shows(
        self, plan: ExecutionPlan, script: list[ScriptedStep], given_change: dict[str, object]
    ) -> None:
        """15.2.1: the script is the same whatever the policy is, so the other run shows the truth."""
        change = PolicyChange(**given_change)  # type: ignore[arg-type]
        record = recorded_run(plan, script)
        truth = recorded_run(change.changed(plan), script)
        found = compare(record, change)
        taken, would = len(record.steps), len(truth.steps)
        match found.verdict:
            case ChangedEnd.SAME:
                assert (would, truth.status, truth.stop_reason) == (taken, record.status, record.stop_reason)
            case ChangedEnd.EARLIER:
                assert would == found.parts_at_step
                assert truth.stop_reason == found.would
            case ChangedEnd.LATER:
                assert found.parts_at_step == taken
                assert would > taken or not truth.status.is_terminal
            case ChangedEnd.OTHERWISE:
                assert would == taken == found.parts_at_step
                assert truth.stop_reason == found.would
            case ChangedEnd.UNDETERMINED:
                is_open = not record.status.is_terminal and found.parts_at_step == taken
                assert "reminder" in found.because or is_open
