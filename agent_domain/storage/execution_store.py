"""The port of the execution store."""

from collections.abc import Callable, Sequence
from datetime import datetime
from typing import Protocol
from uuid import UUID

from everstep.agent_domain.capabilities.rights import Decider
from everstep.agent_domain.ids import ExecutionRef, Scope
from everstep.agent_domain.loop.status import ExecutionStatus
from everstep.agent_domain.loop.step_facts import StepFacts
from everstep.agent_domain.loop.usage import Usage
from everstep.agent_domain.messages.compaction import Compaction
from everstep.agent_domain.messages.messages import Message, Messages
from everstep.agent_domain.storage.audit import AuditedExecution
from everstep.agent_domain.storage.budget_ledger import BudgetSpending, BudgetTerms
from everstep.agent_domain.storage.budget_store import BudgetStore
from everstep.agent_domain.storage.calls import CallRecord, InnerReply, RecordCall, Reservation
from everstep.agent_domain.storage.commands import Command, CommandKind, SentCommand, Steering
from everstep.agent_domain.storage.compactions import ContinuedInput, RecordCompaction
from everstep.agent_domain.storage.executions import ExecutionRow, NewExecution, Page, Settlement
from everstep.agent_domain.storage.ledger import LedgerPage, PeriodPage, PrunedLedger
from everstep.agent_domain.storage.metadata_changes import MetadataHistory
from everstep.agent_domain.storage.rate_store import RateStore
from everstep.agent_domain.storage.recorded_executions import RecordedExecutions
from everstep.agent_domain.storage.requests import RequestRow, Resolution
from everstep.agent_domain.storage.sessions import Settled
from everstep.agent_domain.storage.steps import (
    BeginStep,
    BegunStep,
    PartialText,
    PartialTextOutcome,
    RecordProcessing,
    RecordReply,
    RetryWait,
    StepInput,
    StepRow,
)
from everstep.agent_domain.storage.tenant_store import TenantStore
from everstep.agent_domain.storage.text_search import TextSearch
from everstep.agent_domain.stream.records import EventRecord, StoredEnvelope, no_event_records
from everstep.agent_domain.stream.session_messages import Announcement
from everstep.agent_domain.tools.progress import Progress
from everstep.agent_domain.values import FrozenDict


class ExecutionStore(BudgetStore, RateStore, RecordedExecutions, TenantStore, TextSearch, Protocol):
    """Stores executions. Every method is one transaction."""

    async def accept(self, new: NewExecution) -> ExecutionRow:
        """Store a pending execution; an existing one with the same id is returned unchanged."""
        ...

    async def material(self, ref: ExecutionRef) -> StepInput:
        """Load the input of the next step."""
        ...

    async def preview_step(self, ref: ExecutionRef, number: int) -> BegunStep:
        """The result of `begin_step` for a step without steered messages; writes nothing."""
        ...

    async def begin_step(self, begin: BeginStep) -> BegunStep:
        """Settle the previous step and mark this one as started; a recorded step is returned unchanged."""
        ...

    async def note_partial(
        self,
        ref: ExecutionRef,
        number: int,
        attempt: int,
        text: str,
        *,
        next_index: int | None = None,
        after_seq: int | None = None,
        offset: int = 0,
    ) -> bool:
        """Store the next part of the text, for viewers that join late.

        Args:
            ref: The execution.
            number: The step.
            attempt: The attempt that writes.
            text: The part of the text from `offset` on.
            next_index: The index of the chunk that follows the text. Without it, viewers do not receive
                the text.
            after_seq: The stored envelope that the chunks follow.
            offset: How many characters come before this part. They are stored already, and all after them is
                replaced.

        Returns:
            False if a later attempt or a reply has replaced this attempt, or the text before is not stored.
        """
        ...

    async def note_partials(self, texts: Sequence[PartialText]) -> Sequence[PartialTextOutcome]:
        """Store the texts of several steps, in one round trip; none waits for another one's step."""
        ...

    async def note_failure(self, ref: ExecutionRef, number: int, attempt: int) -> int:
        """Count a model call of this step that failed in transport; return the new count."""
        ...

    async def note_wait(
        self, ref: ExecutionRef, number: int, wait: RetryWait, events: Sequence[EventRecord] = ()
    ) -> None:
        """Record that a step waits for its next attempt, unless it already has that attempt or a reply."""
        ...

    async def note_progress(
        self, ref: ExecutionRef, call_id: str, progress: Progress, events: Sequence[EventRecord] = ()
    ) -> None:
        """Store how far a call is, unless it has its result or its execution has ended."""
        ...

    async def record_reply(self, reply: RecordReply) -> StepFacts:
        """Record the model's reply; a reply that an earlier attempt recorded wins."""
        ...

    async def ask(self, ref: ExecutionRef, call_id: str, request: FrozenDict) -> None:
        """Open the question of an approved call; repeating this changes nothing."""
        ...

    async def preview_call(self, ref: ExecutionRef, call_id: str) -> Reservation:
        """The result of `reserve_call`; writes nothing."""
        ...

    async def reserve_call(
        self,
        ref: ExecutionRef,
        call_id: str,
        attempt: int,
        events: Callable[[Reservation], Sequence[EventRecord]] = no_event_records,
    ) -> Reservation:
        """Reserve a call before it has any effect.

        Args:
            ref: The execution.
            call_id: The call.
            attempt: The attempt that runs it.
            events: Builds the envelopes to store, given the reservation.
        """
        ...

    async def record_call(self, record: RecordCall) -> CallRecord:
        """Record a call's result; a result that an earlier attempt recorded wins."""
        ...

    async def record_compaction(self, record: RecordCompaction) -> Compaction:
        """Record a compaction; one that an earlier attempt recorded wins."""
        ...

    async def continued_input(self, ref: ExecutionRef) -> ContinuedInput | None:
        """The last request of the execution that this one continues; None if it continues none."""
        ...

    async def record_processing(self, record: RecordProcessing) -> FrozenDict:
        """Record the outcome of a step's processors; an outcome that an earlier attempt recorded wins."""
        ...

    async def processing(self, ref: ExecutionRef, number: int) -> FrozenDict | None:
        """The recorded outcome of a step's processors, if there is one."""
        ...

    async def inner_reply(self, ref: ExecutionRef, key: str) -> InnerReply | None:
        """The recorded reply to this question, if there is one."""
        ...

    async def preview_inner_call(self, ref: ExecutionRef, key: str) -> tuple[InnerReply | None, BudgetTerms]:
        """The recorded reply to this question, and the budgets under which it is asked."""
        ...

    async def record_inner_reply(
        self, ref: ExecutionRef, reply: InnerReply, usage: Usage, spending: BudgetSpending | None = None
    ) -> InnerReply:
        """Record a model's reply and its usage; a reply that an earlier attempt recorded wins.

        `spending` replaces what the model call has reserved of budgets.
        """
        ...

    async def record_tools(self, ref: ExecutionRef, tools: FrozenDict) -> FrozenDict:
        """Record the tools that toolsets list for this execution; tools that were recorded before win."""
        ...

    async def recorded_tools(self, ref: ExecutionRef) -> FrozenDict | None:
        """The tools that toolsets listed for this execution; None before they were queried."""
        ...

    async def settle(self, settlement: Settlement) -> Settled | None:
        """Change the execution's status; None if this key was settled before or the execution has ended.

        Raises:
            CancelComesFirst: The settlement yields to cancels, and one is stored. Nothing is changed.
        """
        ...

    async def keep_snapshot(self, ref: ExecutionRef, number: int, state: FrozenDict) -> bool:
        """Store the full state after a step, for debugging; False if the step has a snapshot already."""
        ...

    async def steer(
        self, ref: ExecutionRef, key: str, message: Message, announces: Announcement | None = None
    ) -> bool:
        """Store a message for the next step boundary, and the command that notifies the workflow.

        Returns:
            False if this key exists already.

        Raises:
            ExecutionEnded: Nothing is stored.
        """
        ...

    async def steering(self, ref: ExecutionRef, key: str) -> Steering | None:
        """The state of the message that was sent under this key."""
        ...

    async def command(
        self, ref: ExecutionRef, key: str, kind: CommandKind, sent_by: Decider | None = None
    ) -> tuple[Command, bool]:
        """Store a command for the workflow, with its sender.

        Returns:
            The command and whether it is new. A command that was stored under this key before is returned
            unchanged.

        Raises:
            ExecutionEnded: The execution has ended and has no such command; nothing is stored.
        """
        ...

    async def pending_commands(self, ref: ExecutionRef) -> Sequence[Command]:
        """The commands that the execution's workflow may not have received, in the order of their arrival."""
        ...

    async def sent_commands(self, ref: ExecutionRef) -> Sequence[SentCommand]:
        """The pauses, resumes and cancels of an execution that are stored, delivered or not, oldest first."""
        ...

    async def confirm_delivery(self, command: Command) -> None:
        """Mark a command as delivered."""
        ...

    async def withdraw(self, command: Command) -> None:
        """Delete a command that the workflow refused."""
        ...

    async def open_requests(self, ref: ExecutionRef) -> tuple[RequestRow, ...]:
        """The open requests, oldest first."""
        ...

    async def requests_within(self, ref: ExecutionRef) -> Sequence[RequestRow]:
        """All requests of an execution and of its subagents, including resolved ones, oldest first."""
        ...

    async def request(self, ref: ExecutionRef, request_id: UUID) -> RequestRow | None:
        """One request, if it exists."""
        ...

    async def find_request(self, tenant_id: str, request_id: UUID) -> RequestRow | None:
        """One request of a tenant, of whichever execution."""
        ...

    async def resolve(
        self, ref: ExecutionRef, request_id: UUID, resolution: Resolution, events: Sequence[EventRecord] = ()
    ) -> bool:
        """Resolve a request, and store the command that notifies the workflow.

        Returns:
            False if it was resolved before, or if the execution is being cancelled.
        """
        ...

    async def resolved_under(self, ref: ExecutionRef, key: str) -> RequestRow | None:
        """The request that was resolved under this key."""
        ...

    async def execution(self, ref: ExecutionRef) -> ExecutionRow | None:
        """One execution, if it exists."""
        ...

    async def executions(
        self,
        tenant_id: str,
        *,
        status: ExecutionStatus | None = None,
        cursor: str | None = None,
        limit: int = 50,
    ) -> Page[ExecutionRow]:
        """Executions, newest first."""
        ...

    async def material_with_steps(self, ref: ExecutionRef, last: int) -> tuple[StepInput, Sequence[StepRow]]:
        """The inputs of the next step, and the last steps, read together.

        The steps are without their messages and compactions, which the inputs contain, and without outcomes.
        """
        ...

    async def steps(
        self, ref: ExecutionRef, last: int | None = None, *, with_responses: bool = False
    ) -> tuple[StepRow, ...]:
        """The steps of an execution.

        Args:
            ref: The execution.
            last: Return only this many steps, the last ones.
            with_responses: Whether the rows contain the model's responses.
        """
        ...

    async def steps_after(self, ref: ExecutionRef, after: int = 0, limit: int = 50) -> Page[StepRow]:
        """A page of steps that follow the step `after`; the cursor is the `after` of the next page."""
        ...

    async def transcript(self, ref: ExecutionRef) -> Messages:
        """The conversation of an execution, including the executions that it continues."""
        ...

    async def metadata_history(self, ref: ExecutionRef) -> MetadataHistory:
        """The agent's metadata at the start of an execution, and what its calls changed."""
        ...

    async def envelopes(
        self, tenant_id: str, stream_id: UUID, after: int = 0, limit: int = 1000
    ) -> tuple[StoredEnvelope, ...]:
        """Stored envelopes of a stream, in order, with a `seq` above `after`."""
        ...

    async def envelope_range(self, tenant_id: str, stream_id: UUID) -> tuple[int, int]:
        """The first and the last `seq` that are stored of a stream; (0, 0) if there are none."""
        ...

    async def sealed_ledger(self, ref: ExecutionRef, after: int = 0, limit: int = 50) -> LedgerPage | None:
        """Entries of an execution's ledger after a position; None if it was accepted without a ledger."""
        ...

    async def pruned_ledger(self, ref: ExecutionRef) -> PrunedLedger | None:
        """What stays of the ledger of an execution that was pruned; None if it was not."""
        ...

    async def ledger_of_period(
        self,
        scope: Scope,
        since: datetime,
        until: datetime,
        cursor: str | None = None,
        limit: int = 1000,
    ) -> PeriodPage:
        """The entries of all executions that a caller sees, in the order of their times.

        The cursor continues where a page ended, also later: every entry is read once.
        """
        ...

    async def audited_execution(self, ref: ExecutionRef) -> AuditedExecution | None:
        """Everything that an audit compares, read at one moment; None without such an execution."""
        ...
