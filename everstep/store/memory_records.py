"""Records of the memory store, and the values that they hold."""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from decimal import Decimal
from operator import itemgetter
from typing import Any
from uuid import UUID

from everstep.agent_domain.capabilities.rights import Decider, DecisionPolicy
from everstep.agent_domain.ids import ExecutionRef, question_id, request_id
from everstep.agent_domain.loop.boundary import Boundary
from everstep.agent_domain.loop.facts import StateInfo
from everstep.agent_domain.loop.run_context import RunContext
from everstep.agent_domain.loop.status import ExecutionStatus, StopReason
from everstep.agent_domain.loop.step_error import StepError
from everstep.agent_domain.loop.step_facts import CallNeed, StepFacts
from everstep.agent_domain.loop.usage import NO_COST, Usage, sum_costs
from everstep.agent_domain.messages.compaction import Compaction
from everstep.agent_domain.messages.messages import Message
from everstep.agent_domain.storage.budget_ledger import BudgetAccount
from everstep.agent_domain.storage.calls import CallRecord, InnerReply
from everstep.agent_domain.storage.commands import CommandKind
from everstep.agent_domain.storage.executions import ExecutionEnded, ExecutionRow, ExecutionSpec
from everstep.agent_domain.storage.ledger import Chain, NewEntry
from everstep.agent_domain.storage.metadata_changes import MetadataChanges, apply_changes
from everstep.agent_domain.storage.requests import AnyRequestKind, RequestState, Resolution
from everstep.agent_domain.storage.steps import RetryWait
from everstep.agent_domain.stream.records import StoredEnvelope
from everstep.agent_domain.tools.progress import Progress
from everstep.agent_domain.tools.tools import ToolCall
from everstep.agent_domain.values import EMPTY, FrozenDict, freeze, frozen_map
from everstep.store import bodies, transcripts
from everstep.store.bodies import encode
from everstep.store.transcripts import OwnPart, TranscriptLine


@dataclass(slots=True)
class MemoryStep:
    """A step."""

    started_at: datetime
    attempt: int = 1
    failed_attempts: set[int] = field(default_factory=set[int])
    facts: StepFacts | None = None
    response: FrozenDict | None = None
    errors: tuple[StepError, ...] = ()
    outcome: FrozenDict | None = None
    boundary: Boundary | None = None
    partial_text: str = ""
    next_index: int | None = None
    after_seq: int | None = None
    completed_at: datetime | None = None
    processed: FrozenDict | None = None
    wait: RetryWait | None = None
    first_text_seconds: float | None = None


def processing_usage(step: MemoryStep) -> Usage:
    """Return the usage of the model calls of a step's processors."""
    facts: Mapping[str, Any] = (step.processed or EMPTY).get("facts", EMPTY)
    return Usage.from_dict(facts.get("besides", EMPTY).get("usage"))


@dataclass(slots=True)
class MemoryCall:
    """A tool call."""

    call: ToolCall
    step: int
    idx: int
    need: CallNeed
    args_digest: str
    state: str = "told"
    attempts: int = 0
    started_at: datetime | None = None
    record: CallRecord | None = None
    progress: Progress | None = None
    digest: str | None = None


@dataclass(slots=True)
class MemoryRequest:
    """A request to a person."""

    id: UUID
    call: MemoryCall
    kind: AnyRequestKind
    request: FrozenDict
    created_at: datetime
    policy: DecisionPolicy | None = None
    state: RequestState = RequestState.OPEN
    resolution: Resolution | None = None
    policy_text: str | None = None
    """The policy as a database stores it."""


@dataclass(slots=True)
class MemorySteering:
    """A steering message."""

    message: Message
    heard_at: int | None = None


@dataclass(slots=True)
class MemoryCommand:
    """A command for the workflow."""

    kind: CommandKind
    call_id: str | None = None
    is_denied: bool = False
    is_delivered: bool = False
    sent_by: Decider | None = None
    sent_at: datetime | None = None


@dataclass(slots=True)
class MemoryBudget:
    """A budget."""

    settings: BudgetAccount
    """As it was set, by an agent or by the operator."""
    spent: Decimal = Decimal(0)
    raised_to: Decimal | None = None
    reservations: dict[tuple[UUID, str], Decimal] = field(default_factory=dict[tuple[UUID, str], Decimal])
    """By execution and model call."""

    def account(self, limit: Decimal | None = None, but: tuple[UUID, str] | None = None) -> BudgetAccount:
        """Return the budget with the limit of a plan, or its own, and without one reservation."""
        own = self.settings.limit if limit is None else limit
        reserved = (amount for place, amount in self.reservations.items() if place != but)
        return replace(
            self.settings,
            limit=max(own, self.raised_to or own),
            spent=self.spent,
            reserved=sum(reserved, Decimal(0)),
        )

    def is_above(self, limit: Decimal) -> bool:
        """Whether it was raised above this limit, or the operator has set a larger one."""
        own = self.settings.limit if self.settings.is_operators else limit
        return max(own, self.raised_to or own) > limit


@dataclass(slots=True)
class MemoryExecution:
    """An execution with everything that belongs to it."""

    ref: ExecutionRef
    spec: ExecutionSpec
    agent_id: UUID
    parent_agent_id: UUID | None
    parent_execution_id: UUID | None
    continues: UUID | None
    continues_until: int | None
    agent_metadata: FrozenDict
    metadata: FrozenDict
    created_at: datetime
    user_id: str | None = None
    plan: FrozenDict = EMPTY
    status: ExecutionStatus = ExecutionStatus.PENDING
    step_count: int = 0
    usage: FrozenDict = field(default_factory=lambda: frozen_map(Usage().to_breakdown()))
    cost_usd: Decimal | None = NO_COST
    """What its model calls cost; None if the cost of one is unknown."""
    stop_reason: StopReason | None = None
    output: FrozenDict | None = None
    outcome: FrozenDict | None = None
    error_message: str | None = None
    error_told: str | None = None
    started_at: datetime | None = None
    completed_at: datetime | None = None
    last_snapshot_id: UUID | None = None
    worked_seconds: float = 0.0
    clocks: StateInfo = StateInfo()
    request: FrozenDict = EMPTY
    kept_snapshots: set[UUID] = field(default_factory=set[UUID])
    steps: dict[int, MemoryStep] = field(default_factory=dict[int, MemoryStep])
    messages: dict[tuple[int, int], Message] = field(default_factory=dict[tuple[int, int], Message])
    notes: dict[tuple[int, int], MetadataChanges] = field(
        default_factory=dict[tuple[int, int], MetadataChanges]
    )
    compactions: dict[tuple[int, int], Compaction] = field(default_factory=dict[tuple[int, int], Compaction])
    inner_replies: dict[str, InnerReply] = field(default_factory=dict[str, InnerReply])
    toolset_tools: FrozenDict | None = None
    calls: dict[str, MemoryCall] = field(default_factory=dict[str, MemoryCall])
    requests: dict[UUID, MemoryRequest] = field(default_factory=dict[UUID, MemoryRequest])
    steering: dict[str, MemorySteering] = field(default_factory=dict[str, MemorySteering])
    commands: dict[str, MemoryCommand] = field(default_factory=dict[str, MemoryCommand])
    settlements: set[str] = field(default_factory=set[str])
    sent: str = ""
    """What it was accepted with, as a database stores it."""
    ledger: Chain | None = None
    ledger_keys: set[str] = field(default_factory=set[str])

    def record(self, at: datetime, *entries: NewEntry) -> None:
        """Append entries to the ledger; a known key changes nothing, and so does a closed ledger."""
        for entry in entries:
            if self.ledger is None or self.ledger.head.is_closed:
                return
            free = (key for key in (entry.key, entry.fallback_key) if key and key not in self.ledger_keys)
            if key := next(free, None):
                self.ledger_keys.add(key)
                self.ledger = self.ledger.appended(entry, at)

    @property
    def run(self) -> RunContext:
        """The user and the request of the execution."""
        return RunContext.from_request(self.ref, self.user_id, self.request)

    @property
    def is_cancel_stored(self) -> bool:
        """Whether a cancel is stored, delivered or not."""
        return any(command.kind is CommandKind.CANCEL for command in self.commands.values())

    def add_usage(self, usage: Usage, *, has_answer: bool = True) -> None:
        """Add what a model call used, also if its provider counted no tokens."""
        self.usage = frozen_map(bodies.add_usage(self.usage, usage))
        if has_answer:
            self.cost_usd = sum_costs(self.cost_usd, usage.cost_usd if usage.total else None)

    def add_lines(self, step: int, lines: Iterable[TranscriptLine]) -> None:
        """Append messages and notes to the transcript of a step."""
        for line in lines:
            content = json.loads(line.content)
            if line.role == transcripts.NOTE and (compaction := transcripts.parse_compaction(content)):
                self.compactions[step, line.idx] = compaction
            elif line.role == transcripts.NOTE:
                self.notes[step, line.idx] = transcripts.parse_notes(content)
            else:
                self.messages[step, line.idx] = message_from(line)

    def part(self, until: int | None = None) -> OwnPart:
        """The execution's part of a conversation, optionally only up to the end of a step.

        The compactions before the next step shortened the same conversation.
        """
        places = sorted(at for at in self.messages if until is None or transcripts.is_filled_by(at, until))
        made = (each for _, each in sorted(self.compactions.items(), key=itemgetter(0)))
        return OwnPart(places, tuple(each for each in made if until is None or each.step <= until + 1))

    def ordered_notes(self, before: tuple[int, int] | None = None) -> list[MetadataChanges]:
        """Return the notes in order, optionally only those before a place."""
        return [self.notes[place] for place in sorted(self.notes) if before is None or place < before]

    @property
    def row(self) -> ExecutionRow:
        """The execution as clients see it."""
        return ExecutionRow(
            ref=self.ref,
            agent=self.spec.agent,
            status=self.status,
            step_count=self.step_count,
            usage=self.usage,
            cost_usd=self.cost_usd,
            stop_reason=self.stop_reason,
            output=self.output,
            error_message=self.error_message,
            error_told=self.error_told,
            metadata=apply_changes(self.agent_metadata, self.ordered_notes()).merged(self.metadata),
            created_at=self.created_at,
            started_at=self.started_at,
            completed_at=self.completed_at,
            parent_execution_id=self.parent_execution_id,
            user_id=self.user_id,
            last_snapshot_id=self.last_snapshot_id,
            clocks=self.clocks,
            cancelled_by=self._canceller(),
            continues=self.continues,
            continues_until=self.continues_until,
            outcome=self.outcome,
            paused_by=self._pauser(),
        )

    def _canceller(self) -> Decider | None:
        """Who cancelled the execution."""
        if self.status is not ExecutionStatus.CANCELLED:
            return None
        cancels = (command for command in self.commands.values() if command.kind is CommandKind.CANCEL)
        return next((command.sent_by for command in cancels), None)

    def _pauser(self) -> Decider | None:
        """Who paused the execution."""
        if self.status is not ExecutionStatus.PAUSED:
            return None
        kinds = (CommandKind.PAUSE, CommandKind.RESUME)
        latest = next((each for each in reversed(self.commands.values()) if each.kind in kinds), None)
        return latest.sent_by if latest and latest.kind is CommandKind.PAUSE else None


@dataclass(slots=True)
class MemoryStream:
    """A stream of envelopes."""

    tenant_id: str
    envelopes: list[StoredEnvelope] = field(default_factory=list[StoredEnvelope])
    ids: set[UUID] = field(default_factory=set[UUID])


def as_stored(value: object, where: str) -> Any:
    """Return the value as a database would return it, or refuse it."""
    return freeze(json.loads(encode(value, where)), where)


def as_stored_document(value: FrozenDict | None, where: str) -> FrozenDict | None:
    """Return the map as a database would return it, or refuse it; None for None."""
    return None if value is None else bodies.document(json.loads(encode(value, where)), where)


def message_from(line: TranscriptLine) -> Message:
    """Return the message of a transcript line."""
    return transcripts.parse_message(line.role, json.loads(line.content), json.loads(line.metadata))


def require_active(execution: MemoryExecution) -> None:
    """Raise `ExecutionEnded` if the execution has ended."""
    if execution.status.is_terminal:
        raise ExecutionEnded(execution.ref.execution_id, execution.status)


def close_request(execution: MemoryExecution, call: MemoryCall) -> None:
    """Resolve the requests of a call."""
    for identity in (request_id, question_id):
        if request := execution.requests.get(identity(execution.ref.execution_id, call.call.id)):
            request.state = RequestState.RESOLVED


@dataclass(slots=True)
class MemoryPlace:
    """A place of a tenant, or the wait for one."""

    execution: MemoryExecution
    is_admitted: bool = False
    is_paused: bool = False

    @property
    def user(self) -> str:
        """The user of the execution."""
        return self.execution.user_id or ""
