"""Savings of executions and of their subagents, each counted once.

What a step of an execution used includes its subagents. If the execution ends before that step, the subagent
would not have been started, and what it would have saved by itself is part of that already.
"""

from dataclasses import dataclass, field
from uuid import UUID

from everstep.agent_domain.ids import subagent_id
from everstep.agent_domain.storage.recorded_executions import RecordedExecution
from everstep.agent_domain.what_if.repeating import ChangedEnd, WhatIfResult
from everstep.agent_domain.what_if.spending import Spending


@dataclass
class Families:
    """The savings of subagents whose parents have not come yet; only of those that saved something."""

    waiting: dict[UUID, Spending] = field(default_factory=dict[UUID, Spending])

    def with_savings(self, total: Spending, record: RecordedExecution, comparison: WhatIfResult) -> Spending:
        """The total after an execution; its subagents, which are newer, have been counted."""
        own = comparison.saved
        is_earlier = comparison.verdict is ChangedEnd.EARLIER and comparison.parts_at_step is not None
        last = comparison.parts_at_step if is_earlier else None
        kept = Spending()
        for step in record.steps:
            for call in step.calls:
                if not call.starts_child:
                    continue
                child = self.waiting.pop(subagent_id(record.ref.execution_id, call.id), None)
                if child is None:
                    continue
                if last is not None and step.number > last:
                    total = total - child
                else:
                    kept += child
        if record.parent_execution_id is not None and not (own + kept).is_nothing:
            self.waiting[record.ref.execution_id] = own + kept
        return total + own
