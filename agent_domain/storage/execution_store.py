"""The store of executions, as a port."""

from collections.abc import Callable, Sequence
from typing import Protocol
from uuid import UUID

from everstep.agent_domain.ids import ExecutionRef
from everstep.agent_domain.loop.status import ExecutionStatus
from everstep.agent_domain.loop.step_facts import StepFacts
from everstep.agent_domain.loop.usage import Usage
from everstep.agent_domain.messages.messages import Message, Messages
from everstep.agent_domain.storage.calls import CallRecord, InnerReply, RecordCall, Reservation
from everstep.agent_domain.storage.commands import Command, CommandKind, Steering
from everstep.agent_domain.storage.executions import ExecutionRow, NewExecution, Page, Settlement
from everstep.agent_domain.storage.requests import RequestRow, Resolution
from everstep.agent_domain.storage.steps import (
    BeginStep,
    BegunStep,
    Material,
    RecordProcessing,
    RecordReply,
    RetryWait,
    StepRow,
)
from everstep.agent_domain.stream.records import EventRecord, StoredEnvelope, nothing_to_tell
from everstep.agent_domain.stream.session_messages import Announcement
from everstep.agent_domain.values import FrozenDict


class ExecutionStore(Protocol):
    """Keeps executions. Every method is one transaction."""

    async def accept(self, new: NewExecution) -> ExecutionRow:
        """Store a pending execution; the same id again returns what is there."""
        ...

    async def material(self, ref: ExecutionRef) -> Material:
        """What the next step would be made from."""
        ...

    async def preview_step(self, ref: ExecutionRef, number: int) -> BegunStep:
        """What `begin_step` returns for a step that hears nobody; nothing is written."""
        ...

    async def begin_step(self, begin: BeginStep) -> BegunStep:
        """Settle the step before, mark this one as started; a recorded one is returned as it is."""
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
    ) -> bool:
        """Keep the text so far, for those who join late; False if this attempt has no say any more.

        With the index of the chunk that goes on where it ends, viewers may be told of it, else not.
        """
        ...

    async def note_failure(self, ref: ExecutionRef, number: int, attempt: int) -> int:
        """Count a model call of this step that failed in transport; the count so far, this one included."""
        ...

    async def note_wait(
        self, ref: ExecutionRef, number: int, wait: RetryWait, events: Sequence[EventRecord] = ()
    ) -> None:
        """Write down that a step waits for its next attempt, unless it has that one or a reply by now."""
        ...

    async def record_reply(self, reply: RecordReply) -> StepFacts:
        """Record what the model answered; what an earlier attempt recorded wins."""
        ...

    async def ask(self, ref: ExecutionRef, call_id: str, request: FrozenDict) -> None:
        """Open the question of a call that people have allowed; again changes nothing."""
        ...

    async def preview_call(self, ref: ExecutionRef, call_id: str) -> Reservation:
        """What `reserve_call` returns; nothing is written."""
        ...

    async def reserve_call(
        self,
        ref: ExecutionRef,
        call_id: str,
        attempt: int,
        events: Callable[[Reservation], Sequence[EventRecord]] = nothing_to_tell,
    ) -> Reservation:
        """Take a call in hand before it has any effect."""
        ...

    async def record_call(self, record: RecordCall) -> CallRecord:
        """Record a call's result; what an earlier attempt recorded wins."""
        ...

    async def record_processing(self, record: RecordProcessing) -> FrozenDict:
        """Record what processors made of a step; what an earlier attempt recorded wins."""
        ...

    async def processing(self, ref: ExecutionRef, number: int) -> FrozenDict | None:
        """What processors made of a step, if that is recorded."""
        ...

    async def inner_reply(self, ref: ExecutionRef, key: str) -> InnerReply | None:
        """What a model answered to this question, if it was asked."""
        ...

    async def record_inner_reply(self, ref: ExecutionRef, reply: InnerReply, usage: Usage) -> InnerReply:
        """Record what a model answered, and what it cost; what an earlier attempt recorded wins."""
        ...

    async def record_listed(self, ref: ExecutionRef, tools: FrozenDict) -> FrozenDict:
        """Record the tools that toolsets list for this execution; what was recorded before wins."""
        ...

    async def listed(self, ref: ExecutionRef) -> FrozenDict | None:
        """The tools that toolsets listed for this execution, if they were asked."""
        ...

    async def settle(self, settlement: Settlement) -> bool:
        """Change the execution's standing; False if this key was settled before, or the execution ended."""
        ...

    async def keep_snapshot(self, ref: ExecutionRef, number: int, state: FrozenDict) -> bool:
        """Keep the full state after a step, for debugging; False if there is one of this step."""
        ...

    async def steer(
        self, ref: ExecutionRef, key: str, message: Message, announces: Announcement | None = None
    ) -> bool:
        """Keep a message for the next step boundary, and the command that says so to the workflow.

        Returns:
            False if this key was there before.

        Raises:
            ExecutionEnded: Nothing is stored.
        """
        ...

    async def steering(self, ref: ExecutionRef, key: str) -> Steering | None:
        """What became of a message that was sent under this key."""
        ...

    async def command(self, ref: ExecutionRef, key: str, kind: CommandKind) -> tuple[Command, bool]:
        """Keep a command that the workflow has to be told.

        Returns:
            The command, and whether it is new; the one that was kept under this key before, if there is one.

        Raises:
            ExecutionEnded: There is no such command, and nothing is stored.
        """
        ...

    async def undelivered(self, ref: ExecutionRef) -> Sequence[Command]:
        """The commands of which the execution's workflow may not know, in the order in which they came."""
        ...

    async def mark_delivered(self, command: Command) -> None:
        """Note that nothing is left to tell of a command."""
        ...

    async def withdraw(self, command: Command) -> None:
        """Forget a command that the workflow refused."""
        ...

    async def open_requests(self, ref: ExecutionRef) -> tuple[RequestRow, ...]:
        """The questions that wait, oldest first."""
        ...

    async def requests_within(self, ref: ExecutionRef) -> Sequence[RequestRow]:
        """All requests of an execution and of its subagents, resolved ones too, oldest first."""
        ...

    async def request(self, ref: ExecutionRef, request_id: UUID) -> RequestRow | None:
        """One question."""
        ...

    async def resolve(
        self, ref: ExecutionRef, request_id: UUID, resolution: Resolution, events: Sequence[EventRecord] = ()
    ) -> bool:
        """Answer a question, and keep the command that says so to the workflow.

        Returns:
            False if it was answered before, or if the execution is being cancelled.
        """
        ...

    async def resolved_under(self, ref: ExecutionRef, key: str) -> RequestRow | None:
        """The request that was answered or decided under this key."""
        ...

    async def execution(self, ref: ExecutionRef) -> ExecutionRow | None:
        """One execution, as it stands."""
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

    async def steps(
        self, ref: ExecutionRef, last: int | None = None, *, with_responses: bool = False
    ) -> tuple[StepRow, ...]:
        """What an execution did, step by step; only its last steps, if so many are asked for."""
        ...

    async def steps_after(self, ref: ExecutionRef, after: int = 0, limit: int = 50) -> Page[StepRow]:
        """A page of what an execution did, from after a step; the cursor is the `after` of the next page."""
        ...

    async def transcript(self, ref: ExecutionRef) -> Messages:
        """The conversation of an execution, what it continues included."""
        ...

    async def envelopes(
        self, tenant_id: str, stream_id: UUID, after: int = 0, limit: int = 1000
    ) -> tuple[StoredEnvelope, ...]:
        """Stored envelopes of a stream in order, from after a position."""
        ...
