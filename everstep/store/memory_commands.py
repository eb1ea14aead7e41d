"""Commands, steering messages and requests in the memory store."""

import json
from collections.abc import Sequence
from uuid import UUID

from everstep.agent_domain.capabilities.rights import Decider
from everstep.agent_domain.errors import NotFound
from everstep.agent_domain.ids import ExecutionRef
from everstep.agent_domain.messages.messages import Message
from everstep.agent_domain.storage.commands import Command, CommandKind, SentCommand, Steering
from everstep.agent_domain.storage.requests import RequestRow, RequestState, Resolution
from everstep.agent_domain.stream.records import EventRecord
from everstep.agent_domain.stream.session_messages import Announcement
from everstep.store import bodies, ledger_entries, transcripts
from everstep.store.memory_base import MemoryBase
from everstep.store.memory_records import (
    MemoryCommand,
    MemoryExecution,
    MemoryRequest,
    MemorySteering,
    message_from,
    require_active,
)


class MemoryCommands(MemoryBase):
    """Commands, steering messages and requests."""

    async def steer(
        self, ref: ExecutionRef, key: str, message: Message, announces: Announcement | None = None
    ) -> bool:
        """Store a message for the next step boundary; see `ExecutionStore.steer`."""
        execution = self._require_execution(ref)
        (line,) = transcripts.lines((message,))
        if key in execution.steering:
            return False
        require_active(execution)
        # The memory store has no sessions, so nothing subscribes to announcements.
        del announces
        execution.steering[key] = MemorySteering(message_from(line))
        execution.commands[f"{CommandKind.STEER}/{key}"] = MemoryCommand(CommandKind.STEER)
        entry = ledger_entries.steered_entry(key, line.role, line.content, line.metadata)
        execution.record(self._now(), entry)
        return True

    async def steering(self, ref: ExecutionRef, key: str) -> Steering | None:
        """Return the state of a steering message; this store never moves one to another execution."""
        execution = self._find(ref)
        steered = execution.steering.get(key) if execution else None
        return Steering(ref, ref, ref, is_settled=steered.heard_at is not None) if steered else None

    async def command(
        self, ref: ExecutionRef, key: str, kind: CommandKind, sent_by: Decider | None = None
    ) -> tuple[Command, bool]:
        """Store a command for the workflow; see `ExecutionStore.command`."""
        execution = self._require_execution(ref)
        is_new = key not in execution.commands
        if is_new:
            require_active(execution)
            execution.commands[key] = MemoryCommand(kind, sent_by=sent_by, sent_at=self._now())
            sender = bodies.encode_optional(sent_by and sent_by.to_dict(), "the sender")
            execution.record(self._now(), ledger_entries.command_entry(key, str(kind), sent_by, sender))
        return _command(execution, key), is_new

    async def pending_commands(self, ref: ExecutionRef) -> tuple[Command, ...]:
        """Return the commands that the workflow may not know, in order of arrival."""
        execution = self._require_execution(ref)
        return tuple(_command(execution, key) for key, c in execution.commands.items() if not c.is_delivered)

    async def sent_commands(self, ref: ExecutionRef) -> tuple[SentCommand, ...]:
        """Return the pauses, resumes and cancels that are stored, in order of arrival."""
        commands = self._require_execution(ref).commands.values()
        return tuple(SentCommand(command.kind, command.sent_at) for command in commands if command.sent_at)

    async def confirm_delivery(self, command: Command) -> None:
        """Record that a command was delivered."""
        if kept := self._require_execution(command.ref).commands.get(command.key):
            kept.is_delivered = True

    async def withdraw(self, command: Command) -> None:
        """Delete a command that the workflow refused."""
        execution = self._require_execution(command.ref)
        commands = execution.commands
        if command.key in commands and not commands[command.key].is_delivered:
            del commands[command.key]
            execution.record(self._now(), ledger_entries.withdrawn_entry(command.key))

    async def open_requests(self, ref: ExecutionRef) -> tuple[RequestRow, ...]:
        """Return the open requests, oldest first."""
        execution = self._find(ref)
        if execution is None:
            return ()
        waiting = [request for request in execution.requests.values() if request.state is RequestState.OPEN]
        in_order = sorted(waiting, key=lambda request: (request.call.step, request.call.idx))
        return tuple(_request_row(execution, request) for request in in_order)

    async def requests_within(self, ref: ExecutionRef) -> tuple[RequestRow, ...]:
        """Return all requests of an execution and of its subagents, oldest first."""
        execution = self._find(ref)
        family = [execution] if execution else []
        for member in family:
            family += [
                e for e in self._executions.values() if e.parent_execution_id == member.ref.execution_id
            ]
        asked = [(member, request) for member in family for request in member.requests.values()]
        asked.sort(key=lambda each: (each[1].created_at, each[1].call.step, each[1].call.idx))
        return tuple(_request_row(member, request) for member, request in asked)

    async def request(self, ref: ExecutionRef, request_id: UUID) -> RequestRow | None:
        """Return one request."""
        execution = self._find(ref)
        request = execution.requests.get(request_id) if execution else None
        return _request_row(execution, request) if execution and request else None

    async def find_request(self, tenant_id: str, request_id: UUID) -> RequestRow | None:
        """Return one request of a tenant."""
        for execution in self._executions.values():
            if execution.ref.tenant_id == tenant_id and (request := execution.requests.get(request_id)):
                return _request_row(execution, request)
        return None

    async def resolve(
        self, ref: ExecutionRef, request_id: UUID, resolution: Resolution, events: Sequence[EventRecord] = ()
    ) -> bool:
        """Resolve a request; see `ExecutionStore.resolve`."""
        execution = self._find(ref)
        request = execution.requests.get(request_id) if execution else None
        if execution is None or request is None:
            raise NotFound("request", request_id)
        kept = bodies.parse_resolution(json.loads(bodies.dump_resolution(resolution)))
        news = bodies.envelopes_from(ref.execution_id, events)
        if request.state is RequestState.RESOLVED or execution.is_cancel_stored:
            return False
        request.state, request.resolution = RequestState.RESOLVED, kept
        command = MemoryCommand(CommandKind(request.kind.value), request.call.call.id, resolution.is_denied)
        execution.commands[f"{request.kind}/{request_id}"] = command
        self._append_envelopes(execution, news)
        entry = ledger_entries.decided_entry(
            request_id,
            request.kind,
            resolution,
            call_id=request.call.call.id or None,
            args_digest=request.call.args_digest or None,
        )
        execution.record(self._now(), entry)
        return True

    async def resolved_under(self, ref: ExecutionRef, key: str) -> RequestRow | None:
        """Return the request that was resolved under this key."""
        execution = self._find(ref)
        if execution is None:
            return None
        for request in execution.requests.values():
            if request.resolution and request.resolution.key == key:
                return _request_row(execution, request)
        return None


def _command(execution: MemoryExecution, key: str) -> Command:
    kept = execution.commands[key]
    return Command(execution.ref, key, kept.kind, kept.call_id, kept.is_denied, kept.is_delivered)


def _request_row(execution: MemoryExecution, request: MemoryRequest) -> RequestRow:
    call = request.call
    return RequestRow(
        id=request.id,
        ref=execution.ref,
        call_id=call.call.id,
        kind=request.kind,
        state=request.state,
        tool=call.call.name,
        args=call.call.args,
        args_digest=call.args_digest,
        request=request.request,
        resolution=request.resolution,
        created_at=request.created_at,
        step_number=call.step,
        agent=execution.spec.agent,
        user_id=execution.user_id,
        policy=request.policy,
    )
