"""The sums of a what-if."""

from dataclasses import replace
from decimal import Decimal
from uuid import uuid4

from everstep.agent_domain.ids import ExecutionRef, subagent_id
from everstep.agent_domain.loop.status import ExecutionStatus
from everstep.agent_domain.loop.step_facts import Besides
from everstep.agent_domain.loop.usage import Usage
from everstep.agent_domain.pricing.prices import Prices
from everstep.agent_domain.storage.recorded_executions import RecordedExecution
from everstep.agent_domain.values import EMPTY
from everstep.agent_domain.what_if.policy_change import PolicyChange
from everstep.agent_domain.what_if.repeating import ChangedEnd, compare
from everstep.agent_domain.what_if.report import MOST_REASONS, OTHER_REASONS, WhatIfReport, comparison_data
from tests.agent_domain.what_if.recording import ANSWER, LOOK, Call, ScriptedStep, recorded_run
from tests.scenarios import base

TWO_STEPS = PolicyChange(max_steps=2)


def report_of(change: PolicyChange, *records: RecordedExecution) -> WhatIfReport:
    report = WhatIfReport()
    for record in records:
        report.add(record, compare(record, change))
    return report


def priced(step: ScriptedStep) -> ScriptedStep:
    return replace(step, usage=Usage(10).with_cost(Decimal("0.25")))


def test_executions_are_counted_by_verdict() -> None:
    """15.2.1: counts are whole numbers."""
    long = recorded_run(base(), [*[priced(LOOK)] * 3, priced(ANSWER)])
    cut = recorded_run(base(max_steps=1), [LOOK] * 3)
    lost = replace(long, plan=EMPTY)
    open_ = replace(recorded_run(base(), [LOOK]), status=ExecutionStatus.RUNNING)
    assert report_of(TWO_STEPS, long, cut, recorded_run(base(), [ANSWER]), lost, open_).to_dict() == {
        "examined": 5,
        "ended_earlier": 1,
        "ended_later": 1,
        "undetermined": 1,
        "differing": 2,
        "not_ended": 1,
        "tokens_saved": 20,
        "cost_saved": 0.5,
        "seconds_saved": 2.0,
    }


def test_an_execution_is_written_with_the_step_where_it_parts() -> None:
    """15.2.1"""
    record = recorded_run(base(), [*[priced(LOOK)] * 3, priced(ANSWER)])
    data = comparison_data(compare(record, TWO_STEPS))
    assert data == {
        "id": str(record.ref.execution_id),
        "parts_at_step": 2,
        "agent": "agent",
        "verdict": "earlier",
        "status": "completed",
        "stop_reason": "completed",
        "would_stop_by": "steps_limit",
        "because": "stopped: 2 of 2 steps",
        "tokens_saved": 20,
        "cost_saved": 0.5,
        "seconds_saved": 2.0,
        "note": "",
    }


def test_the_number_of_reasons_is_bounded() -> None:
    """15.2.3"""
    report, record = WhatIfReport(), recorded_run(base(), [ANSWER])
    found = replace(compare(record, PolicyChange()), verdict=ChangedEnd.UNDETERMINED)
    for number in range(MOST_REASONS + 5):
        report.add(record, replace(found, because=f"reason {number}"))
    assert len(report.reasons) == MOST_REASONS + 1
    assert report.reasons[OTHER_REASONS] == 5


class TestSubagents:
    def family(self) -> tuple[RecordedExecution, RecordedExecution]:
        """A child of four steps, and its parent, which starts it in its third step."""
        child = recorded_run(base(), [LOOK, LOOK, LOOK, ANSWER])
        tokens = sum(step.facts.usage.total for step in child.steps if step.facts)
        hire = Call("hire", besides=Besides(child_tokens=tokens), starts_child=True)
        parent = recorded_run(base(), [LOOK, LOOK, ScriptedStep((hire,)), ANSWER])
        parent = replace(parent, ref=ExecutionRef(uuid4()))
        ref = ExecutionRef(subagent_id(parent.ref.execution_id, parent.steps[2].calls[0].id))
        return replace(child, ref=ref, parent_execution_id=parent.ref.execution_id), parent

    def test_what_a_subagent_saves_counts_once_if_its_parent_ends_before_it(self) -> None:
        """15.2.1"""
        child, parent = self.family()
        report = report_of(TWO_STEPS, child, parent)
        assert report.differing == 2
        # The last two steps of the parent, and all of the child.
        assert report.saved.tokens == 2 * 15 + 4 * 15
        assert report.families.waiting == {}

    def test_what_a_subagent_saves_counts_if_its_parent_goes_on(self) -> None:
        """15.2.1"""
        child, parent = self.family()
        report = WhatIfReport()
        report.add(child, compare(child, TWO_STEPS))
        report.add(parent, compare(parent, PolicyChange(max_steps=9)))
        assert report.saved.tokens == 2 * 15


def test_other_prices_change_what_was_paid() -> None:
    """15.2.6"""
    record = replace(recorded_run(base(), [priced(LOOK), priced(ANSWER)]), preset="small")
    cheap = PolicyChange(prices={"small": Prices(Decimal(10_000), Decimal(10_000))})
    report = report_of(cheap, record)
    assert (report.differing, report.saved.cost_usd) == (0, Decimal("0.3"))
    elsewhere = PolicyChange(prices={"large": Prices(Decimal(1), Decimal(1))})
    assert report_of(elsewhere, record).saved.cost_usd == 0
