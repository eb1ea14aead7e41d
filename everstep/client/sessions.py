"""Sessions, as services and the HTTP API use them: say something, and see what becomes of it.

What is said is stored first, in one transaction with the execution that it begins; then the workflow is
started, under an id that follows from the execution's. Whoever is lost in between is made up for by the
next attempt with the same key, or by the reconciler.
"""

import asyncio
import logging
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any
from uuid import UUID, uuid4, uuid5

from temporalio.client import WorkflowUpdateRPCTimeoutOrCancelledError

from everstep.activities.failpoints import Failpoint, Strike, inert
from everstep.agent_domain.agents.definition import AgentDefinition
from everstep.agent_domain.agents.plan import ExecutionPlan
from everstep.agent_domain.errors import NotFound
from everstep.agent_domain.ids import ExecutionRef, Scope
from everstep.agent_domain.loop.status import ExecutionStatus
from everstep.agent_domain.messages.messages import user
from everstep.agent_domain.storage.commands import Command, CommandKind, Steering, cancel_key
from everstep.agent_domain.storage.contexts import ContextCaller
from everstep.agent_domain.storage.executions import ExecutionEnded
from everstep.agent_domain.storage.sessions import (
    Launch,
    NewMessage,
    NewSession,
    OnBusy,
    Posted,
    Route,
    SessionMessageRow,
    SessionRow,
    SessionStore,
)
from everstep.agent_domain.stream import session_messages
from everstep.agent_domain.stream.broadcast_config import BroadcastConfig
from everstep.agent_domain.stream.session_messages import NO_CONTEXT, Context
from everstep.agent_domain.values import EMPTY, frozen_map, json_text, reading
from everstep.client.client import Client
from everstep.client.contexts import ContextRules
from everstep.client.errors import Ended, Refused
from everstep.client.execution import Execution
from everstep.client.titles import Titles

log = logging.getLogger(__name__)

NAMES = UUID("b7f3a1de-3b1c-4c1e-8a55-0f5c8f3a9d21")
"""The namespace of ids that derive from senders' keys; it must never change."""

TRIES = 5
"""How often a message may find that somebody else has just answered the question that it is for."""

UNANSWERED = (TimeoutError, WorkflowUpdateRPCTimeoutOrCancelledError)
"""What comes of a limit of time: the second where it is one of Temporal's client, or of its server."""

DELIVERY_SECONDS = 5.0
"""How long an execution that begins may take to hear what was said before."""

AGENT = "agent"
"""Where a session's metadata names the agent that its messages go to."""


@dataclass(frozen=True, slots=True)
class Said:
    """What a person says in a session. `key` makes it repeatable: the same one changes nothing."""

    content: str
    user_id: str
    data: Any = None
    """The answer to a form."""
    request_id: UUID | None = None
    """The question that it answers."""
    on_busy: OnBusy = OnBusy.ENQUEUE
    context: Context = NO_CONTEXT
    agent: str | None = None
    metadata: Mapping[str, Any] = EMPTY
    debug: bool = False
    """Whether the execution that it begins keeps the full state after each step."""
    broadcast: BroadcastConfig | None = None
    """How much viewers of that execution are told; else, what the agent says."""
    key: str = field(default_factory=lambda: str(uuid4()))
    initial_context_url: str | None = None
    """The page on which a session begins that is made for it; else `context.url`."""
    caller: ContextCaller | None = None
    """Who is asked about in the context policy; else the user, without scopes and roles."""


@dataclass(frozen=True, slots=True)
class Sent:
    """What became of it."""

    message: SessionMessageRow
    route: Route
    execution_id: UUID


@dataclass(frozen=True)
class Sessions:
    """The sessions of an installation."""

    client: Client
    store: SessionStore
    default_agent: str
    contexts: ContextRules = field(default_factory=ContextRules)
    titles: Titles | None = None
    strike: Strike = inert

    async def create(
        self,
        scope: Scope,
        new: NewSession,
        initial_context_url: str | None = None,
        caller: ContextCaller | None = None,
    ) -> SessionRow:
        """Make a session; its context is checked first.

        Args:
            scope: whose sessions are touched.
            new: the session. It keeps its context's URL where no other one is given.
            initial_context_url: the page on which it begins.
            caller: who asks, for the context policy; else the session's user.
        """
        self._require_agent(new.metadata.get(AGENT))
        asks = caller or ContextCaller(new.user_id, scope.tenant_id)
        context, initial = await self.contexts.checked(new.context, asks, initial_context_url)
        return await self.store.create_session(replace(new, context=_of_session(context, initial)))

    async def send(self, scope: Scope, session_id: UUID, said: Said) -> Sent:
        """Say something in a session."""
        session = await self.store.session(scope, session_id)
        if session is None:
            raise NotFound("session", session_id)
        agent = said.agent or session.metadata.get(AGENT) or self.default_agent
        context, _ = await self._checked(scope, said)
        message = self._message(scope, session_id, said, agent, context)
        sent = await self._sent(message, said)
        if session.title is None and sent.route is Route.START:
            self._entitle(message)
        return sent

    async def begin(self, scope: Scope, said: Said, title: str | None = None) -> Sent:
        """Say something in a session that is made for it."""
        session_id = self._named(scope, said, "session")
        context, initial = await self._checked(scope, said)
        message = self._message(scope, session_id, said, said.agent or self.default_agent, context)
        noted = {AGENT: said.agent} if said.agent else EMPTY
        about = _of_session(context, initial)
        new = NewSession(session_id, scope.tenant_id, said.user_id, about, title, frozen_map(noted))
        sent = await self._sent(replace(message, session=new), said)
        if title is None:
            self._entitle(message)
        return sent

    async def cancel(self, ref: ExecutionRef, key: str | None = None) -> None:
        """Cancel an execution, begun or not; the next of its session gets its turn.

        The wish is stored first. The same `key` again changes nothing, and one that was cancelled stays so.

        Raises:
            Refused: It ended in another way; nothing is left stored.
        """
        ref = await self._in_session(ref)
        named = cancel_key(key or str(uuid4()))
        try:
            command, is_new = await self.client.store.command(ref, named, CommandKind.CANCEL)
        except ExecutionEnded as error:
            if error.status is ExecutionStatus.CANCELLED:
                return
            raise Ended(f"The execution has ended as {error.status}") from None
        self.strike(Failpoint.API_AFTER_COMMIT)
        if not command.is_delivered:
            await self.carry_out(command, is_new=is_new)

    async def carry_out(self, command: Command, *, is_new: bool = False) -> None:
        """Do what a stored command says; see `Execution.carry_out`."""
        execution = Execution(self.client, command.ref)
        if command.kind is not CommandKind.CANCEL:
            await execution.carry_out(command, is_new=is_new)
        else:
            if not await execution.cancel_pending(command):
                await execution.carry_out(command, is_new=is_new)
            await self.advance(command.ref)

    async def steer(self, ref: ExecutionRef, content: str, key: str | None = None) -> Steering:
        """Say something to an execution that has not ended.

        Once this is accepted, it is heard exactly once: by the execution before its next step, or if there
        is no such step, by another one (`Steering.heard_by`), which begins after it.

        Raises:
            ExecutionEnded: It has ended; nothing is stored.
        """
        ref, key = await self._in_session(ref), key or str(uuid4())
        said = session_messages.input_received(content, None)
        await self.client.store.steer(ref, key, user(content), said)
        self.strike(Failpoint.API_AFTER_COMMIT)
        return await self._hear(ref, key)

    async def delete(self, scope: Scope, session_id: UUID) -> bool:
        """Remove a session; `SessionBusy` while an execution of it is under way."""
        return await self.store.delete_session(scope, session_id)

    async def fork(
        self, ref: ExecutionRef, step: int, content: str | None = None, key: str | None = None
    ) -> Execution:
        """Another execution that shares this one's conversation up to a step, and runs no tool again."""
        ref = await self._in_session(ref)
        new = replace(ref, execution_id=uuid5(ref.execution_id, f"fork/{key or uuid4()}"))
        launch = await self.store.fork(ref, step, new, content)
        self.strike(Failpoint.API_AFTER_COMMIT)
        return await self.launch(launch) if launch else Execution(self.client, new)

    async def launch(self, launch: Launch) -> Execution:
        """Start the workflow of a pending execution whose turn it is; again changes nothing."""
        with reading("the execution's plan"):
            plan = ExecutionPlan.model_validate(launch.plan)
        execution = await self.client.launch(launch.ref, plan, launch.task_queue, clocks=launch.clocks)
        if launch.has_commands:
            await self._deliver_early(execution)
        return execution

    async def _deliver_early(self, execution: Execution) -> None:
        """What people said before it began; without a worker the reconciler does this later."""
        try:
            async with asyncio.timeout(DELIVERY_SECONDS):
                for command in await self.client.store.undelivered(execution.ref):
                    with suppress(Refused):
                        await self.carry_out(command)
        except UNANSWERED:
            log.warning("the execution %s has not heard yet what was said to it", execution.id)

    async def advance(self, ref: ExecutionRef) -> bool:
        """Let what comes after an execution begin, if it has ended; whether there is anything.

        In a session that is the next execution in the queue. What an execution without a session, or a
        subagent, did not hear begins an execution that follows it, or is said to the one it worked for.
        """
        handed = await self.store.hand_over(ref)
        if handed and handed.parent:
            await self._hear_for(handed.parent)
        elif handed and handed.launch:
            await self.launch(handed.launch)
        if ref.session_id is None:
            return handed is not None
        try:
            following = await self.store.release(ref.tenant_id, ref.session_id)
        except NotFound:
            # The session was deleted meanwhile.
            return False
        launch = following and await self.store.launch(following)
        if launch:
            await self.launch(launch)
        return launch is not None

    async def _in_session(self, ref: ExecutionRef) -> ExecutionRef:
        """The execution with the session that it belongs to."""
        row = await self.client.store.execution(ref)
        if row is None:
            raise NotFound("execution", ref.execution_id)
        return row.ref

    # What becomes of a message.

    def _entitle(self, message: NewMessage) -> None:
        if self.titles:
            self.titles.ask(message.scope, message.session_id, message.content)

    async def _sent(self, message: NewMessage, said: Said) -> Sent:
        posted = await self.store.post(message)
        for _ in range(TRIES):
            if posted.message is not None:
                self.strike(Failpoint.API_AFTER_COMMIT)
                posted = await self._carry_out(posted, message, said)
                assert posted.message is not None  # noqa: S101 -- what is carried out keeps it
                self.strike(Failpoint.API_BEFORE_ANSWER)
                return Sent(posted.message, posted.route, posted.execution.execution_id)
            await self._answer(posted, message, said)
            # Now it is stored; or somebody was quicker, and it answers nothing any more.
            posted = await self.store.post(message)
        raise Refused("The question is being answered by somebody else; send the message again")

    async def _answer(self, posted: Posted, message: NewMessage, said: Said) -> None:
        with suppress(Refused):
            await Execution(self.client, posted.execution).submit_input(
                said.content,
                data=said.data,
                request_id=posted.question,
                message_id=message.id,
                context=message.context,
                metadata=message.metadata,
            )

    async def _carry_out(self, posted: Posted, message: NewMessage, said: Said) -> Posted:
        """What has to be done outside of the store, and what came of it; again changes nothing."""
        match posted.route:
            case Route.STEER:
                steering = await self._hear(posted.execution, str(message.id))
                if steering.is_moved:
                    return replace(posted, route=Route.QUEUE, execution=steering.heard_by)
                return posted
            case Route.INTERRUPT if posted.cancels:
                key = cancel_key(str(message.id))
                with suppress(Refused):
                    await self.carry_out(Command(posted.cancels, key, CommandKind.CANCEL))
            case Route.ANSWER:
                # Whoever stored it may have been lost before the execution heard of it.
                await self._answer(posted, message, said)
                return posted
            case _:
                pass
        if posted.launch:
            await self.launch(posted.launch)
        else:
            await self.advance(posted.execution)
        return posted

    async def _hear(self, ref: ExecutionRef, key: str) -> Steering:
        """Let an execution know what waits for it in the store; who hears it."""
        # One whose turn it is may not have been started yet. One that waits for its turn is told then.
        if launch := await self.store.launch(ref):
            await self.launch(launch)
        steering = await Execution(self.client, ref).hear(key)
        await self.advance(ref)
        return steering

    async def _hear_for(self, parent: ExecutionRef) -> None:
        """Tell an execution what a subagent did not hear before it ended."""
        for command in await self.client.store.undelivered(parent):
            await Execution(self.client, parent).carry_out(command)
        await self.advance(parent)

    async def _checked(self, scope: Scope, said: Said) -> tuple[Context, str | None]:
        caller = said.caller or ContextCaller(said.user_id, scope.tenant_id)
        return await self.contexts.checked(said.context, caller, said.initial_context_url)

    def _message(
        self, scope: Scope, session_id: UUID, said: Said, agent: str, context: Context
    ) -> NewMessage:
        definition = self._require_agent(agent)
        plan = definition.plan().debugged(said.debug).told(said.broadcast)
        plan.rules()
        return NewMessage(
            id=self._named(scope, said, "message"),
            session_id=session_id,
            scope=scope,
            user_id=said.user_id,
            content=said.content or (json_text(said.data) if said.data is not None else ""),
            spec=definition.spec(),
            plan=frozen_map(plan.model_dump(mode="json")),
            execution_id=self._named(scope, said, "execution"),
            task_queue=self.client.task_queue,
            on_busy=said.on_busy,
            context=context,
            metadata=frozen_map(said.metadata, "metadata"),
            request_id=said.request_id,
        )

    def _require_agent(self, name: str | None) -> AgentDefinition:
        return self.client.agent(name or self.default_agent)

    def _named(self, scope: Scope, said: Said, what: str) -> UUID:
        """An id that follows from the sender's key, the same each time."""
        whose = f"{scope.tenant_id}/{said.user_id}"
        if whose.count("/") > 1:
            # Two names with a slash may read like two others.
            whose = json_text([scope.tenant_id, said.user_id])
        return uuid5(NAMES, f"{whose}/{said.key}/{what}")


def _of_session(context: Context, initial_url: str | None) -> Context:
    """A session keeps the page on which it began."""
    return replace(context, url=initial_url or context.url)
