"""Sessions, for services and the HTTP API: send messages, and start, steer, fork or cancel executions.

A message is stored first, in one transaction with the execution that it starts. Then the workflow is started
under an id that derives from the execution's id. If a process crashes in between, the next attempt with the
same key or the reconciler completes the work.
"""

import logging
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any, cast
from uuid import UUID, uuid4, uuid5

from everstep.activities.failpoints import Failpoint, Strike, inert
from everstep.agent_domain.agents.definition import AgentDefinition
from everstep.agent_domain.attachments import Attachment
from everstep.agent_domain.capabilities.rights import CANCEL, Decider, command_decider
from everstep.agent_domain.errors import NotFound
from everstep.agent_domain.ids import ExecutionRef, Scope
from everstep.agent_domain.loop.status import ExecutionStatus
from everstep.agent_domain.messages.messages import Message
from everstep.agent_domain.storage.commands import Command, CommandKind, Steering, cancel_command_key
from everstep.agent_domain.storage.contexts import ContextCaller
from everstep.agent_domain.storage.executions import ExecutionEnded
from everstep.agent_domain.storage.session_store import SessionStore
from everstep.agent_domain.storage.sessions import (
    AGENT_KEY,
    CompleteMessage,
    ExecutionLaunch,
    MessageOutcome,
    NewMessage,
    NewSession,
    OnBusy,
    Route,
    SessionRow,
    Settled,
    as_it_is,
)
from everstep.agent_domain.stream import session_messages
from everstep.agent_domain.stream.session_messages import Context
from everstep.agent_domain.values import EMPTY, FrozenDict, frozen_map, json_text
from everstep.client.client import Client, plan_to_store
from everstep.client.context_validation import ContextRules
from everstep.client.errors import Ended, Refused
from everstep.client.execution import Execution, now
from everstep.client.message_ids import message_id
from everstep.client.structured_results import requested_output
from everstep.client.titles import NewSessionMessage, Titles
from everstep.client.user_messages import SendResult, UserMessage
from everstep.telemetry import tracing

log = logging.getLogger(__name__)

MAX_ATTEMPTS = 5
"""How often a message is retried whose question another sender has just answered."""


@dataclass(frozen=True)
class Sessions:
    """Sends messages to sessions and controls their executions."""

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
        """Create a session; its context is checked first.

        Args:
            scope: The tenant and user of the session.
            new: The session. Its context's URL is the default of `initial_context_url`.
            initial_context_url: The URL of the page on which it starts.
            caller: The caller for the context policy; default: the session's user.
        """
        self._require_agent(new.metadata.get(AGENT_KEY))
        policy_caller = caller or ContextCaller(new.user_id, scope.tenant_id)
        context, initial = await self.contexts.check(new.context, policy_caller, initial_context_url)
        return await self.store.create_session(replace(new, context=_session_context(context, initial)))

    async def send(self, scope: Scope, session_id: UUID, user_message: UserMessage) -> SendResult:
        """Send a message to a session.

        Raises:
            NotFound: There is no such session.
            SessionBusy: It has a running execution, and the message refuses to wait.
            SessionNotActive: It is closed or archived.
            MessageTooLong: No request to the agent's model can contain it.
            Refused: The question was answered by another sender.
        """
        user_message = replace(user_message, output=requested_output(user_message.output))
        context, _ = await self._check_context(scope, user_message)
        user_message = await self._with_stored_files(scope, user_message)
        # Without a name, the session's agent is known once its row was read.
        known = user_message if user_message.agent else replace(user_message, model=None, output=None)
        if user_message.agent:
            self._require_fit(self._require_agent(user_message.agent), user_message)
        message = self._new_message(scope, session_id, known, user_message.agent, context)

        def complete(message: NewMessage, session: SessionRow) -> NewMessage:
            agent = session.metadata.get(AGENT_KEY)
            if user_message.agent:
                return message
            definition = self._require_agent(agent)
            self._require_fit(definition, user_message)
            if not (agent or user_message.model or user_message.output):
                return message
            return replace(
                message,
                spec=self.client.spec_of(definition, user_message.model, user_message.output),
                plan=self._plan_data(definition, user_message),
            )

        sent, was_untitled = await self._post(message, user_message, complete)
        if was_untitled and sent.route is Route.START:
            self._request_title(message, sent)
        return sent

    def new_execution_id(self, scope: Scope, user_message: UserMessage) -> UUID:
        """The id of the execution that a message begins, if it begins one."""
        return self._derive_id(scope, user_message, "execution")

    async def begin(self, scope: Scope, user_message: UserMessage, title: str | None = None) -> SendResult:
        """Create a session and send its first message."""
        user_message = replace(user_message, output=requested_output(user_message.output))
        session_id = self._derive_id(scope, user_message, "session")
        context, initial = await self._check_context(scope, user_message)
        user_message = await self._with_stored_files(scope, user_message)
        self._require_fit(self._require_agent(user_message.agent), user_message)
        message = self._new_message(scope, session_id, user_message, user_message.agent, context)
        session_metadata = {AGENT_KEY: user_message.agent} if user_message.agent else EMPTY
        session_context = _session_context(context, initial)
        new = NewSession(
            session_id,
            scope.tenant_id,
            user_message.user_id,
            session_context,
            title,
            frozen_map(session_metadata),
        )
        sent, _ = await self._post(replace(message, session=new), user_message)
        if title is None:
            self._request_title(message, sent)
        return sent

    async def cancel(
        self,
        ref: ExecutionRef,
        key: str | None = None,
        *,
        is_pending: bool | None = None,
        sent_by: Decider | None = None,
    ) -> bool:
        """Cancel an execution, started or not, and start the next one of its session.

        The command is stored before anything else. Repeating the call with the same `key`, or for a
        cancelled execution, changes nothing.

        Args:
            ref: The execution, with its session.
            key: The idempotency key.
            is_pending: Whether the execution has not begun, if the caller has just read that.
            sent_by: Who cancels it, to record.

        Returns:
            Whether the end is stored; else the workflow stores it soon.

        Raises:
            Refused: It ended in another way; nothing is stored.
        """
        command_key = cancel_command_key(key or str(uuid4()))
        try:
            command, is_new = await self.client.store.command(ref, command_key, CommandKind.CANCEL, sent_by)
        except ExecutionEnded as error:
            if error.status is ExecutionStatus.CANCELLED:
                return True
            raise Ended(f"The execution has ended as {error.status}") from None
        self.strike(Failpoint.API_AFTER_COMMIT)
        if command.is_delivered:
            return True
        return await self._cancel(command, is_new=is_new, may_be_pending=is_pending is not False)

    async def carry_out(self, command: Command, *, is_new: bool = False) -> None:
        """Carry out a stored command; see `Execution.carry_out`."""
        if command.kind is CommandKind.CANCEL:
            await self._cancel(command, is_new=is_new, may_be_pending=True)
        else:
            await Execution(self.client, command.ref).carry_out(command, is_new=is_new)

    async def _cancel(self, command: Command, *, is_new: bool, may_be_pending: bool) -> bool:
        """Deliver a cancel; return whether the end is stored."""
        execution = Execution(self.client, command.ref)
        if may_be_pending and await execution.cancel_pending(command):
            await self.advance(command.ref)
            return True
        settled = await execution.carry_out(command, is_new=is_new)
        if settled:
            await self.on_end(command.ref, settled)
        return settled is not None

    async def steer(
        self,
        ref: ExecutionRef,
        content: str,
        key: str | None = None,
        sent_by: Decider | None = None,
        attachments: Sequence[Attachment] = (),
    ) -> Steering:
        """Send a message to an execution that has not ended; `sent_by` is recorded with it.

        An accepted message is delivered exactly once: to the execution before its next step, or if there is
        no such step, to its successor (`Steering.heard_by`).

        Raises:
            ExecutionEnded: It has ended; nothing is stored.
        """
        ref, key = await self._resolve_ref(ref), key or str(uuid4())
        sender = {"sent_by": sent_by.to_dict()} if sent_by else EMPTY
        announcement = session_messages.input_received_announcement(
            content, None, sender, attachments=attachments
        )
        message = Message.user(content, attachments=attachments)
        await self.client.store.steer(ref, key, message, announcement)
        self.strike(Failpoint.API_AFTER_COMMIT)
        return await self._notify_steering(ref, key)

    async def delete(self, scope: Scope, session_id: UUID) -> bool:
        """Delete a session; return whether there was one.

        Raises:
            SessionBusy: An execution of it is running.
        """
        is_deleted = await self.store.delete_session(scope, session_id)
        if is_deleted and self.client.attachments:
            await self.client.attachments.remove_garbage()
        return is_deleted

    async def fork(
        self, ref: ExecutionRef, step: int, content: str | None = None, key: str | None = None
    ) -> Execution[Any]:
        """Start an execution that copies the conversation up to a step, without running tools again.

        Args:
            ref: The execution to copy.
            step: The last step that both share.
            content: Replaces the last message of the user.
            key: An idempotency key.
        """
        ref = await self._resolve_ref(ref)
        new = replace(ref, execution_id=uuid5(ref.execution_id, f"fork/{key or uuid4()}"))
        launch = await self.store.fork(ref, step, new, content)
        self.strike(Failpoint.API_AFTER_COMMIT)
        return await self.launch(launch) if launch else Execution(self.client, new)

    async def retry(self, ref: ExecutionRef) -> Execution[Any]:
        """Start an execution that goes on where a failed one stopped, with its whole conversation.

        What its tools did is not done again: the model reads their results, and the error of the last call.
        Repeating the call changes nothing, and returns the same execution.

        Raises:
            NotFound: There is no such execution.
            CannotRetry: It has not failed, its session has gone on, or it belongs to a subagent.
            SessionBusy: An execution of its session is running or queued.
        """
        ref = await self._resolve_ref(ref)
        new = replace(ref, execution_id=uuid5(ref.execution_id, "retry"))
        launch = await self.store.retry(ref, new)
        self.strike(Failpoint.API_AFTER_COMMIT)
        return await self.launch(launch) if launch else Execution(self.client, new)

    async def launch(self, launch: ExecutionLaunch) -> Execution[Any]:
        """Start the workflow of a pending execution that is next in its session; repeating it is safe."""
        if launch.is_waiting:
            await self.admit(launch.ref.tenant_id)
            return Execution(self.client, launch.ref)
        return await self.client.launch_from_store(launch)

    async def advance(self, ref: ExecutionRef) -> bool:
        """Start the successor of an execution that has ended.

        In a session, this is the next execution in the queue. Undelivered messages of an execution without a
        session start a new execution; those of a subagent are delivered to its parent.

        Returns:
            Whether there was a successor.
        """
        successor = await self.store.hand_over(ref)
        if successor and successor.parent:
            await self._deliver_to_parent(successor.parent)
        elif successor and successor.launch:
            await self.launch(successor.launch)
        if ref.session_id is None:
            return successor is not None
        try:
            following = await self.store.release(ref.tenant_id, ref.session_id)
        except NotFound:
            # The session was deleted in the meantime.
            return False
        launch = following and await self.store.launch(following)
        if launch:
            await self.launch(launch)
        return launch is not None

    async def on_end(self, ref: ExecutionRef, settled: Settled | None) -> None:
        """Start what follows an end, or a free place; `settled` is None if an earlier attempt stored it."""
        if settled is None or (settled.has_ended and not settled.is_queue_checked):
            await self.advance(ref)
        elif settled.launch:
            await self.launch(settled.launch)
        if settled is None or settled.frees_place:
            await self.admit(ref.tenant_id)

    async def admit(self, tenant_id: str, *, is_repair: bool = False) -> int:
        """Start executions that wait for a place of their tenant; see `Client.admit`."""
        return await self.client.admit(tenant_id, is_repair=is_repair)

    async def _resolve_ref(self, ref: ExecutionRef) -> ExecutionRef:
        """The reference of the execution, including its session."""
        row = await self.client.store.execution(ref)
        if row is None:
            raise NotFound("execution", ref.execution_id)
        return row.ref

    def _request_title(self, message: NewMessage, sent: SendResult) -> None:
        if self.titles:
            ref = ExecutionRef(sent.execution_id, message.scope.tenant_id, message.session_id)
            self.titles.ask(NewSessionMessage(message.scope, ref, message.session_id, message.content))

    async def _post(
        self, message: NewMessage, user_message: UserMessage, complete: CompleteMessage = as_it_is
    ) -> tuple[SendResult, bool]:
        """Store a message and apply it; return also whether its session had no title."""
        posted = await self.store.post(message, complete)
        for _ in range(MAX_ATTEMPTS):
            if posted.message is not None:
                self.strike(Failpoint.API_AFTER_COMMIT)
                posted = await self._apply_message(posted, message, user_message)
                assert posted.message is not None  # noqa: S101 -- what is carried out keeps it
                self.strike(Failpoint.API_BEFORE_ANSWER)
                result = SendResult(posted.message, posted.route, posted.execution.execution_id)
                return result, posted.was_untitled
            await self._submit_answer(posted, message, user_message)
            # Now the answer is stored, or another sender was faster and the question is closed.
            posted = await self.store.post(message, complete)
        raise Refused("Another user is answering the question; send the message again")

    async def _submit_answer(
        self, posted: MessageOutcome, message: NewMessage, user_message: UserMessage
    ) -> None:
        with suppress(Refused):
            await Execution(self.client, posted.execution).submit_input(
                user_message.content,
                data=user_message.data,
                request_id=posted.question,
                message_id=message.id,
                context=message.context,
                metadata=message.metadata,
                by=user_message.by,
            )

    async def _apply_message(
        self, posted: MessageOutcome, message: NewMessage, user_message: UserMessage
    ) -> MessageOutcome:
        """Apply a stored message: start, steer, interrupt or answer; repeating it changes nothing."""
        tracing.name_execution(posted.execution)
        match posted.route:
            case Route.STEER:
                steering = await self._notify_steering(posted.execution, str(message.id))
                if steering.is_moved:
                    return replace(posted, route=Route.QUEUE, execution=steering.heard_by)
                return posted
            case Route.INTERRUPT if posted.cancels:
                key = cancel_command_key(str(message.id))
                with suppress(Refused):
                    await self.carry_out(Command(posted.cancels, key, CommandKind.CANCEL))
            case Route.ANSWER:
                # The process that stored it may have crashed before it was delivered.
                await self._submit_answer(posted, message, user_message)
                return posted
            case _:
                pass
        if posted.launch:
            await self.launch(posted.launch)
        elif not posted.is_behind_running:
            await self.advance(posted.execution)
        return posted

    async def _notify_steering(self, ref: ExecutionRef, key: str) -> Steering:
        """Notify an execution of a stored steering message, and return which execution receives it."""
        # A pending execution may have to be started first. A queued one receives the message when it starts.
        if launch := await self.store.launch(ref):
            await self.launch(launch)
        steering = await Execution(self.client, ref).hear(key)
        await self.advance(ref)
        return steering

    async def _deliver_to_parent(self, parent: ExecutionRef) -> None:
        """Deliver the messages to a parent that its subagent did not receive before it ended."""
        for command in await self.client.store.pending_commands(parent):
            await Execution(self.client, parent).carry_out(command)
        await self.advance(parent)

    async def _check_context(self, scope: Scope, user_message: UserMessage) -> tuple[Context, str | None]:
        caller = user_message.caller or ContextCaller(user_message.user_id, scope.tenant_id)
        return await self.contexts.check(user_message.context, caller, user_message.initial_context_url)

    def _new_message(
        self, scope: Scope, session_id: UUID, user_message: UserMessage, agent: str | None, context: Context
    ) -> NewMessage:
        definition = self._require_agent(agent)
        by = user_message.by if user_message.on_busy is OnBusy.INTERRUPT else None
        return NewMessage(
            id=self._derive_id(scope, user_message, "message"),
            session_id=session_id,
            scope=scope,
            user_id=user_message.user_id,
            content=user_message.content
            or (json_text(user_message.data) if user_message.data is not None else ""),
            spec=self.client.spec_of(definition, user_message.model, user_message.output),
            plan=self._plan_data(definition, user_message),
            execution_id=self._derive_id(scope, user_message, "execution"),
            task_queue=self.client.task_queue,
            on_busy=user_message.on_busy,
            context=context,
            metadata=frozen_map(user_message.metadata, "metadata"),
            request_id=user_message.request_id,
            sent_by=by and command_decider(by, CANCEL, user_message.user_id, now()),
            attachments=cast("tuple[Attachment, ...]", user_message.attachments),
            history=user_message.history,
        )

    def _plan_data(self, definition: AgentDefinition, given: UserMessage) -> FrozenDict:
        options: dict[str, Any] = {
            "debug": given.debug,
            "broadcast": given.broadcast,
            "budgets": given.budgets,
        }
        return plan_to_store(self.client.plan_of(definition, given.model, given.output, **options))

    async def _with_stored_files(self, scope: Scope, user_message: UserMessage) -> UserMessage:
        """The message with references of its files."""
        if not user_message.attachments:
            return user_message
        given = user_message.attachments
        stored = await self.client.require_attachments().for_message(scope, given, user_message.user_id)
        return replace(user_message, attachments=stored)

    def _require_agent(self, name: str | None) -> AgentDefinition:
        return self.client.agent(name or self.default_agent)

    def _require_fit(self, definition: AgentDefinition, user_message: UserMessage) -> None:
        files = cast("tuple[Attachment, ...]", user_message.attachments)
        self.client.require_fit(definition, user_message.model, user_message.content, files)

    def _derive_id(self, scope: Scope, user_message: UserMessage, what: str) -> UUID:
        return message_id(scope.tenant_id, user_message.user_id, user_message.key, what)


def _session_context(context: Context, initial_url: str | None) -> Context:
    # A session keeps the URL of the page on which it started.
    return replace(context, url=initial_url or context.url)
