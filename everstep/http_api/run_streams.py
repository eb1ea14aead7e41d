"""Follows an execution for one reader, and sends it as the events of a wire.

The log is read from the begin of the execution, so that a reader resumes at any event: what it has received
is read and not sent. Every event carries the cursor after it as its id.
"""

import json
import logging
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from uuid import UUID

from everstep.agent_domain.errors import EverstepError
from everstep.agent_domain.ids import envelope_id
from everstep.agent_domain.storage.executions import ExecutionRow
from everstep.agent_domain.storage.sessions import ExecutionFilter
from everstep.agent_domain.stream.channels import Admission
from everstep.agent_domain.stream.reader import Position
from everstep.client.sessions import Sessions
from everstep.http_api.callers import Caller
from everstep.http_api.dependencies import Logs
from everstep.http_api.problems import refusal_of
from everstep.http_api.run_bodies import BodyLoader, load_history
from everstep.wires.event_bodies import NO_BODIES
from everstep.wires.projections import Numbering, Projection, WireEvent
from everstep.wires.run_cursors import RunCursor
from everstep.wires.run_events import RunEvent
from everstep.wires.run_log import RunLog, Start

logger = logging.getLogger(__name__)

KEEPALIVE = b":\n\n"

MAX_ROOTS = 200
"""How many of the latest executions of a session are searched for the next one to follow."""

RECONNECT = "reconnect"
"""The code of a stream that ends before its execution does: connect again."""
HISTORY_CHANGED = "history-changed"
"""The code of a stream whose position is no longer stored."""


@dataclass(frozen=True)
class RunReader:
    """The parts that following an execution needs."""

    sessions: Sessions
    caller: Caller
    logs: Logs
    session_id: UUID
    admission: Admission

    async def open(
        self,
        execution_id: UUID,
        start: Start,
        projection: Projection,
        *,
        answered: frozenset[str] = frozenset(),
        follow_on: Callable[[UUID], Projection] | None = None,
        until_head: bool = False,
    ) -> AsyncGenerator[bytes]:
        """Open the stream of an execution.

        Args:
            execution_id: The execution.
            start: Where the reader begins.
            projection: The wire.
            answered: Requests that the reader has just answered: a pause for them does not end the stream.
            follow_on: Makes the projection of the next execution of the session, to follow that one as well.
                Then the stream ends with the last one, and else with this one, or when people are needed.
            until_head: Whether the stream ends with what is stored now.

        Raises:
            StoreUnavailable: There are too many readers, or the table cannot be read.
        """
        feed, head = await self._feed(execution_id, start)
        encoder = _Encoder(
            self, execution_id, start, projection, head=head, answered=answered, until_head=until_head
        )
        return self._frames(feed, encoder, projection, follow_on)

    async def _feed(self, execution_id: UUID, start: Start) -> tuple[AsyncGenerator[bytes], int]:
        """The log from the begin of the execution, and its last envelope now."""
        head, queued = await self.logs.index.place(self.session_id, envelope_id(execution_id, "queued"))
        # The user's message comes right before.
        first = max(0, (queued or 0) - 2)
        epoch = start.epoch if isinstance(start, RunCursor) else None
        feed = await self.logs.open(self.session_id, True, Position(first, epoch), self.admission)
        return feed, head

    async def _frames(
        self,
        feed: AsyncGenerator[bytes],
        encoder: "_Encoder",
        projection: Projection,
        follow_on: Callable[[UUID], Projection] | None,
    ) -> AsyncGenerator[bytes]:
        while True:
            async with aclosing(feed):
                async for data in feed:
                    yield await encoder.frames(data)
                    if encoder.is_over:
                        break
            if not encoder.is_complete:
                return
            following = await self.next_root(encoder.execution_id) if follow_on else None
            if following is None or follow_on is None:
                break
            projection = follow_on(following)
            feed, head = await self._feed(following, None)
            encoder = _Encoder(self, following, None, projection, head=head)
        if projection.last_frame:
            yield projection.last_frame

    async def next_root(self, execution_id: UUID) -> UUID | None:
        """The execution of the session that follows this one; None if it is the last."""
        roots = [row.ref.execution_id for row in await self.roots()][::-1]
        later = roots[roots.index(execution_id) + 1 :] if execution_id in roots else []
        return later[0] if later else None

    async def roots(self) -> Sequence[ExecutionRow]:
        """The latest executions of the session, without subagents, newest first."""
        wanted = ExecutionFilter(self.session_id)
        page = await self.sessions.store.executions_of(self.caller.scope, wanted, limit=MAX_ROOTS)
        return [row for row in page.rows if row.parent_execution_id is None]


class _Encoder:
    """Turns the lines of a feed into frames of a wire."""

    def __init__(
        self,
        reader: RunReader,
        execution_id: UUID,
        start: Start,
        projection: Projection,
        *,
        head: int,
        answered: frozenset[str] = frozenset(),
        until_head: bool = False,
    ) -> None:
        self.is_over = False
        """Whether nothing follows."""
        self.is_complete = False
        """Whether the execution has ended, or waits for people."""
        self._reader = reader
        self.execution_id = execution_id
        self._start = start
        self._projection = projection
        self._head = head
        self._until_head = until_head
        self._answered = answered
        self._bodies = BodyLoader(reader.sessions, reader.caller, reader.session_id)
        self._log: RunLog | None = None
        self._numbering = Numbering(projection, start)
        self._has_history = False

    async def frames(self, data: bytes) -> bytes:
        """The frames for some lines."""
        frames: list[bytes] = []
        try:
            for line in data.split(b"\n"):
                if line and not self.is_over:
                    frames += await self._read(json.loads(line))
        except EverstepError as error:
            refusal = refusal_of(error)
            frames += self._fail(refusal.detail, RECONNECT if refusal.status >= 500 else refusal.slug)  # noqa: PLR2004
        return b"".join(frames) or KEEPALIVE

    async def _read(self, line: WireEvent) -> list[bytes]:
        match line["type"]:
            case "joined":
                return self._join(line)
            case "bye":
                return self._fail(line["reason"], RECONNECT if line["may_reconnect"] else "unauthorized")
            case _:
                return await self._take(line)

    def _join(self, line: WireEvent) -> list[bytes]:
        # A position after the end is of another log, such as the one before a restore from a backup.
        is_ahead = isinstance(self._start, RunCursor) and self._start.seq > self._head
        if is_ahead or not line["recovered"]:
            return self._fail("The events of this run are no longer stored; load it again", HISTORY_CHANGED)
        self._log = RunLog(str(self.execution_id), self._start, epoch=line["epoch"])
        return []

    async def _take(self, envelope: WireEvent) -> list[bytes]:
        if self._log is None:
            return []
        bodies = NO_BODIES
        while needs := self._log.needs(envelope, bodies):
            bodies = await self._bodies.load(needs, bodies)
        frames: list[bytes] = []
        for taken in self._log.take(envelope, bodies):
            await self._load_history(taken.event)
            encoded = self._numbering.encode(taken)
            frames += [self._projection.frame(event, id_) for event, id_ in encoded]
        is_read = self._projection.is_complete or self._log.is_at_rest(self._head, self._answered)
        if is_read or (self._until_head and self._log.seq >= self._head):
            self.is_over = self.is_complete = True
        return frames

    async def _load_history(self, event: RunEvent) -> None:
        if not self._has_history and self._projection.needs_history(event):
            reader = self._reader
            self._projection.history = await load_history(
                reader.sessions, reader.caller, reader.session_id, self.execution_id
            )
            self._has_history = True

    def _fail(self, message: str, code: str) -> list[bytes]:
        self.is_over = True
        return [self._projection.frame(event) for event in self._projection.fail(message, code)]
