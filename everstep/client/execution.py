"""One execution: read it, answer its requests, steer, pause, resume and cancel it.

What people and services say goes to the store first and is then pointed at through Temporal, so
that no text stands in a workflow's history. Every call can be repeated: the same key and the same
answer change nothing the second time.
"""

import asyncio
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any
from uuid import UUID, uuid4

from temporalio.client import (
    WorkflowHandle,
)
from temporalio.service import RPCError

from everstep.activities.failpoints import Failpoint
from everstep.agent_domain.agents.spawning import child_ref, named
from everstep.agent_domain.capabilities import approvals
from everstep.agent_domain.capabilities.approvals import ApprovalDecision, Verdict, valid_digest
from everstep.agent_domain.capabilities.questions import Answer, Question
from everstep.agent_domain.errors import InvalidInput, NotFound
from everstep.agent_domain.ids import ExecutionRef, question_id, request_id
from everstep.agent_domain.loop.status import ExecutionStatus
from everstep.agent_domain.loop.step_facts import CallNeed
from everstep.agent_domain.messages.messages import Message, user
from everstep.agent_domain.storage.commands import Command, CommandKind, Steering
from everstep.agent_domain.storage.executions import ExecutionEnded, ExecutionRow, Page
from everstep.agent_domain.storage.requests import RequestRow, RequestState, Resolution
from everstep.agent_domain.storage.sessions import QuestionClosed
from everstep.agent_domain.storage.steps import StepRow
from everstep.agent_domain.stream import envelopes, session_messages
from everstep.agent_domain.stream.envelopes import InputSource
from everstep.agent_domain.stream.records import EventRecord
from everstep.agent_domain.stream.session_messages import NO_CONTEXT, Context
from everstep.agent_domain.tools.tools import ToolCall
from everstep.agent_domain.values import EMPTY, frozen_map, json_text
from everstep.capabilities import json_schema
from everstep.client.command_delivery import CommandDelivery
from everstep.client.errors import Ended, Refused
from everstep.client.outages import PASSING
from everstep.workflows.agent_execution import AgentExecution
from everstep.workflows.contracts import ExecutionResult, workflow_id

if TYPE_CHECKING:
    # The client makes executions, so it cannot be imported here when it is loaded.
    from everstep.client.client import Client

PASSING_SECONDS = 1.0
"""How long to wait before asking again."""


@dataclass(frozen=True)
class Execution:
    """One execution, wherever it runs."""

    client: "Client"
    ref: ExecutionRef

    @property
    def id(self) -> UUID:
        """Its id."""
        return self.ref.execution_id

    @property
    def workflow(self) -> WorkflowHandle[Any, ExecutionResult]:
        """Its workflow, for those who know Temporal."""
        return self.client.temporal.get_workflow_handle_for(AgentExecution.run, workflow_id(self.ref))

    async def get(self) -> ExecutionRow:
        """Where it stands."""
        row = await self.client.store.execution(self.ref)
        if row is None:
            raise NotFound("execution", self.id)
        return row

    async def steps(self) -> Sequence[StepRow]:
        """What it did, step by step."""
        await self.get()
        return await self.client.store.steps(self.ref)

    async def steps_after(self, after: int = 0, limit: int = 50) -> Page[StepRow]:
        """A page of what it did, from after a step; the cursor is the `after` of the next page."""
        await self.get()
        return await self.client.store.steps_after(self.ref, after, limit)

    async def each_step(self, after: int = 0) -> AsyncGenerator[StepRow]:
        """What it did, step by step, from after a step; no more than a page of it is held at a time."""
        cursor: str | None = str(after)
        while cursor is not None:
            page = await self.steps_after(int(cursor))
            for row in page.rows:
                yield row
            cursor = page.cursor

    async def result(self) -> ExecutionResult:
        """How it ended; waits for that, and survives outages meanwhile."""
        await self.get()
        while True:
            try:
                return await self.workflow.result()
            except RPCError as error:
                if error.status not in PASSING:
                    raise
            await asyncio.sleep(PASSING_SECONDS)

    async def requests(self) -> Sequence[RequestRow]:
        """The questions and approvals that people are asked for, oldest first."""
        await self.get()
        return await self.client.store.open_requests(self.ref)

    async def asked(self) -> Sequence[RequestRow]:
        """What it waits for people to answer: its own requests, then those of its subagents."""
        own = await self.requests()
        return [*own, *[each for child in await self.subagents() for each in await child.asked()]]

    async def all_requests(self) -> Sequence[RequestRow]:
        """What people were asked by it and its subagents, answered or not, oldest first."""
        return await self.client.store.requests_within(self.ref)

    async def subagents(self) -> Sequence["Execution"]:
        """The executions that work for its step under way."""
        calls = [call for step in await self.client.store.steps(self.ref, last=1) for call in step.calls]
        refs = [child_ref(self.ref, call.call.id) for call in calls if call.record is None]
        rows = [await self.client.store.execution(ref) for ref in refs]
        return [Execution(self.client, row.ref) for row in rows if row]

    # People.

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
    ) -> RequestRow:
        """Answer its oldest question, or the one named; an answer that does not fit changes nothing.

        The same `key` again is the same answer.
        """
        if known := await self._resolved_under(key):
            return known
        request = await self._open(CallNeed.INPUT, request_id)
        question = Question.parse(request.request)
        result = question.result(Answer(text, data), json_schema.check)
        place = request.id, request.call_id, request.step_number
        received = envelopes.input_received(*place, InputSource.USER, message_id)
        noted = {**metadata, "request_id": str(request.id)}
        said = session_messages.input_received(text or json_text(data), message_id, noted, context)
        resolution = Resolution("answer", result, key=key)
        if not await self._resolve(request, resolution, [replace(received, announces=said)]):
            await self._require_heard(request, result)
        self.client.strike(Failpoint.API_AFTER_COMMIT)
        await self._tell(request)
        return request

    async def _resolved_under(self, key: str | None) -> RequestRow | None:
        """The request that this very decision has settled, once the workflow knows of it."""
        known = None if key is None else await self.client.store.resolved_under(self.ref, key)
        if known:
            with suppress(Refused):
                await self._tell(known, denied=is_denied(known.resolution))
        return known

    async def _require_heard(self, request: RequestRow, result: object) -> None:
        """Refuse what is not the answer that was taken; it may be that very one, whose sender was lost."""
        taken = await self.client.store.request(self.ref, request.id)
        if taken and taken.resolution and taken.resolution.value == result:
            return
        # Whoever gave the other one may have been lost, too, before the execution heard of it.
        with suppress(Refused):
            await self._tell(request)
        raise Refused(str(QuestionClosed()))

    async def approve(
        self,
        request_id: UUID | None = None,
        *,
        args_digest: str | None = None,
        key: str | None = None,
        remember: bool | Mapping[str, str] = False,
    ) -> RequestRow:
        """Let the call run with exactly the arguments that were shown.

        Args:
            request_id: The request; without it the oldest open one.
            args_digest: The digest of the arguments that were shown. Without it, the decision holds for the
                arguments of the request as this call reads it.
            key: The same key again is the same decision.
            remember: Later calls of the tool in this execution run without asking: all of them, or those
                whose arguments match these globs.

        Raises:
            InvalidInput: The digest is malformed, or the globs do not match the call.
            Refused: The digest is that of another call, or the request is decided or closed.
        """
        decided = {"decision": Verdict.APPROVE, "remember": remember}
        return await self._decide(request_id, args_digest, decided, key)

    async def deny(
        self,
        request_id: UUID | None = None,
        *,
        reason: str | None = None,
        args_digest: str | None = None,
        key: str | None = None,
    ) -> RequestRow:
        """Do not let the call run; the model reads why."""
        decided = {"decision": Verdict.DENY, "reason": reason}
        return await self._decide(request_id, args_digest, decided, key)

    async def edit(
        self,
        args: Mapping[str, Any],
        request_id: UUID | None = None,
        *,
        args_digest: str | None = None,
        key: str | None = None,
    ) -> RequestRow:
        """Let the call run with other arguments."""
        return await self._decide(request_id, args_digest, {"decision": Verdict.EDIT, "args": args}, key)

    async def _decide(
        self, request_id: UUID | None, digest: str | None, decided: Mapping[str, Any], key: str | None
    ) -> RequestRow:
        if digest is not None:
            valid_digest(digest)
        if known := await self._resolved_under(key):
            return known
        request = await self._open(CallNeed.APPROVAL, request_id)
        bound_to = request.args_digest if digest is None else digest
        decision = ApprovalDecision.parse({**decided, "args_digest": bound_to})
        conflict = decision.conflict(request.args_digest, request.state is RequestState.RESOLVED)
        if request.state is RequestState.RESOLVED:
            # Only then: what nobody decided must not be told.
            with suppress(Refused):
                await self._tell(request, denied=is_denied(request.resolution))
        if conflict:
            raise Refused(conflict)
        await self._require_usable(request, decision)
        told = envelopes.approval_resolved(request.id, request.call_id, decision)
        value = decision.args if decision.decision is Verdict.EDIT else None
        rule = decision.remembered(request.tool, request.args)
        resolution = Resolution(decision.decision.value, value, decision.reason, key, rule)
        if not await self._resolve(request, resolution, [told]):
            # Perhaps this very decision was faster in another process.
            if known := await self._resolved_under(key):
                return known
            raise Refused(approvals.RESOLVED)
        self.client.strike(Failpoint.API_AFTER_COMMIT)
        await self._tell(request, denied=is_denied(resolution))
        return request

    async def _require_usable(self, request: RequestRow, decision: ApprovalDecision) -> None:
        """Arguments that people wrote are checked like a model's."""
        row = await self.get()
        definition = named(self.client.agents, row.agent)
        if decision.args is None or definition is None:
            return
        edited = ToolCall(request.call_id, request.tool, frozen_map(decision.args))
        if definition.toolsets:
            definition = definition.with_listed(await self.client.store.listed(self.ref) or EMPTY)
        refusal = definition.tools.refusal(edited)
        if refusal:
            raise InvalidInput(refusal)

    async def _open(self, need: CallNeed, request_id: UUID | None) -> RequestRow:
        """The request that is meant: the one named, or the oldest open one."""
        if request_id is not None:
            request = await self.client.store.request(self.ref, request_id)
            if request is None or request.kind is not need:
                raise Refused(f"There is no {_words(need)} {request_id}")
            return request
        waiting = [row for row in await self.requests() if row.kind is need]
        waiting = waiting or await self._answered(need)
        if not waiting:
            raise Refused(f"No {_words(need)} is open")
        return waiting[0]

    async def _answered(self, need: CallNeed) -> list[RequestRow]:
        """What is answered while its call has not begun: the execution may not have been told."""
        steps = await self.client.store.steps(self.ref, last=1)
        begun = [row.call.id for step in steps for row in step.calls if row.attempts == 0 and not row.record]
        ids = [identity(self.id, call) for call in begun for identity in (request_id, question_id)]
        asked = [await self.client.store.request(self.ref, id_) for id_ in ids]
        return [request for request in asked if request and request.kind is need]

    async def _tell(self, request: RequestRow, *, denied: bool = False) -> None:
        """Let the execution know that this is answered; it may know already."""
        kind = CommandKind(request.kind.value)
        await self.deliver(Command(self.ref, f"{kind}/{request.id}", kind, request.call_id, denied))

    async def _resolve(
        self, request: RequestRow, resolution: Resolution, events: Sequence[EventRecord]
    ) -> bool:
        return await self.client.store.resolve(self.ref, request.id, resolution, events)

    async def steer(self, message: str | Message, *, key: str | None = None) -> Steering:
        """Say something that is heard before the next step.

        Once this is accepted, it is heard exactly once: by this execution, or if that ends before its next
        step, by another one (`Steering.heard_by`). The same `key` again says nothing more.

        Raises:
            ExecutionEnded: The execution has ended; nothing was said.
        """
        await self.get()
        key = key or str(uuid4())
        said = user(message) if isinstance(message, str) else message
        heard = session_messages.input_received(said.text, None)
        await self.client.store.steer(self.ref, key, said, heard)
        self.client.strike(Failpoint.API_AFTER_COMMIT)
        return await self.hear(key)

    async def hear(self, key: str) -> Steering:
        """Let the execution know that a steered message waits in the store; who hears it."""
        steering = await self.client.store.steering(self.ref, key)
        if steering is None:
            raise NotFound("steered message", key)
        if steering.is_settled:
            return steering
        try:
            await self.deliver(Command(self.ref, f"{CommandKind.STEER}/{key}", CommandKind.STEER))
        except Ended:
            if (await self.get()).status is not ExecutionStatus.PENDING:
                # It has no next step.
                return replace(steering, heard_by=steering.otherwise)
        return steering

    async def pause(self, *, key: str | None = None) -> None:
        """Hold still once the work under way is done."""
        await self._command(CommandKind.PAUSE, key)

    async def resume(self, *, key: str | None = None) -> None:
        """Go on."""
        await self._command(CommandKind.RESUME, key)

    async def cancel(self, *, key: str | None = None) -> None:
        """Stop now; the step under way is given up.

        The wish is stored before the workflow hears of it, so it outlives this process. The same `key` again
        changes nothing.

        Raises:
            Refused: The execution ended in another way.
        """
        await self._command(CommandKind.CANCEL, key)

    async def _command(self, kind: CommandKind, key: str | None) -> None:
        try:
            command, is_new = await self.client.store.command(self.ref, f"{kind}/{key or uuid4()}", kind)
        except ExecutionEnded as error:
            raise Ended(f"The execution has ended as {error.status}") from None
        self.client.strike(Failpoint.API_AFTER_COMMIT)
        if not command.is_delivered:
            await self.carry_out(command, is_new=is_new)

    async def carry_out(self, command: Command, *, is_new: bool = False) -> None:
        """Do what a stored command says.

        Args:
            command: The command.
            is_new: Whether no other attempt can have carried it out before.

        Raises:
            Refused: It cannot be carried out; it is withdrawn, and nothing was changed.
        """
        await self._delivery.carry_out(command, is_new=is_new)

    async def cancel_pending(self, command: Command) -> bool:
        """Carry out a cancel of an execution that has not begun; False if it has."""
        return await self._delivery.cancel_pending(command)

    async def ended(self) -> ExecutionRow:
        """Wait a few seconds until the end of an execution is stored, whose workflow is closing.

        Raises:
            Ending: The end is not stored yet.
        """
        return await self._delivery.ended()

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


def is_denied(resolution: Resolution | None) -> bool:
    """Whether a person said no."""
    return resolution is not None and resolution.kind == Verdict.DENY


def _words(need: CallNeed) -> str:
    return "question" if need is CallNeed.INPUT else "approval"
