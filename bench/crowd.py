"""The load for the gateway's bench: many viewers and one writer, in a separate process.

Frames are read and written by hand (bench/client_frames.py), on uvloop, so that one core handles as many as
possible. Every envelope carries a mark: its number within its stream, and the time at which it should have
been sent.
"""

import asyncio
import gc
import os
import time
from array import array
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path
from socket import SO_RCVBUF, SOL_SOCKET
from typing import Any, Final, cast
from uuid import UUID, uuid4

import uvloop
from client_frames import PING, PONG, TEXT, frame, json_frame, request, span

from everstep.agent_domain.stream import link
from everstep.agent_domain.stream.envelopes import Envelope, EnvelopeType
from everstep.agent_domain.values import frozen_map

NUMBER: Final = 11
"""The length of a mark's number: `#` and ten digits. Nineteen digits with a time in nanoseconds follow."""
MARK: Final = 30
PATIENCE: Final = 5.0
"""Seconds without new data after which missing data counts as lost."""
AT_ONCE: Final = 64
"""The maximum number of viewers that connect, and of pushes that are sent, at the same time."""
HANDSHAKES: Final = 950
"""Connections per second; gateways accept a thousand."""
SMALL: Final = 16 * 1024
"""The receive buffer of a viewer that does not read, in bytes."""

# The kernel's data about a process.


def cpu_of(pid: int) -> float:
    """Seconds of CPU that a process has used."""
    used = (task.joinpath("schedstat").read_text().split()[0] for task in Path(f"/proc/{pid}/task").iterdir())
    return sum(map(int, used)) / 1e9


def memory_of(pid: int) -> int:
    """Bytes of memory that a process holds."""
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


@dataclass(frozen=True)
class Target:
    """A server that relays."""

    pid: int
    port: int
    push_port: int
    token: str = ""
    """For viewers; without one it is the baseline relay."""
    secret: str = ""
    epoch: str = ""

    def viewer(self, stream: UUID, *, is_back: bool) -> list[bytes]:
        """A viewer's frames, each sent after an answer; a returning viewer asks for all stored ones."""
        if not self.token:
            return [request("/"), frame(f"{'*' * is_back}{stream}".encode())]
        since: dict[str, Any] = {"since": {"seq": 0}} if is_back else {}
        subscription = json_frame(type="sub", channel=f"agent.session.{stream}", **since)
        opening = request("/v1", Sec_WebSocket_Protocol="everstep.v1")
        return [opening, json_frame(type="hello", token=self.token), subscription]

    def writer(self) -> bytes:
        """The first frame of the writer."""
        if not self.token:
            return request("/push")
        shown = f"Bearer {link.link_token(self.secret)}"
        return request("/", Sec_WebSocket_Protocol=link.SUBPROTOCOL, Authorization=shown)


@dataclass(frozen=True)
class Measured:
    """The server's work in a period, and its result."""

    seconds: float
    deliveries: int
    cpu: float
    """CPU seconds of the server."""
    own_cpu: float
    """CPU seconds of the crowd."""
    p50: float = 0.0
    p99: float = 0.0
    p999: float = 0.0
    lost: int = 0
    doubled: int = 0
    disordered: int = 0
    cut: int = 0
    """Viewers whose connection was lost."""

    @property
    def is_faultless(self) -> bool:
        """Whether all viewers received everything, once and in order."""
        return not (self.lost or self.doubled or self.disordered or self.cut)


class Tally:
    """The counters of all viewers together."""

    __slots__ = ("cut", "disordered", "doubled", "is_timed", "kind", "late", "received", "skipped")

    def __init__(self, kind: bytes = b"") -> None:
        self.kind = kind
        """How the frames begin that are counted; empty for all."""
        self.received = self.doubled = self.disordered = self.skipped = self.cut = 0
        self.is_timed = False
        self.late = array("q")
        """Nanoseconds between the time of a mark and its arrival."""


class Peer(asyncio.Protocol):
    """One connection to a server: a viewer's, or the writer's."""

    __slots__ = ("_rest", "_script", "_skipped", "_tally", "is_slow", "joined", "last", "transport")

    def __init__(self, tally: Tally, script: Sequence[bytes]) -> None:
        self._tally = tally
        self._script = [*reversed(script)]
        self._rest = b""
        self._skipped: set[int] = set()
        self.transport: asyncio.Transport | None = None
        self.joined = asyncio.get_running_loop().create_future()
        self.is_slow = False
        self.last = 0
        """The number of the last mark."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Request the handshake."""
        self.transport = cast("asyncio.Transport", transport)
        self.transport.write(self._script.pop())

    def connection_lost(self, exc: Exception | None) -> None:
        """Count a cut, unless this viewer does not read."""
        if not self.joined.done():
            self.joined.set_exception(exc or ConnectionError("the server closed the connection"))
        elif self.transport and not self.is_slow:
            self._tally.cut += 1
        self.transport = None

    def leave(self) -> None:
        """Abort the connection."""
        transport, self.transport = self.transport, None
        if transport:
            transport.abort()

    def data_received(self, data: bytes) -> None:
        """Count the marks. Most of the CPU time is spent here."""
        now = time.monotonic_ns()
        if self._rest:
            data = self._rest + data
        at, end, count, tally = 0, len(data), 0, self._tally
        while True:
            start, after = span(data, at)
            if data[at : at + 1] != b"\x81" or not self.joined.done():
                after = self._handle_frame(data, at, start, after)
                if not after:
                    break
                at = after
                continue
            if after > end:
                break
            if not data.startswith(tally.kind, start):
                at = after
                continue
            mark = data.find(b"#", start, after)
            while mark >= 0:
                number = int(data[mark + 1 : mark + NUMBER])
                if number != self.last + 1:
                    self._count_gap(number)
                self.last = max(self.last, number)
                count += 1
                if tally.is_timed:
                    tally.late.append(now - int(data[mark + NUMBER : mark + MARK]))
                mark = data.find(b"#", mark + MARK, after)
            at = after
        self._rest = data[at:]
        tally.received += count

    def _handle_frame(self, data: bytes, at: int, start: int, after: int) -> int:
        """Handle other frames; return the start of the next frame, or 0 if more has to come."""
        if data.startswith(b"HTTP/", at):
            after = data.find(b"\r\n\r\n", at) + 4
            if after < len("\r\n\r\n"):
                return 0
            if not data.startswith(b"HTTP/1.1 101", at):
                self.joined.set_exception(ConnectionError(data[at:after].split(b"\r\n")[0].decode()))
                return 0
            self._send_next()
        elif after > len(data):
            return 0
        elif data[at] == PING:
            self.write(frame(data[start:after], PONG))
        elif data[at] == TEXT:
            if b"_error" in data[start:after]:
                self.joined.set_exception(ConnectionError(data[start:after].decode()))
                return 0
            self._send_next()
        return after

    def _send_next(self) -> None:
        if self._script:
            self.write(self._script.pop())
        else:
            self.joined.set_result(None)

    def write(self, data: bytes) -> None:
        """Send data."""
        if self.transport:
            self.transport.write(data)

    def _count_gap(self, number: int) -> None:
        tally = self._tally
        if number > self.last:
            self._skipped.update(range(self.last + 1, number))
            tally.skipped += number - self.last - 1
        elif number in self._skipped:
            self._skipped.remove(number)
            tally.skipped -= 1
            tally.disordered += 1
        else:
            tally.doubled += 1


class EnvelopeLines:
    """Envelopes of one stream for pushing, each slightly different."""

    def __init__(self, stream: UUID, size: int) -> None:
        envelope = Envelope(
            EnvelopeType.AGENT_TOOL_COMPLETED,
            stream,
            uuid4(),
            datetime.now(UTC),
            frozen_map({"call_id": "call_1", "result": "@"}),
            uuid4(),
            1,
        )
        line = link.line_from(stream, envelope.to_json())
        padding = b"." * (size + len(f"{stream} ") - len(line) - MARK)
        self._before, rest = line.split(b"@")
        self._after = padding + rest.removesuffix(b"1}")
        self.number = 0

    def next(self, moment: int) -> bytes:
        """The next envelope."""
        self.number += 1
        return b"%b#%010d%019d%b%d}" % (self._before, self.number, moment, self._after, self.number)


class Crowd:
    """All viewers and the writer."""

    def __init__(self) -> None:
        self._tally = Tally()
        self._target = Target(0, 0, 0)
        self._viewers: list[Peer] = []
        self._watching: list[UUID] = []
        """The stream of each viewer."""
        self._writer: Peer | None = None
        self._lines: dict[UUID, EnvelopeLines] = {}
        self._coming = asyncio.Semaphore(AT_ONCE)
        # On its own core the writer does not sleep: that would make it late by a millisecond.
        self._spins = len(os.sched_getaffinity(0)) > 1

    async def pin(self, cores: set[int]) -> None:
        """Use these cores only."""
        os.sched_setaffinity(0, cores)

    async def join(
        self, target: Target, streams: Sequence[UUID], count: int, *, is_back: bool = False, kind: bytes = b""
    ) -> Measured:
        """Connect viewers, evenly spread over the streams; returning viewers connect all at once."""
        self._target, self._tally, loop = target, Tally(kind), asyncio.get_running_loop()
        self._watching = [streams[number % len(streams)] for number in range(count)]
        self._lines = {}
        began, cpu = time.monotonic(), cpu_of(target.pid)
        coming = list[asyncio.Task[None]]()
        for number, stream in enumerate(self._watching):
            if not is_back and (pause := began + number / HANDSHAKES - time.monotonic()) > 0:
                await asyncio.sleep(pause)
            viewer = Peer(self._tally, target.viewer(stream, is_back=is_back))
            self._viewers.append(viewer)
            coming.append(loop.create_task(self._connect(viewer, target.port)))
        await asyncio.gather(*coming)
        return Measured(time.monotonic() - began, count, cpu_of(target.pid) - cpu, 0)

    async def _connect(self, peer: Peer, port: int) -> None:
        loop = asyncio.get_running_loop()
        async with self._coming:
            await loop.create_connection(lambda: peer, "127.0.0.1", port)
            await asyncio.wait_for(asyncio.shield(peer.joined), 60)

    async def leave(self) -> None:
        """Close all connections."""
        for peer in (*self._viewers, *([self._writer] if self._writer else [])):
            peer.leave()
        self._viewers, self._writer = [], None
        await asyncio.sleep(0.1)

    async def stop_reading(self, count: int) -> None:
        """Make the first viewers stop reading, with a small receive buffer in their kernel."""
        for viewer in self._viewers[:count]:
            viewer.is_slow = True
            if viewer.transport:
                viewer.transport.get_extra_info("socket").setsockopt(SOL_SOCKET, SO_RCVBUF, SMALL)
                viewer.transport.pause_reading()

    async def publish(
        self, size: int, seconds: float, *, rate: float = 0, window: int = 0, warm: float = 0.5
    ) -> Measured:
        """Push envelopes: at a rate per second, or with at most a window of them in flight."""
        await self._link(size)
        loop_turn = partial(asyncio.sleep, 0 if self._spins else 0.001)
        every = [*self._lines.values()]
        fan = Counter(
            stream for peer, stream in zip(self._viewers, self._watching, strict=True) if not peer.is_slow
        )
        share = sum(fan.values()) / len(every)
        tally, sent, first = self._tally, 0, self._tally.received
        meter: Meter | None = None
        began = time.monotonic_ns()
        ends, starts = began + int((warm + seconds) * 1e9), began + int(warm * 1e9)
        while (now := time.monotonic_ns()) < ends:
            if meter is None and now >= starts:
                meter = Meter(tally, self._target.pid)
            if rate:
                due = int((now - began) * rate / 1e9) - sent
                moments = [began + int(number * 1e9 / rate) for number in range(sent + 1, sent + due + 1)]
            else:
                due = int(min(AT_ONCE, window - sent + (tally.received - first) / share))
                moments = [now] * due
            lines = [every[(sent + n) % len(every)].next(moment) for n, moment in enumerate(moments)]
            sent += len(lines)
            for message in link.pack_lines(lines):
                self._push(message)
            await loop_turn()
        assert meter
        measured = meter.read()
        await self._wait_for_all()
        tally.is_timed = False
        return self._with_faults(measured)

    async def _link(self, size: int) -> None:
        """Connect the writer if it is not connected."""
        if not self._writer:
            self._writer = Peer(self._tally, [self._target.writer()])
            await self._connect(self._writer, self._target.push_port)
            if self._target.epoch:
                self._push(link.epoch_message(self._target.epoch).encode())
            # Gateways check the table for envelopes that were not pushed.
            await asyncio.sleep(0.5)
        self._lines = self._lines or {
            stream: EnvelopeLines(stream, size) for stream in dict.fromkeys(self._watching)
        }

    def _push(self, message: bytes) -> None:
        assert self._writer
        self._writer.write(frame(message))

    async def push_each(self, target: Target, streams: Sequence[UUID], size: int, number: int) -> None:
        """Push envelopes to each stream before there are viewers."""
        self._target, self._tally, self._watching, self._lines = target, Tally(), [*streams], {}
        await self._link(size)
        for _ in range(number):
            for message in link.pack_lines([lines.next(0) for lines in self._lines.values()]):
                self._push(message)
        await asyncio.sleep(1)

    async def measure(self, seconds: float, *, is_timed: bool = False) -> Measured:
        """Measure while time passes."""
        meter = Meter(self._tally, self._target.pid, is_timed=is_timed)
        await asyncio.sleep(seconds)
        return meter.read()

    async def count_sent(self, number: int, seconds: float = 30) -> Measured:
        """Wait until all viewers have received that number; return the time and the server's CPU time."""
        meter = Meter(self._tally, self._target.pid, is_timed=False)
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                while any(viewer.last < number for viewer in self._viewers):  # noqa: ASYNC110 -- there is no event for it
                    await asyncio.sleep(0.005)
        measured = meter.read()
        late = sum(max(0, number - viewer.last) for viewer in self._viewers)
        return self._with_faults(replace(measured, lost=late))

    async def _wait_for_all(self) -> None:
        """Wait until everything pushed has arrived, or nothing new arrives for a while."""
        until, before = time.monotonic() + PATIENCE, -1
        while self._missing() and time.monotonic() < until:
            if self._tally.received > before:
                before, until = self._tally.received, time.monotonic() + PATIENCE
            await asyncio.sleep(0.01)

    def _missing(self) -> int:
        both = zip(self._viewers, self._watching, strict=True)
        return sum(
            self._lines[stream].number - viewer.last
            for viewer, stream in both
            if not viewer.is_slow and stream in self._lines
        )

    def _with_faults(self, measured: Measured) -> Measured:
        tally = self._tally
        lost = measured.lost + tally.skipped + self._missing()
        return replace(measured, lost=lost, doubled=tally.doubled, disordered=tally.disordered, cut=tally.cut)


class Meter:
    """Measures from its creation to `read`."""

    def __init__(self, tally: Tally, pid: int, *, is_timed: bool = True) -> None:
        self._tally = tally
        self._pid = pid
        tally.late = array("q")
        tally.is_timed = is_timed
        self._began = time.monotonic()
        self._received = tally.received
        self._cpu = cpu_of(pid)
        self._own_cpu = time.process_time()

    def read(self) -> Measured:
        """The measurement so far."""
        seconds, deliveries = time.monotonic() - self._began, self._tally.received - self._received
        cpu, own_cpu = cpu_of(self._pid) - self._cpu, time.process_time() - self._own_cpu
        late = sorted(self._tally.late)
        p50, p99, p999 = (late[int(len(late) * part)] / 1e9 if late else 0.0 for part in (0.5, 0.99, 0.999))
        return Measured(seconds, deliveries, cpu, own_cpu, p50, p99, p999)


async def run_commands(pipe: Connection, make: Callable[[], object]) -> None:
    """Run commands from the pipe, methods of what is made, one after the other until it is closed."""
    made = make()
    gc.collect()
    gc.freeze()
    gc.disable()
    with suppress(EOFError):
        while True:
            command, args, options = await asyncio.to_thread(pipe.recv)
            try:
                pipe.send(await getattr(made, command)(*args, **options))
            except Exception as error:  # noqa: BLE001 -- it is sent to the caller
                pipe.send(error)


def in_process(pipe: Connection) -> None:
    """The process of the crowd."""
    uvloop.run(run_commands(pipe, Crowd))
