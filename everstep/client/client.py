"""Start executions and deal with running ones, from any service.

What people and services say goes to the store first and is then pointed at through Temporal, so
that no text stands in a workflow's history. Every call can be repeated: the same execution id, the
same key and the same answer change nothing the second time.
"""

import asyncio
from collections.abc import AsyncGenerator, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from itertools import takewhile
from typing import Any
from uuid import UUID, uuid4, uuid5

from temporalio.client import (
    Client as TemporalClient,
    WorkflowHandle,
    WorkflowUpdateFailedError,
    WorkflowUpdateRPCTimeoutOrCancelledError,
)
from temporalio.common import WorkflowIDConflictPolicy, WorkflowIDReusePolicy
from temporalio.exceptions import ApplicationError, WorkflowAlreadyStartedError
from temporalio.service import RPCError

from everstep.activities.failpoints import Failpoint, Strike, inert
from everstep.agent_domain.agents.definition import AgentDefinition
from everstep.agent_domain.agents.plan import ExecutionPlan
from everstep.agent_domain.agents.spawning import child_ref, named
from everstep.agent_domain.capabilities import approvals
from everstep.agent_domain.capabilities.approvals import ApprovalDecision, Verdict, valid_digest
from everstep.agent_domain.capabilities.questions import Answer, Question
from everstep.agent_domain.errors import EverstepError, InvalidInput, NotFound, UnknownName
from everstep.agent_domain.ids import DEFAULT_TENANT, ExecutionRef, question_id, request_id
from everstep.agent_domain.loop.facts import StateInfo
from everstep.agent_domain.loop.status import ExecutionStatus
from everstep.agent_domain.loop.step_facts import CallNeed
from everstep.agent_domain.messages.messages import Message, Messages, as_messages, user
from everstep.agent_domain.storage.commands import Command, CommandKind, Steering
from everstep.agent_domain.storage.execution_store import ExecutionStore
from everstep.agent_domain.storage.executions import ExecutionEnded, ExecutionRow, NewExecution, Page
from everstep.agent_domain.storage.forced_end import closed
from everstep.agent_domain.storage.requests import RequestRow, RequestState, Resolution
from everstep.agent_domain.storage.sessions import QuestionClosed
from everstep.agent_domain.storage.steps import StepRow
from everstep.agent_domain.stream import envelopes, session_messages
from everstep.agent_domain.stream.broadcast_config import BroadcastConfig
from everstep.agent_domain.stream.envelopes import InputSource
from everstep.agent_domain.stream.records import EventRecord
from everstep.agent_domain.stream.session_messages import NO_CONTEXT, Context
from everstep.agent_domain.tools.tools import ToolCall
from everstep.agent_domain.values import EMPTY, frozen_map, json_text
from everstep.capabilities import json_schema
from everstep.client.outages import PASSING, Meaning, meaning_of
from everstep.workflows.agent_execution import AgentExecution
from everstep.workflows.contracts import Answered, ExecutionInput, ExecutionResult, workflow_id
from everstep.workflows.search_attributes import at_start

_KEYS = UUID("6f2c1f0e-0d0b-4d7e-9a53-7b1f1c5f6a10")
"""The namespace of ids that derive from callers' keys; it must never change."""


ENDED = frozenset({ExecutionStatus.COMPLETED, ExecutionStatus.FAILED, ExecutionStatus.CANCELLED})

ENDING_SECONDS = 0.05
ENDING_LOOKS = 200
"""How often to look for how an execution has ended, which its workflow writes down as its last act."""

_UPDATES = {
    CommandKind.INPUT: "submit_input",
    CommandKind.APPROVAL: "resolve_approval",
    CommandKind.STEER: "steer",
    CommandKind.PAUSE: "pause",
    CommandKind.RESUME: "resume",
    CommandKind.CANCEL: "cancel",
}
"""What the workflow calls them."""

_WITHDRAWN = frozenset({CommandKind.PAUSE, CommandKind.RESUME, CommandKind.CANCEL})
_ORDERED = frozenset({CommandKind.PAUSE, CommandKind.RESUME})
"""What leaves nothing behind if the workflow refuses it."""

PASSING_SECONDS = 1.0
"""How long to wait before asking again."""


REQUEST = "request_digest"
"""Where an execution's metadata says which request it was accepted for."""


class Taken(EverstepError):
    """The execution of this id was accepted for another request; nothing was changed."""

    def __init__(self, execution_id: UUID) -> None:
        super().__init__(f"The execution {execution_id} was accepted for another request; draw another id")


class Refused(EverstepError):
    """The execution does not accept this now; the message says why. Nothing was changed."""


class Ended(Refused):
    """The execution has ended, or its workflow never began."""


class Gone(Ended):
    """Temporal has no workflow of the execution that could hear it."""

    def __init__(self) -> None:
        super().__init__("The execution has ended, or never began")


class Ending(EverstepError):
    """The execution is ending, and it is not stored yet how; the same request may be sent again."""

    def __init__(self) -> None:
        super().__init__("The execution is ending; ask again in a moment")


@dataclass(frozen=True)
class Client:
    """Everstep, as a service uses it."""

    temporal: TemporalClient
    store: ExecutionStore
    agents: Mapping[str, AgentDefinition] = field(default_factory=dict[str, AgentDefinition])
    """The agents that can be started from here."""
    task_queue: str = "everstep"
    tenant_id: str = DEFAULT_TENANT
    search_attributes: bool = False
    strike: Strike = inert
    """Where crash tests let this process die."""

    async def start(
        self,
        agent: str,
        message: str | Message | Iterable[Message | Mapping[str, Any] | str],
        *,
        execution_id: UUID | None = None,
        session_id: UUID | None = None,
        user_id: str | None = None,
        metadata: Mapping[str, Any] = EMPTY,
        request: str | None = None,
        debug: bool = False,
        broadcast: BroadcastConfig | None = None,
    ) -> "Execution":
        """Accept a message and start an execution for it; an id that was used before starts nothing new.

        `request` is a digest of what the caller was asked for: under the same id, another one is `Taken`.
        `debug` keeps the full state after each step, also where the agent does not; `broadcast` says how much
        viewers are told, instead of what the agent says.
        """
        definition = self.agent(agent)
        messages: Messages = (user(message),) if isinstance(message, str) else as_messages(message)
        ref = ExecutionRef(execution_id or uuid4(), self.tenant_id, session_id)
        # Criteria that no worker could find are refused here, before anything is stored.
        plan = definition.plan().debugged(debug).told(broadcast)
        plan.rules()
        row = await self.store.accept(
            NewExecution(
                ref,
                definition.spec(),
                messages,
                user_id=user_id,
                metadata=frozen_map(metadata, "metadata"),
                plan=frozen_map(plan.model_dump(mode="json")),
                task_queue=self.task_queue,
                notes=frozen_map({REQUEST: request} if request else {}),
            )
        )
        if request and row.metadata.get(REQUEST, request) != request:
            raise Taken(ref.execution_id)
        self.strike(Failpoint.API_AFTER_COMMIT)
        if row.status is not ExecutionStatus.PENDING:
            # It has begun, perhaps so long ago that Temporal does not remember.
            return Execution(self, ref)
        return await self.launch(ref, plan, clocks=row.clocks)

    async def launch(
        self,
        ref: ExecutionRef,
        plan: ExecutionPlan,
        task_queue: str | None = None,
        *,
        clocks: StateInfo | None = None,
    ) -> "Execution":
        """Start the workflow of an accepted execution; one that was started before is left alone.

        Its `clocks` begin where those of its session are.
        """
        start = ExecutionInput(ref, plan, self.search_attributes, clocks=clocks)
        session = f" · session {ref.session_id}" if ref.session_id else ""
        # It may have run, and be over: the same message was accepted before.
        with suppress(WorkflowAlreadyStartedError):
            await self.temporal.start_workflow(
                AgentExecution.run,
                start,
                id=workflow_id(ref),
                task_queue=task_queue or self.task_queue,
                id_reuse_policy=WorkflowIDReusePolicy.REJECT_DUPLICATE,
                id_conflict_policy=WorkflowIDConflictPolicy.USE_EXISTING,
                search_attributes=at_start(start),
                static_summary=f"{plan.agent}{session}",
            )
        return Execution(self, ref)

    def derived_id(self, key: str) -> UUID:
        """The execution id that a key of the caller's stands for, the same each time."""
        # A tenant with a slash may read like another one and the beginning of its key.
        tenant = json_text([self.tenant_id]) if "/" in self.tenant_id else self.tenant_id
        return uuid5(_KEYS, f"{tenant}/{key}")

    async def run(self, agent: str, message: str | Message, **given: Any) -> ExecutionRow:
        """Start an execution and wait for its end."""
        execution = await self.start(agent, message, **given)
        await execution.result()
        return await execution.get()

    def execution(self, execution_id: UUID | str, session_id: UUID | None = None) -> "Execution":
        """An execution that was started before, here or elsewhere."""
        try:
            parsed = UUID(str(execution_id))
        except ValueError:
            raise InvalidInput(f"{execution_id!r} is no execution id; it looks like {uuid4()}") from None
        return Execution(self, ExecutionRef(parsed, self.tenant_id, session_id))

    async def list(
        self, *, status: ExecutionStatus | None = None, cursor: str | None = None, limit: int = 50
    ) -> Page[ExecutionRow]:
        """Executions, newest first."""
        return await self.store.executions(self.tenant_id, status=status, cursor=cursor, limit=limit)

    def agent(self, name: str) -> AgentDefinition:
        """An agent that can be started from here; `UnknownName` lists them."""
        if name not in self.agents:
            raise UnknownName("agent", name, self.agents)
        return self.agents[name]


@dataclass(frozen=True)
class Execution:
    """One execution, wherever it runs."""

    client: Client
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
        earlier = await self._earlier(command) if command.kind in _ORDERED else []
        for each in earlier:
            with suppress(Refused):
                await self._carry_out(each, is_new=False)
        follows_pause = any(each.kind is CommandKind.PAUSE for each in earlier)
        await self._carry_out(command, is_new=is_new, follows_pause=follows_pause)

    async def _carry_out(self, command: Command, *, is_new: bool, follows_pause: bool = False) -> None:
        try:
            await (self._cancel(command) if command.kind is CommandKind.CANCEL else self.deliver(command))
        except Ended:
            # A pause that waits for the workflow to begin would otherwise hold it for ever.
            if command.kind not in _WITHDRAWN or follows_pause:
                return
            if command.kind is CommandKind.PAUSE and await self._is_pending():
                # It waits for the workflow, which then begins paused.
                return
            if is_new or command.kind is CommandKind.CANCEL:
                await self.client.store.withdraw(command)
                raise
            if not await self._is_pending():
                # An earlier attempt may have been heard.
                await self.client.store.mark_delivered(command)
        except Refused:
            await self.client.store.withdraw(command)
            raise

    async def _is_pending(self) -> bool:
        return (await self.get()).status is ExecutionStatus.PENDING

    async def _earlier(self, command: Command) -> list[Command]:
        """Pauses and resumes that were accepted before this one and may not have reached the workflow.

        They are delivered first. Otherwise a resume would be refused because the pause before it has not
        arrived yet, and that pause, delivered later, would hold the execution for ever.
        """
        waiting = await self.client.store.undelivered(self.ref)
        before = takewhile(lambda each: each.key != command.key, waiting)
        return [each for each in before if each.kind in _ORDERED]

    async def cancel_pending(self, command: Command) -> bool:
        """Carry out a cancel of an execution that has not begun; False if it has."""
        never = replace(closed(self.ref, ExecutionStatus.CANCELLED), only_pending=True)
        if not await self.client.store.settle(never):
            return False
        await self.client.store.mark_delivered(command)
        # Its workflow may have been started a moment ago; it then ends without having done anything.
        with suppress(RPCError):
            await self.workflow.cancel()
        return True

    async def _cancel(self, command: Command) -> None:
        try:
            await self.deliver(command)
        except Ended as error:
            if await self.cancel_pending(command):
                return
            # Another cancel may have been faster, or this very one, whose answer was lost. A workflow closes
            # after its end is stored; one that is still there may have to store it.
            row = await (self.get() if isinstance(error, Gone) else self.ended())
            if row.status is not ExecutionStatus.CANCELLED:
                raise
            await self.client.store.mark_delivered(command)

    async def ended(self) -> ExecutionRow:
        """How an execution has ended whose workflow has no more to do than to write it down."""
        for _ in range(ENDING_LOOKS):
            row = await self.get()
            if row.status in ENDED:
                return row
            await asyncio.sleep(ENDING_SECONDS)
        raise Ending

    async def deliver(self, command: Command) -> None:
        """Tell the workflow of a command, and note that it knows.

        Raises:
            Ended: The workflow has ended, or was never started.
            Refused: The workflow does not accept it now.
        """
        about = (Answered(command.call_id, command.is_denied),) if command.call_id else ()
        try:
            await self._update(_UPDATES[command.kind], command.key, *about)
        except Ended:
            is_left = command.kind in _WITHDRAWN or (await self.get()).status is ExecutionStatus.PENDING
            if not is_left:
                await self.client.store.mark_delivered(command)
            raise
        await self.client.store.mark_delivered(command)

    async def _update(self, update: str, key: str | None = None, *args: Answered) -> None:
        try:
            # By name: one method for all updates has no one type.
            workflow: Any = self.workflow
            await workflow.execute_update(update, args=args, id=key)
        except WorkflowUpdateFailedError as error:
            cause = error.cause
            if isinstance(cause, ApplicationError) and cause.type == "NotWaiting":
                # Somebody else's identical answer came first, and the execution has gone on.
                return
            # Its type, which the text of an `ApplicationError` begins with, says nothing to people.
            why = cause.message if isinstance(cause, ApplicationError) else str(cause or error)
            has_ended = isinstance(cause, ApplicationError) and cause.type == "AlreadyEnded"
            raise (Ended if has_ended else Refused)(why) from error
        except WorkflowUpdateRPCTimeoutOrCancelledError as error:
            # The SDK makes an ordinary exception of a cancellation. A caller that catches it would go on
            # after its task was cancelled or its limit of time was over, and then wait without a limit.
            if isinstance(error.__cause__, asyncio.CancelledError):
                raise asyncio.CancelledError from error
            raise
        except RPCError as error:
            if meaning_of(error) is Meaning.NOT_NOW:
                raise Gone from error
            raise


def is_denied(resolution: Resolution | None) -> bool:
    """Whether a person said no."""
    return resolution is not None and resolution.kind == Verdict.DENY


def _words(need: CallNeed) -> str:
    return "question" if need is CallNeed.INPUT else "approval"
