"""Compactions of durable executions: recorded once, each before the step that it shortens."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from time import monotonic

from everstep.activities.agents import AgentProvider
from everstep.activities.inner_calls import RecordedInquiry
from everstep.activities.store_retry import write_with_retry
from everstep.agent_domain.agents.compaction_policy import CompactionPolicy
from everstep.agent_domain.agents.plan import ExecutionPlan
from everstep.agent_domain.ids import ExecutionRef
from everstep.agent_domain.loop.usage import Usage
from everstep.agent_domain.messages.compaction import Compaction
from everstep.agent_domain.redaction import Redaction
from everstep.agent_domain.storage.compactions import RecordCompaction
from everstep.agent_domain.storage.execution_store import ExecutionStore
from everstep.agent_domain.storage.steps import EARLIER_EXECUTION, StepInput
from everstep.agent_domain.stream.compaction_record import compacted_record
from everstep.agent_domain.values import EMPTY
from everstep.steps.compactor import Compactor, InputAnchor


@dataclass(frozen=True, slots=True)
class _Asker:
    """Names the execution that asks for a summary."""

    ref: ExecutionRef
    agent: str


class StepCompaction:
    """The compactions of one step: the compactor, and what its summaries have cost in all attempts."""

    def __init__(
        self,
        store: ExecutionStore,
        agents: AgentProvider,
        redaction: Redaction,
        *,
        ref: ExecutionRef,
        number: int,
        material: StepInput,
        files: Mapping[str, bytes] = EMPTY,
    ) -> None:
        self._store = store
        self._ref = ref
        recorded = material.compactions_of(number)
        self._count = len(recorded)
        self.usage = sum((each.usage for each in recorded), Usage())
        """The tokens of the summaries."""
        self.has_recorded = False
        """Whether this attempt has shortened the conversation."""
        self.compactor: Compactor | None = None
        """None: the execution's plan has no compaction."""
        if material.plan.get("compaction") is None:
            return
        plan, spec = ExecutionPlan.model_validate(material.plan), material.spec
        asker, key = _Asker(ref, spec.agent), f"compaction/{number}.{self._count}"
        self.compactor = Compactor(
            plan.compaction or CompactionPolicy(),
            RecordedInquiry(store, agents, asker, key, plan=plan),
            partial(agents.model, spec.agent),
            self._record,
            redact=redaction,
            seconds=monotonic,
            choice=spec.llm_preset,
            anchor=_anchor(material),
            find_anchor=None if material.before or recorded else partial(self._continued_anchor, material),
        )
        self.compactor.files = files

    async def _continued_anchor(self, material: StepInput) -> InputAnchor | None:
        """Return the input of the last step of the execution that this one continues."""
        before = await self._store.continued_input(self._ref)
        if before is None:
            return None
        earlier = material.places.count(EARLIER_EXECUTION)
        return _anchor_of(before.usage, earlier - before.later_messages)

    async def _record(self, compaction: Compaction) -> Compaction:
        self.has_recorded = True
        event = compacted_record(compaction, self._count)
        record = RecordCompaction(self._ref, self._count, compaction, [event])
        stored = await write_with_retry(partial(self._store.record_compaction, record))
        self._count += 1
        self.usage += stored.usage
        return stored


def _anchor(material: StepInput) -> InputAnchor | None:
    """Return the input of the previous step as its provider counted it."""
    before = material.before
    if before is None or before.facts.is_failure or material.compactions_of(before.facts.number + 1):
        return None
    return _anchor_of(before.facts.usage, len(material.before_reply(before.facts.number).messages))


def _anchor_of(usage: Usage, messages: int) -> InputAnchor | None:
    tokens = usage.input + usage.cached
    return InputAnchor(messages, tokens) if tokens else None
