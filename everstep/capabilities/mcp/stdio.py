"""A server that is a program: started, talked to line by line, and ended with all its processes.

The SDK has a transport for this, but it keeps lines of any length in memory, writes the program's errors to a
file, and leaves the program running when the worker is killed.
"""

import asyncio
import logging
import os
import re
import shutil
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import anyio
import mcp_types as types
from anyio.streams.memory import MemoryObjectReceiveStream, MemoryObjectSendStream
from mcp.client.stdio import get_default_environment
from mcp.shared.message import SessionMessage

from everstep.agent_domain.values import escape_unstorable, truncate
from everstep.capabilities.mcp import guard
from everstep.capabilities.mcp.errors import McpError
from everstep.capabilities.mcp.hiding import Secrets
from everstep.capabilities.mcp.servers import StdioServer

logger = logging.getLogger(__name__)

MAX_MESSAGE_BYTES = 8 * 1024 * 1024
"""The limit for one message. Larger messages are dropped while they are read."""
MAX_GARBAGE_LINES = 100
"""Lines that are no message. Some servers print a greeting; one with more lines uses another protocol."""
MAX_LOGGED_LINES = 1_000
"""How many lines of a server's stderr are logged, each cut to `LOGGED_CHARACTERS`."""
LOGGED_CHARACTERS = 500
ENDING_SECONDS = 2.0
"""How long a server may take to exit once its input is closed."""
_GUARD_SECONDS = guard.PATIENCE_SECONDS + 2.0
_REASON_SECONDS = 2.0
"""How long to wait for the reason of a closed pipe."""

OnLost = Callable[[str], None]
Streams = tuple[MemoryObjectReceiveStream[SessionMessage | Exception], MemoryObjectSendStream[SessionMessage]]


@asynccontextmanager
async def stdio_link(server: StdioServer, name: str, lost: OnLost) -> AsyncGenerator[Streams]:
    """Run the server; `lost` is called once it no longer answers."""
    life, process = await _start_server(server)
    arriving, received = anyio.create_memory_object_stream[SessionMessage | Exception](0)
    sending, leaving = anyio.create_memory_object_stream[SessionMessage](0)
    end = _EndReport(lost)
    tasks = (
        asyncio.create_task(_forward_output(process, arriving, end)),
        asyncio.create_task(_forward_input(process, leaving, end)),
        asyncio.create_task(_log_errors(process, name, Secrets(server.env.values()))),
    )
    try:
        yield received, sending
    finally:
        # Further output of the server is read and dropped, so that it can exit.
        end.is_known.set()
        received.close()
        sending.close()
        try:
            with anyio.CancelScope(shield=True):
                await _end_server(process, life)
        finally:
            # Even if we are interrupted: once this pipe is closed, the guard ends the server.
            life.end()
            for task in tasks:
                task.cancel()
            with anyio.CancelScope(shield=True):
                await asyncio.wait(tasks)
            for stream in (arriving, leaving):
                stream.close()
            _release(process)


class _EndReport:
    """Reports once why there will be no more answers, unless we end the server ourselves."""

    def __init__(self, lost: OnLost) -> None:
        self._lost = lost
        self.is_known = asyncio.Event()

    def report(self, why: str) -> None:
        """Report a reason; only the first counts."""
        if not self.is_known.is_set():
            self.is_known.set()
            self._lost(why)


class _Lifeline:
    """A pipe to the guard. The server runs as long as our end is open, which is at most as long as we do."""

    def __init__(self) -> None:
        self.theirs, self._ours = os.pipe()
        self._is_open = True

    def end(self) -> None:
        """Close our end; further calls have no effect."""
        if self._is_open:
            self._is_open = False
            os.close(self._ours)


async def _start_server(server: StdioServer) -> tuple[_Lifeline, Process]:
    """Start the server behind its guard; return the pipe that keeps both alive, and the process."""
    env = get_default_environment() | dict(server.env)
    command = _command(server, env)
    life = _Lifeline()
    try:
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-I", "-S", guard.__file__, str(life.theirs), command, *server.args),
            stdin=PIPE,
            stdout=PIPE,
            stderr=PIPE,
            env=env,
            cwd=server.cwd,
            pass_fds=(life.theirs,),
            limit=MAX_MESSAGE_BYTES,
            # The terminal's Ctrl-C is for the worker, which then closes what it has opened.
            start_new_session=True,
        )
    except BaseException as error:
        life.end()
        if isinstance(error, OSError):
            raise McpError(f"it cannot be started: {error.strerror}") from None
        raise
    finally:
        os.close(life.theirs)
    return life, process


def _command(server: StdioServer, env: dict[str, str]) -> str:
    if server.cwd is not None and not Path(server.cwd).is_dir():
        raise McpError(f"it cannot be started: there is no directory '{server.cwd}'")
    path = env.get("PATH", os.defpath)
    if "/" in server.command:
        is_executable = os.access(Path(server.cwd or ".") / server.command, os.X_OK)
        command = server.command if is_executable else None
    else:
        command = shutil.which(server.command, path=path)
    if command is None:
        raise McpError(f"it cannot be started: there is no command '{server.command}' on this machine")
    return command


async def _forward_output(
    process: Process, arriving: MemoryObjectSendStream[SessionMessage | Exception], end: _EndReport
) -> None:
    """Forward the server's messages until its output ends."""
    reader, garbage = _Lines(_stream(process.stdout)), 0
    async with arriving:
        async for line in reader:
            message = _message(line)
            if message is None:
                garbage += bool(line.strip())
                if garbage > MAX_GARBAGE_LINES:
                    end.report(f"it wrote more than {MAX_GARBAGE_LINES} lines that are not JSON-RPC")
                    break
                continue
            with suppress(anyio.BrokenResourceError, anyio.ClosedResourceError):
                await arriving.send(message)
        else:
            end.report(reader.trouble or await _reason(process))
    # Otherwise the server may block on a full pipe, and not notice that its input is closed.
    await _drain(_stream(process.stdout))


async def _reason(process: Process) -> str:
    """The reason why the output has ended."""
    if not await _exits_within(process, _REASON_SECONDS / 2):
        return "it closed its output"
    if process.returncode == guard.CANNOT_RUN:
        return f"it cannot be run, or ended with exit code {guard.CANNOT_RUN}"
    return f"it ended with exit code {process.returncode}"


async def _forward_input(
    process: Process, leaving: MemoryObjectReceiveStream[SessionMessage], end: _EndReport
) -> None:
    """Write messages to the server until it closes its input."""
    writer = process.stdin
    if writer is None:
        raise RuntimeError("a server is started with pipes")
    async with leaving:
        try:
            async for item in leaving:
                text = item.message.model_dump_json(by_alias=True, exclude_unset=True)
                writer.write(f"{text}\n".encode())
                await writer.drain()
        except ConnectionError:
            # Usually it has exited, which the reader notices. Wait for that, so that callers get the reason.
            with suppress(TimeoutError):
                async with asyncio.timeout(_REASON_SECONDS):
                    await end.is_known.wait()
            end.report("it closed its input")


async def _log_errors(process: Process, name: str, secrets: Secrets) -> None:
    """Log the server's stderr, for debugging."""
    reader = _Lines(_stream(process.stderr))
    count = 0
    async for line in reader:
        count += 1
        if count <= MAX_LOGGED_LINES:
            text = truncate(escape_unstorable(line.decode(errors="replace").rstrip()), LOGGED_CHARACTERS)
            logger.debug("MCP server '%s': %s", name, secrets.redact(text))
        elif count == MAX_LOGGED_LINES + 1:
            logger.debug("MCP server '%s': more of its errors is not logged", name)


class _Lines:
    """Lines in bounded memory.

    A line that is too long becomes an error for its request, if the id can be found; if not, the lines end
    there.
    """

    def __init__(self, reader: asyncio.StreamReader) -> None:
        self._reader = reader
        self.trouble = ""

    def __aiter__(self) -> "_Lines":
        return self

    async def __anext__(self) -> bytes:
        try:
            return await self._reader.readuntil(b"\n")
        except asyncio.IncompleteReadError as error:
            if error.partial:
                return error.partial
            raise StopAsyncIteration from None
        except asyncio.LimitOverrunError as error:
            return await self._skip_long_line(error.consumed)

    async def _skip_long_line(self, consumed: int) -> bytes:
        head, tail, size = b"", b"", 0
        while consumed:
            dropped = await self._reader.readexactly(consumed)
            head, tail, size = head or dropped[:200], (tail + dropped)[-200:], size + len(dropped)
            try:
                last = await self._reader.readuntil(b"\n")
            except asyncio.IncompleteReadError:
                break
            except asyncio.LimitOverrunError as error:
                consumed = error.consumed
            else:
                tail, size, consumed = (tail + last)[-200:], size + len(last), 0
        problem = f"it answered with a message of {size:,} bytes, and at most {MAX_MESSAGE_BYTES:,} are read"
        request_id = request_id_of(head, tail)
        if request_id is None:
            self.trouble = problem
            raise StopAsyncIteration
        error_data = types.ErrorData(code=types.INTERNAL_ERROR, message=problem)
        answer = types.JSONRPCError(jsonrpc="2.0", id=request_id, error=error_data)
        return answer.model_dump_json(by_alias=True, exclude_unset=True).encode()


_FIRST = re.compile(rb'\s*\{\s*(?:"jsonrpc"\s*:\s*"2\.0"\s*,\s*)?"id"\s*:\s*(\d{1,15})\s*,')
_LAST = re.compile(rb',\s*"id"\s*:\s*(\d{1,15})\s*(?:,\s*"jsonrpc"\s*:\s*"2\.0"\s*)?\}\s*$')


def request_id_of(head: bytes, tail: bytes) -> int | None:
    """The id of the request that a message answers, from its beginning and its end alone.

    Only an id that is surely at the top level counts: before any nested value, or right before the end.
    """
    match = _FIRST.match(head) or _LAST.search(tail)
    return int(match[1]) if match else None


def _message(line: bytes) -> SessionMessage | None:
    try:
        return SessionMessage(types.jsonrpc_message_adapter.validate_json(line, by_name=False))
    except ValueError:
        return None


async def _end_server(process: Process, life: _Lifeline) -> None:
    """Wait for the program to exit; then let the guard end it, then kill the guard."""
    if process.stdin is not None:
        process.stdin.close()
    if not await _exits_within(process, ENDING_SECONDS):
        life.end()
        if not await _exits_within(process, _GUARD_SECONDS):
            process.kill()


async def _exits_within(process: Process, seconds: float) -> bool:
    """Whether it exits in time. `process.wait()` would also wait for other processes that hold its pipes."""
    until = asyncio.get_running_loop().time() + seconds
    while process.returncode is None:
        if asyncio.get_running_loop().time() >= until:
            return False
        await asyncio.sleep(0.01)
    return True


async def _drain(reader: asyncio.StreamReader) -> None:
    while await reader.read(65536):
        pass


def _stream(stream: asyncio.StreamReader | None) -> asyncio.StreamReader:
    if stream is None:
        raise RuntimeError("a server is started with pipes")
    return stream


def _release(process: Process) -> None:
    """Close the pipes, even if a process that is left behind holds their other ends."""
    # There is no public attribute for it. uvloop's class is another, so check for the method.
    close = getattr(getattr(process, "_transport", None), "close", None)
    if callable(close):
        close()
