"""Resource limits of an HTTP connection before its caller is authenticated.

uvicorn parses HTTP with h11 and runs the application. It has no limits for a client that sends half a head,
that sends nothing, or that sends more than it reads. This protocol adds them:

- connections are counted, in total and by address, and those over the limit are refused at once;
- a head has limits on size, number of lines and time; an idle connection has a time limit;
- a body is read from the socket only while the application asks for it;
- a client that does not read its response is disconnected.

Reads are small, so a request holds one head and one read in memory until its caller is known.
"""

import asyncio
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Self, cast

import h11
from uvicorn.config import Config
from uvicorn.protocols.http.h11_impl import H11Protocol, RequestResponseCycle
from uvicorn.server import ServerState

from everstep.http_api import problems
from everstep.http_api.middleware import MAX_HEAD, MAX_HEADERS
from everstep.http_api.problems import Refusal

_READ = bytearray(16 * 1024)
"""The shared buffer of all reads in the process: each read is copied out before the next one."""
_READ_VIEW = memoryview(_READ)

SPARE_CONNECTIONS = 100
"""Connections over the limit that get a response; further ones are closed without one."""


@dataclass(frozen=True, slots=True)
class ConnectionLimits:
    """The limits of one process."""

    connections: int = 2000
    per_address: int = 500
    head_seconds: float = 10.0
    """From the first byte of a head to its last."""
    idle_seconds: float = 30.0
    """The time for a connection to begin its first or its next request."""
    stall_seconds: float = 30.0
    """The time in which a client has to read some of the response."""
    linger_seconds: float = 2.0
    """The time for a client to read a refusal."""

    def within(self, descriptors: int) -> Self:
        """Return the limits with no more connections than file descriptors allow: each takes one."""
        return replace(self, connections=min(self.connections, descriptors))


class ConnectionCounter:
    """The connections of a server."""

    def __init__(self, limits: ConnectionLimits) -> None:
        self.limits = limits
        self.by_address = Counter[str]()
        """Admitted connections."""
        self.refused = 0
        """Connections that are being sent a refusal."""

    def admit(self, address: str) -> bool:
        """Count a connection and return True if there is room for it."""
        limits = self.limits
        if self.by_address.total() >= limits.connections or self.by_address[address] >= limits.per_address:
            return False
        self.by_address[address] += 1
        return True

    def leave(self, address: str) -> None:
        """Uncount an admitted connection."""
        self.by_address[address] -= 1
        if not self.by_address[address]:
            del self.by_address[address]


class LimitedConnection(H11Protocol, asyncio.BufferedProtocol):  # pyright: ignore[reportUnsafeMultipleInheritance] -- neither has state
    """The connection of one client."""

    def __init__(
        self,
        connections: ConnectionCounter,
        config: Config,
        server_state: ServerState,
        app_state: dict[str, Any],
        _loop: asyncio.AbstractEventLoop | None = None,
    ) -> None:
        super().__init__(config, server_state, app_state, _loop)
        self._connections = connections
        self._limits = connections.limits
        self._address = ""
        self._is_admitted = False
        self._is_refused = False
        self._is_in_head = False
        self._due: asyncio.TimerHandle | None = None
        self._stall: asyncio.TimerHandle | None = None

    # Callbacks of the transport.

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override] -- as uvicorn has it
        """Count the connection, and refuse it if there are too many."""
        super().connection_made(transport)
        self._address = self.client[0] if self.client else ""
        self._is_admitted = self._connections.admit(self._address)
        if self._is_admitted:
            self._await_request()
            return
        self._connections.refused += 1
        if self._connections.refused > SPARE_CONNECTIONS:
            transport.abort()
        else:
            self._refuse(problems.too_many_connections())

    def connection_lost(self, exc: Exception | None) -> None:
        """Uncount the connection and cancel its timers."""
        super().connection_lost(exc)
        self._cancel_due()
        if self._stall:
            self._stall.cancel()
        if self._is_admitted:
            self._connections.leave(self._address)
        else:
            self._connections.refused -= 1

    def get_buffer(self, sizehint: int) -> bytearray:
        """Return the buffer for the next read."""
        del sizehint
        return _READ  # type: ignore[return-value]

    def buffer_updated(self, nbytes: int) -> None:
        """Process the bytes that were read."""
        self.data_received(bytes(_READ_VIEW[:nbytes]))

    def data_received(self, data: bytes) -> None:
        """Parse the data and enforce the limits."""
        if self._is_refused:
            return
        super().data_received(data)
        if not self._is_refused:
            self._enforce_limits()

    def pause_writing(self) -> None:
        """Start the timer for a client that reads too slowly."""
        super().pause_writing()
        self._watch_writing()

    # Callbacks of uvicorn.

    def on_response_complete(self) -> None:
        """Wait for the next request."""
        super().on_response_complete()
        self._watch_writing()
        if not self.transport.is_closing() and not self._is_refused:
            self._enforce_limits()

    def timeout_keep_alive_handler(self) -> None:
        """Close a connection that sent no further request."""
        super().timeout_keep_alive_handler()
        self._watch_writing()

    def send_400_response(self, msg: str) -> None:
        """Refuse a malformed request or body."""
        del msg
        is_too_large = len(self._unread_input) > MAX_HEAD
        refusal = problems.head_too_large(MAX_HEAD, MAX_HEADERS) if is_too_large else problems.bad_request()
        cycle = self._open_cycle
        if cycle and cycle.response_started:
            self.transport.close()
            self._watch_writing()
            return
        if cycle:
            # The application must not answer a request that never arrived.
            cycle.disconnected = True
            cycle.message_event.set()
        self._refuse(refusal)

    # Enforcement of the limits.

    @property
    def _open_cycle(self) -> RequestResponseCycle | None:
        cycle = cast("RequestResponseCycle | None", self.cycle)
        return None if cycle is None or cycle.response_complete else cycle

    @property
    def _unread_input(self) -> bytes:
        return self.conn.trailing_data[0]

    def _enforce_limits(self) -> None:
        if self.conn.their_state is not h11.IDLE:
            self._cancel_due()
            cycle = self._open_cycle
            if cycle and cycle.more_body:
                # The application resumes reading whenever it asks for a part of the body.
                self.flow.pause_reading()
            return
        unparsed = self._unread_input
        if unparsed.count(b"\n") > MAX_HEADERS + 1:
            self._refuse(problems.head_too_large(MAX_HEAD, MAX_HEADERS))
        elif not unparsed:
            self._await_request()
        elif not self._is_in_head:
            self._expect(self._limits.head_seconds, self._on_late_head)
            self._is_in_head = True

    def _await_request(self) -> None:
        self._expect(self._limits.idle_seconds, self._on_idle)

    def _on_late_head(self) -> None:
        self._refuse(problems.too_slow("head"))

    def _on_idle(self) -> None:
        self.transport.close()
        self._watch_writing()

    def _expect(self, seconds: float, otherwise: Callable[[], None]) -> None:
        self._cancel_due()
        self._due = self.loop.call_later(seconds, otherwise)

    def _cancel_due(self) -> None:
        self._is_in_head = False
        if self._due:
            self._due.cancel()
            self._due = None

    def _refuse(self, refusal: Refusal) -> None:
        """Send a refusal outside of any request, and close; further input is dropped unread."""
        if self._is_refused or self.transport.is_closing():
            return
        self._is_refused = True
        self._unset_keepalive_if_required()
        self.transport.write(_refusal_bytes(refusal))
        if self.transport.can_write_eof():
            self.transport.write_eof()
        self.flow.resume_reading()
        self._expect(self._limits.linger_seconds, self.transport.abort)

    def _watch_writing(self) -> None:
        if self._stall is None:
            self._check_writing(None)

    def _check_writing(self, before: int | None) -> None:
        """Disconnect a client that has read nothing since the last check."""
        self._stall = None
        size = self.transport.get_write_buffer_size()
        if size and before is not None and size >= before:
            self.transport.abort()
        elif size:
            self._stall = self.loop.call_later(self._limits.stall_seconds, self._check_writing, size)


def _refusal_bytes(refusal: Refusal) -> bytes:
    answer = problems.problem_response(refusal, None)
    answer.headers["connection"] = "close"
    head = [f"HTTP/1.1 {refusal.status} {refusal.title}".encode()]
    head += [name + b": " + value for name, value in answer.raw_headers]
    return b"\r\n".join([*head, b"", bytes(answer.body)])
