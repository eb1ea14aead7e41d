"""The store of a replay: in memory, with the durations, usages and files of the record."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from datetime import datetime
from uuid import UUID, uuid5

from everstep.agent_domain.ids import ExecutionRef
from everstep.agent_domain.loop.step_facts import StepFacts
from everstep.agent_domain.loop.usage import Usage
from everstep.agent_domain.messages.messages import Message
from everstep.agent_domain.storage.budget_ledger import BudgetSpending, BudgetTerms
from everstep.agent_domain.storage.calls import CallRecord, InnerReply, RecordCall
from everstep.agent_domain.storage.compactions import ContinuedInput, RecordCompaction
from everstep.agent_domain.storage.executions import ExecutionSpec, NewExecution
from everstep.agent_domain.storage.run_record import RunCall, RunRecord, RunStep
from everstep.agent_domain.storage.steps import (
    BegunStep,
    MessagePlace,
    RecordProcessing,
    RecordReply,
    StepInput,
)
from everstep.agent_domain.values import FrozenDict, frozen_map
from everstep.runtime.replay.current import enter_question, enter_step
from everstep.runtime.replay.recorded import Recorded
from everstep.store.memory import MemoryStore
from everstep.store.memory_records import MemoryExecution


class RecordedStore(MemoryStore):
    """A memory store that keeps the times of the record instead of those of the replay."""

    def __init__(self, recorded: Recorded, now: Callable[[], datetime]) -> None:
        super().__init__(now)
        self.recorded = recorded
        self.runs = recorded.runs

    async def seed(self, run: RunRecord) -> UUID | None:
        """Store the conversation that the run continues; return the id of its execution."""
        if not run.earlier:
            return None
        identity = uuid5(run.ref.execution_id, "earlier")
        spec = ExecutionSpec.model_validate(run.spec)
        ref = replace(run.ref, execution_id=identity)
        await self.accept(NewExecution(ref, spec, run.earlier, user_id=run.user_id))
        earlier = self._require_execution(ref)
        if run.earlier_compaction:
            earlier.compactions[0, 0] = run.earlier_compaction
        return identity

    async def preview_step(self, ref: ExecutionRef, number: int) -> BegunStep:
        """Return the input of a step, with the compactions that the record has before it."""
        enter_step(ref, number)
        step = self._step(ref, number)
        for ordinal, compaction in enumerate(step.compactions if step else ()):
            await self.record_compaction(RecordCompaction(ref, ordinal, compaction))
        return await super().preview_step(ref, number)

    async def record_reply(self, reply: RecordReply) -> StepFacts:
        """Record a reply, with the seconds of the record."""
        step = self._step(reply.ref, reply.number)
        if step and step.facts:
            reply = replace(reply, facts=replace(reply.facts, seconds=step.facts.seconds))
        return await super().record_reply(reply)

    async def record_call(self, record: RecordCall) -> CallRecord:
        """Record a call, with the times and the usage of the record."""
        known = self._call(record.ref, record.record.call_id)
        if known and known.record and not known.is_abandoned:
            recorded = known.record
            besides = replace(
                record.record.besides,
                usage=recorded.besides.usage,
                child_tokens=recorded.besides.child_tokens,
                child_cost_usd=recorded.besides.child_cost_usd,
            )
            times = replace(
                record.record,
                seconds=recorded.seconds,
                started_at=recorded.started_at,
                completed_at=recorded.completed_at,
                besides=besides,
                # An error of Everstep itself is no exception of the tool.
                error=record.record.error and (recorded.error or record.record.error),
            )
            record = replace(record, record=times)
        return await super().record_call(record)

    async def record_processing(self, record: RecordProcessing) -> FrozenDict:
        """Record what processors did, with the seconds of the record."""
        step = self._step(record.ref, record.number)
        if step:
            facts = {**record.outcome["facts"], "seconds": step.processing_seconds}
            record = replace(record, outcome=frozen_map({**record.outcome, "facts": facts}))
        return await super().record_processing(record)

    async def continued_input(self, ref: ExecutionRef) -> ContinuedInput | None:
        """Return the last request of the conversation before, as the record has it."""
        run = self.runs.get(ref.execution_id)
        return run.continued_input if run else None

    async def recorded_tools(self, ref: ExecutionRef) -> FrozenDict | None:
        """Return the tools that the toolsets listed in the recorded run."""
        run = self.runs.get(ref.execution_id)
        listed = run.spec.get("listed") if run else None
        return frozen_map(listed) if listed is not None else await super().recorded_tools(ref)

    async def preview_inner_call(self, ref: ExecutionRef, key: str) -> tuple[InnerReply | None, BudgetTerms]:
        """Return the recorded reply to a question, and note which one is asked."""
        enter_question(ref, key)
        return await super().preview_inner_call(ref, key)

    async def record_inner_reply(
        self, ref: ExecutionRef, reply: InnerReply, usage: Usage, spending: BudgetSpending | None = None
    ) -> InnerReply:
        """Record the reply to a question; note a question that is not the recorded one."""
        run = self.runs.get(ref.execution_id)
        known = next((each for each in run.inner_answers if each.key == reply.key), None) if run else None
        if known and known.digest != reply.digest and not self.recorded.is_redacted:
            self.recorded.findings.note(
                f"the question that a processor asks a model is another one ({reply.key})"
            )
        return await super().record_inner_reply(ref, reply, usage, spending)

    def _step_inputs(
        self,
        execution: MemoryExecution,
        number: int | None = None,
        read: Mapping[MessagePlace, Message] | None = None,
    ) -> StepInput:
        """Return the input of a step; compactions are those of the record, so the plan has none."""
        material = super()._step_inputs(execution, number, read)
        plan = {key: value for key, value in material.plan.items() if key != "compaction"}
        return replace(material, plan=frozen_map(plan))

    def _step(self, ref: ExecutionRef, number: int) -> RunStep | None:
        run = self.runs.get(ref.execution_id)
        return run.step(number) if run else None

    def _call(self, ref: ExecutionRef, call_id: str) -> RunCall | None:
        run = self.runs.get(ref.execution_id)
        return run.call(call_id) if run else None
