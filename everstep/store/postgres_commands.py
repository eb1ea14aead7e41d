"""Commands, steering messages and resolutions of requests in PostgreSQL."""

from collections.abc import Sequence
from uuid import UUID

from everstep.agent_domain.capabilities.rights import Decider
from everstep.agent_domain.errors import NotFound
from everstep.agent_domain.ids import ExecutionRef
from everstep.agent_domain.messages.messages import Message
from everstep.agent_domain.storage.commands import Command, CommandKind, Steering
from everstep.agent_domain.storage.requests import Resolution
from everstep.agent_domain.stream.records import EventRecord
from everstep.agent_domain.stream.session_messages import Announcement
from everstep.store import (
    bodies,
    command_statements,
    execution_statements,
    ledger_entries,
    rows,
    transcripts,
)
from everstep.store.attachments import require_used, use_statements
from everstep.store.parameters import execution_key
from everstep.store.postgres_ledger import ledger_writes
from everstep.store.postgres_writing import PostgresWriter, require_active, require_execution
from everstep.store.transaction import Transaction


class PostgresCommands(PostgresWriter):
    """Commands, steering messages and resolutions of requests."""

    async def steer(
        self, ref: ExecutionRef, key: str, message: Message, announces: Announcement | None = None
    ) -> bool:
        """Store a message for the next step boundary; see `ExecutionStore.steer`."""
        async with self._transaction() as connection:
            return await self._store_steering(connection, ref, key, message, announces, last=True)

    async def _store_steering(
        self,
        connection: Transaction,
        ref: ExecutionRef,
        key: str,
        message: Message,
        announces: Announcement | None,
        *,
        last: bool = False,
    ) -> bool:
        (line,) = transcripts.lines((message,))
        values = {"key": key, "role": line.role, "content": line.content, "metadata": line.metadata}
        steered, *used = await connection.together(
            (command_statements.STEER, execution_key(ref) | values), *use_statements(ref, (message,))
        )
        found = steered.first()
        if found is None:
            raise NotFound("execution", ref.execution_id)
        require_used((message,), used)
        if found.is_kept:
            said = (
                [bodies.announcement_envelope(ref.execution_id, f"steered/{key}", announces)]
                if announces
                else []
            )
            entry = ledger_entries.steered_entry(key, line.role, line.content, line.metadata)
            entries = ledger_writes(ref, [entry])
            await self._append_envelopes(connection, ref, found.stream_id, said, last=last, ledger=entries)
        if not found.is_known:
            require_active(ref, found)
        return found.is_kept

    async def steering(self, ref: ExecutionRef, key: str) -> Steering | None:
        """Return the state of a steering message with this key."""
        found = await self._fetch_all(command_statements.STEERING, execution_key(ref) | {"key": key})
        return rows.steering(found[0], ref.tenant_id, key) if found else None

    async def command(
        self, ref: ExecutionRef, key: str, kind: CommandKind, sent_by: Decider | None = None
    ) -> tuple[Command, bool]:
        """Store a command for the workflow; see `ExecutionStore.command`."""
        sender = bodies.encode_optional(sent_by and sent_by.to_dict(), "the sender")
        values = execution_key(ref) | {"key": key, "kind": str(kind), "sent_by": sender}
        async with self._transaction() as connection:
            locked, made, known, _ = await connection.together(
                (execution_statements.LOCK_EXECUTION, execution_key(ref)),
                (command_statements.KEEP_COMMAND, values),
                (command_statements.KNOWN_COMMAND, values),
                *ledger_writes(ref, [ledger_entries.command_entry(key, str(kind), sent_by, sender)]),
                last=True,
            )
            execution, found = require_execution(ref, locked.first()), known.first()
            if found is None:
                require_active(ref, execution)
            return rows.command(known.one()), made.first() is not None

    async def pending_commands(self, ref: ExecutionRef) -> Sequence[Command]:
        """Return the commands that the workflow may not know, in order of arrival."""
        return tuple(
            map(rows.command, await self._fetch_all(command_statements.UNDELIVERED_OF, execution_key(ref)))
        )

    async def confirm_delivery(self, command: Command) -> None:
        """Record that a command was delivered."""
        await self._fetch_all(
            command_statements.MARK_DELIVERED, execution_key(command.ref) | {"key": command.key}
        )

    async def withdraw(self, command: Command) -> None:
        """Delete a command that the workflow refused."""
        values = execution_key(command.ref) | {"key": command.key}
        async with self._transaction() as connection:
            if (await connection.execute(command_statements.WITHDRAW, values)).first():
                entries = ledger_writes(command.ref, [ledger_entries.withdrawn_entry(command.key)])
                await connection.together(*entries, last=True)

    async def resolve(
        self, ref: ExecutionRef, request_id: UUID, resolution: Resolution, events: Sequence[EventRecord] = ()
    ) -> bool:
        """Resolve a request; see `ExecutionStore.resolve`."""
        values = {
            "request_id": request_id,
            "resolution": bodies.dump_resolution(resolution),
            "is_denied": resolution.is_denied,
        }
        async with self._transaction() as connection:
            found = (
                await connection.execute(command_statements.RESOLVE, execution_key(ref) | values)
            ).first()
            if found is None:
                raise NotFound("request", request_id)
            if found.is_answered:
                entry = ledger_entries.decided_entry(
                    request_id,
                    found.kind,
                    resolution,
                    call_id=found.call_id,
                    args_digest=found.args_digest,
                )
                entries = ledger_writes(ref, [entry])
                await self._append_events(connection, ref, found.stream_id, events, entries)
            return found.is_answered
