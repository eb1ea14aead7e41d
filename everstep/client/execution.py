"""The handle of one execution: reads it, answers its requests, steers, pauses, resumes and cancels it.

Messages and answers are stored first; Temporal receives only a reference, so that no text is in a workflow's
history. Every call is idempotent: repeating it with the same key or answer changes nothing.
"""

import asyncio
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Generic
from uuid import UUID, uuid4

from temporalio.client import WorkflowFailureError, WorkflowHandle
from temporalio.service import RPCError

from everstep.activities.failpoints import Failpoint
from everstep.agent_domain.agents.spawning import child_ref, find_definition
from everstep.agent_domain.capabilities import approvals
from everstep.agent_domain.capabilities.approvals import ApprovalDecision, Verdict, valid_digest
from everstep.agent_domain.capabilities.questions import Question, UserAnswer
from everstep.agent_domain.capabilities.rights import (
    ANSWER,
    OLD_POLICY,
    Actor,
    Decider,
    command_decider,
)
from everstep.agent_domain.errors import InvalidInput, NotFound
from everstep.agent_domain.ids import ExecutionRef, question_id, request_id
from everstep.agent_domain.loop.status import ExecutionStatus
from everstep.agent_domain.loop.step_facts import CallNeed
from everstep.agent_domain.messages.messages import Message, user
from everstep.agent_domain.messages.response_format import OutputT_co
from everstep.agent_domain.storage.commands import Command, CommandKind, Steering
from everstep.agent_domain.storage.executions import ExecutionEnded, ExecutionRow, Page
from everstep.agent_domain.storage.requests import RequestRow, RequestState, Resolution
from everstep.agent_domain.storage.sessions import QuestionClosed, Settled
from everstep.agent_domain.storage.steps import StepRow
from everstep.agent_domain.stream import envelopes, session_messages
from everstep.agent_domain.stream.envelopes import InputSource
from everstep.agent_domain.stream.records import EventRecord
from everstep.agent_domain.stream.session_messages import NO_CONTEXT, Context
from everstep.agent_domain.tools.tools import ToolCall
from everstep.agent_domain.values import EMPTY, frozen_map, json_text
from everstep.client.because import ExecutionReader
from everstep.client.budget_raising import BudgetActions
from everstep.client.command_delivery import CommandDelivery
from everstep.client.errors import Ended, Refused
from everstep.client.ledgers import missing_execution
from everstep.client.outages import TRANSIENT_CODES
from everstep.client.structured_results import CompletedExecution, typed_result
from everstep.steps import json_schema
from everstep.workflows.agent_execution import AgentExecution
from everstep.workflows.contracts import ExecutionResult, workflow_id
from everstep.workflows.workflow_closing import carried_result

if TYPE_CHECKING:
    # `client` imports this module, so importing it at run time would be circular.
    from everstep.client.client import Client

RETRY_SECONDS = 1.0
"""Seconds between two attempts during an outage."""


@dataclass(frozen=True)
class Execution(BudgetActions, ExecutionReader, Generic[OutputT_co]):
    """The handle of an execution, which may run on any worker."""

    client: "Client"
    ref: ExecutionRef
    output_type: Any = field(default=None, compare=False)
    """The type or schema of the result that its request asked for; None for that of the agent."""

    @property
    def id(self) -> UUID:
        """The execution's id."""
        return self.ref.execution_id

    @property
    def workflow(self) -> WorkflowHandle[Any, ExecutionResult]:
        """The handle of its workflow, for direct use of Temporal."""
        return self.client.temporal.get_workflow_handle_for(AgentExecution.run, workflow_id(self.ref))

    async def get(self) -> ExecutionRow:
        """Read the execution.

        Raises:
            NotFound: There is no such execution, or it was pruned.
        """
        row = await self.client.store.execution(self.ref)
        if row is None:
            raise await missing_execution(self.client.store, self.ref)
        return row

    async def steps(self) -> Sequence[StepRow]:
        """Read all steps."""
        await self.get()
        return await self.client.store.steps(self.ref)

    async def steps_after(self, after: int = 0, limit: int = 50) -> Page[StepRow]:
        """Read a page of the steps after the given one; the cursor is the `after` of the next page."""
        await self.get()
        return await self.client.store.steps_after(self.ref, after, limit)

    async def each_step(self, after: int = 0) -> AsyncGenerator[StepRow]:
        """Iterate over the steps after the given one; at most a page of them is in memory."""
        cursor: str | None = str(after)
        while cursor is not None:
            page = await self.steps_after(int(cursor))
            for row in page.rows:
                yield row
            cursor = page.cursor

    async def result(self) -> CompletedExecution[OutputT_co]:
        """Wait until it ends in any way, and return its result; outages of Temporal are retried.

        Raises:
            WorkflowFailureError: Its workflow was ended by other means, for example terminated.
        """
        await self.get()
        while True:
            try:
                result = await self._workflow_result()
                row = await self.get()
                definition = find_definition(self.client.agents, row.agent)
                output = typed_result(row, self.output_type, definition)
                return CompletedExecution[OutputT_co].of(result, output)
            except RPCError as error:
                if error.status not in TRANSIENT_CODES:
                    raise
            await asyncio.sleep(RETRY_SECONDS)

    async def _workflow_result(self) -> ExecutionResult:
        try:
            return await self.workflow.result()
        except WorkflowFailureError as error:
            if result := carried_result(error.cause):
                return result
            raise

    async def requests(self) -> Sequence[RequestRow]:
        """Its open questions and approvals, oldest first."""
        await self.get()
        return await self.client.store.open_requests(self.ref)

    async def requests_of_all(self) -> Sequence[RequestRow]:
        """All open requests: its own, then those of its subagents."""
        own = await self.requests()
        return [*own, *[each for child in await self.subagents() for each in await child.requests_of_all()]]

    asked = requests_of_all
    """The name of `requests_of_all` in release 0.1."""

    async def all_requests(self) -> Sequence[RequestRow]:
        """All requests of it and its subagents, answered or not, oldest first."""
        return await self.client.store.requests_within(self.ref)

    async def subagents(self) -> Sequence["Execution[Any]"]:
        """The executions of subagents that its current step runs."""
        calls = [call for step in await self.client.store.steps(self.ref, last=1) for call in step.calls]
        refs = [child_ref(self.ref, call.call.id) for call in calls if call.record is None]
        rows = [await self.client.store.execution(ref) for ref in refs]
        return [Execution(self.client, row.ref) for row in rows if row]

    # Answers to requests.

    async def submit_input(
        self,
        text: str = "",
        *,
        data: Any = None,
        request_id: UUID | None = None,
        message_id: UUID | None = None,
        context: Context = NO_CONTEXT,
        metadata: Mapping[str, Any] = EMPTY,
        key: str | None = None,
        by: Actor | None = None,
    ) -> RequestRow:
        """Answer a question; an invalid answer changes nothing.

        Args:
            text: The answer.
            data: The answer to a form.
            request_id: The question; by default the oldest open one.
            message_id: The id of the session's message that holds the answer.
            context: The context of that message.
            metadata: The metadata of that message.
            key: An idempotency key: the same key again is the same answer.
            by: Who answers, with the rights to check; see `approve`.

        Raises:
            InvalidInput: The answer does not fit the question.
            NotPermitted: `by` may not answer the questions of this user.
            Refused: There is no such question, or it has another answer.
        """
        if known := await self._redeliver_resolution(key):
            return known
        request = await self._find_request(CallNeed.INPUT, request_id)
        decider = by and command_decider(by, ANSWER, request.user_id, now())
        question = Question.parse(request.request)
        result = question.result(UserAnswer(text, data), json_schema.check)
        place = request.id, request.call_id, request.step_number
        received = envelopes.input_received_record(*place, InputSource.USER, message_id, by=decider)
        message_metadata = {**metadata, "request_id": str(request.id)}
        announcement = session_messages.input_received_announcement(
            text or json_text(data), message_id, message_metadata, context
        )
        resolution = Resolution("answer", result, key=key, by=decider)
        if not await self._resolve(request, resolution, [replace(received, announces=announcement)]):
            await self._require_same_answer(request, result)
        self.client.strike(Failpoint.API_AFTER_COMMIT)
        await self._deliver_resolution(request)
        return request

    async def _redeliver_resolution(self, key: str | None) -> RequestRow | None:
        """The request that an earlier attempt with this key resolved; delivers it to the workflow again."""
        known = None if key is None else await self.client.store.resolved_under(self.ref, key)
        if known:
            with suppress(Refused):
                await self._deliver_resolution(known, known.resolution)
        return known

    async def _require_same_answer(self, request: RequestRow, result: object) -> None:
        """Raise `Refused` unless the stored answer is the same one, from an attempt that was interrupted."""
        stored = await self.client.store.request(self.ref, request.id)
        if stored and stored.resolution and stored.resolution.value == result:
            return
        # The sender of the other answer may have crashed before it was delivered to the workflow.
        with suppress(Refused):
            await self._deliver_resolution(request)
        raise Refused(str(QuestionClosed()))

    async def approve(
        self,
        request_id: UUID | None = None,
        *,
        args_digest: str | None = None,
        key: str | None = None,
        remember: bool | Mapping[str, str] = False,
        by: Actor | None = None,
    ) -> RequestRow:
        """Approve a call with exactly the arguments that were shown.

        Args:
            request_id: The request; by default the oldest open one.
            args_digest: The digest of the arguments that were shown. Without it, the decision is for the
                arguments that this call reads.
            key: An idempotency key: the same key again is the same decision.
            remember: Later calls of the tool in this execution run without asking: all of them, or those
                whose arguments match these globs.
            by: Who decides, with the rights to check, and to record with the decision. Without it nothing
                is checked and no decider is recorded: a program with this client is trusted.

        Raises:
            InvalidInput: The digest is malformed, or the globs do not match the call.
            NotPermitted: `by` may not decide about this call; the message says who may.
            Refused: The digest is that of another call, or the request is decided or closed.
        """
        fields = {"decision": Verdict.APPROVE, "remember": remember}
        return await self._decide(request_id, args_digest, fields, key, by)

    async def deny(
        self,
        request_id: UUID | None = None,
        *,
        reason: str | None = None,
        args_digest: str | None = None,
        key: str | None = None,
        by: Actor | None = None,
    ) -> RequestRow:
        """Deny a call; the model reads the reason. The other arguments are those of `approve`."""
        fields = {"decision": Verdict.DENY, "reason": reason}
        return await self._decide(request_id, args_digest, fields, key, by)

    async def edit(
        self,
        args: Mapping[str, Any],
        request_id: UUID | None = None,
        *,
        args_digest: str | None = None,
        key: str | None = None,
        by: Actor | None = None,
    ) -> RequestRow:
        """Approve a call with other arguments, which needs the scope `approve:edit` as well.

        The other parameters are those of `approve`.
        """
        return await self._decide(request_id, args_digest, {"decision": Verdict.EDIT, "args": args}, key, by)

    async def _decide(
        self,
        request_id: UUID | None,
        digest: str | None,
        fields: Mapping[str, Any],
        key: str | None,
        by: Actor | None,
    ) -> RequestRow:
        if digest is not None:
            valid_digest(digest)
        if known := await self._redeliver_resolution(key):
            return known
        request = await self._find_request(CallNeed.APPROVAL, request_id)
        bound_to = request.args_digest if digest is None else digest
        decision = ApprovalDecision.parse({**fields, "args_digest": bound_to})
        if request.state is RequestState.OPEN and request.expires_at and request.expires_at <= now():
            # The execution denies the call as soon as it has nothing else to do.
            raise Refused(approvals.EXPIRED)
        policy = request.policy or OLD_POLICY
        edits = decision.decision is Verdict.EDIT
        decider = by and policy.decider(by, request.user_id, now(), edits=edits)
        conflict = decision.conflict(request.args_digest, request.state is RequestState.RESOLVED)
        if request.state is RequestState.RESOLVED:
            # Only then: an undecided request must not be delivered.
            with suppress(Refused):
                await self._deliver_resolution(request, request.resolution)
        if conflict:
            raise Refused(conflict)
        await self._check_edited_args(request, decision)
        event = envelopes.approval_resolved_record(request.id, request.call_id, decision, by=decider)
        rule = decision.rule_to_remember(request.tool, request.args, policy)
        resolution = Resolution(
            decision.decision.value, decision.args, decision.reason, key, rule, by=decider
        )
        if not await self._resolve(request, resolution, [event]):
            # Another attempt of this decision may have been faster.
            if known := await self._redeliver_resolution(key):
                return known
            raise Refused(approvals.RESOLVED)
        self.client.strike(Failpoint.API_AFTER_COMMIT)
        await self._deliver_resolution(request, resolution)
        return request

    async def _check_edited_args(self, request: RequestRow, decision: ApprovalDecision) -> None:
        """Check edited arguments like those of a model."""
        row = await self.get()
        definition = find_definition(self.client.agents, row.agent)
        if decision.args is None or definition is None:
            return
        edited = ToolCall(request.call_id, request.tool, frozen_map(decision.args))
        if definition.toolsets:
            definition = definition.with_listed(await self.client.store.recorded_tools(self.ref) or EMPTY)
        refusal = definition.tools.refusal(edited)
        if refusal:
            raise InvalidInput(refusal)

    async def _find_request(self, need: CallNeed, request_id: UUID | None) -> RequestRow:
        """The given request, or by default the oldest open one."""
        if request_id is not None:
            request = await self.client.store.request(self.ref, request_id)
            if request is None or request.kind is not need:
                raise Refused(f"There is no {_need_name(need)} {request_id}")
            return request
        waiting = [row for row in await self.requests() if row.kind is need]
        waiting = waiting or await self._undelivered_requests(need)
        if not waiting:
            raise Refused(f"No {_need_name(need)} is open")
        return waiting[0]

    async def _undelivered_requests(self, need: CallNeed) -> list[RequestRow]:
        """Answered requests whose call has not started: their delivery may have failed."""
        steps = await self.client.store.steps(self.ref, last=1)
        begun = [row.call.id for step in steps for row in step.calls if row.attempts == 0 and not row.record]
        ids = [identity(self.id, call) for call in begun for identity in (request_id, question_id)]
        asked = [await self.client.store.request(self.ref, id_) for id_ in ids]
        return [request for request in asked if request and request.kind is need]

    async def _deliver_resolution(self, request: RequestRow, resolution: Resolution | None = None) -> None:
        """Deliver the answer of a request to the workflow; repeating it changes nothing."""
        kind, is_denied = CommandKind(request.kind.value), resolution is not None and resolution.is_denied
        await self.deliver(Command(self.ref, f"{kind}/{request.id}", kind, request.call_id, is_denied))

    async def _resolve(
        self, request: RequestRow, resolution: Resolution, events: Sequence[EventRecord]
    ) -> bool:
        return await self.client.store.resolve(self.ref, request.id, resolution, events)

    async def steer(self, message: str | Message, *, key: str | None = None) -> Steering:
        """Send a message that the agent reads before its next step.

        An accepted message is delivered exactly once: to this execution, or if it ends before its next step,
        to another one (`Steering.heard_by`). Repeating the call with the same `key` changes nothing.

        Raises:
            ExecutionEnded: The execution has ended; nothing was stored.
        """
        await self.get()
        key = key or str(uuid4())
        content = user(message) if isinstance(message, str) else message
        announcement = session_messages.input_received_announcement(content.text, None)
        await self.client.store.steer(self.ref, key, content, announcement)
        self.client.strike(Failpoint.API_AFTER_COMMIT)
        return await self.hear(key)

    async def hear(self, key: str) -> Steering:
        """Notify the workflow of a stored steering message, and return which execution receives it."""
        steering = await self.client.store.steering(self.ref, key)
        if steering is None:
            raise NotFound("steered message", key)
        if steering.is_settled:
            return steering
        try:
            await self.deliver(Command(self.ref, f"{CommandKind.STEER}/{key}", CommandKind.STEER))
        except Ended:
            if (await self.get()).status is not ExecutionStatus.PENDING:
                # There is no next step.
                return replace(steering, heard_by=steering.otherwise)
        return steering

    async def pause(self, *, key: str | None = None, sent_by: Decider | None = None) -> None:
        """Pause the execution once its running calls are done; `sent_by` is recorded."""
        await self._command(CommandKind.PAUSE, key, sent_by)

    async def resume(self, *, key: str | None = None) -> None:
        """Resume the paused execution."""
        await self._command(CommandKind.RESUME, key)

    async def cancel(self, *, key: str | None = None, sent_by: Decider | None = None) -> None:
        """Stop the execution now, and abandon its current step; `sent_by` is recorded.

        The command is stored before it is sent to the workflow, so it survives a crash of this process.
        Repeating the call with the same `key` changes nothing.

        Raises:
            Refused: The execution ended in another way.
        """
        await self._command(CommandKind.CANCEL, key, sent_by)

    async def request_cancel(self, *, key: str) -> None:
        """Store a cancel, which `cancel` with the same key or the reconciler carries out."""
        await self._store_command(CommandKind.CANCEL, key)

    async def _store_command(
        self, kind: CommandKind, key: str | None, sent_by: Decider | None = None
    ) -> tuple[Command, bool]:
        try:
            return await self.client.store.command(self.ref, f"{kind}/{key or uuid4()}", kind, sent_by)
        except ExecutionEnded as error:
            raise Ended(f"The execution has ended as {error.status}") from None

    async def _command(self, kind: CommandKind, key: str | None, sent_by: Decider | None = None) -> None:
        command, is_new = await self._store_command(kind, key, sent_by)
        self.client.strike(Failpoint.API_AFTER_COMMIT)
        settled = None if command.is_delivered else await self.carry_out(command, is_new=is_new)
        # Otherwise the workflow starts what follows its end.
        if settled and settled.launch and not settled.launch.is_waiting:
            await self.client.launch_from_store(settled.launch)
        if settled and settled.frees_place:
            await self.client.admit(self.ref.tenant_id)

    async def carry_out(self, command: Command, *, is_new: bool = False) -> Settled | None:
        """Carry out a stored command; see `CommandDelivery.carry_out`."""
        return await self._delivery.carry_out(command, is_new=is_new)

    async def cancel_pending(self, command: Command) -> bool:
        """Cancel an execution that has not started; return False if it has."""
        return await self._delivery.cancel_pending(command)

    async def wait_for_end(self) -> ExecutionRow:
        """Wait a few seconds until the end of an execution is stored, whose workflow is closing.

        Raises:
            Ending: The end is not stored yet.
        """
        return await self._delivery.wait_for_end()

    ended = wait_for_end
    """The name of `wait_for_end` in release 0.1."""

    async def deliver(self, command: Command) -> None:
        """Send a command to the workflow, and store that it was delivered.

        Raises:
            Ended: The workflow has ended, or was never started.
            Refused: The workflow does not accept it now.
        """
        await self._delivery.deliver(command)

    @property
    def _delivery(self) -> CommandDelivery:
        return CommandDelivery(self.client.store, self.workflow, self.ref)


def now() -> datetime:
    """The current time, in UTC."""
    return datetime.now(UTC)


def _need_name(need: CallNeed) -> str:
    return "question" if need is CallNeed.INPUT else "approval"
