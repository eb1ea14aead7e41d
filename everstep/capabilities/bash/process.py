"""Runs one command: starts it, reads its output, watches it, and ends it with all its processes.

Everything but watching happens on the worker's event loop, in the thread that started the command: when that
thread ends, the kernel ends the command (`--die-with-parent`). Bubblewrap is the worker's child (here: the
monitor). Below it is the sandbox's first process; when the kernel has ended that process, all others in the
sandbox have ended, too.

The command waits for a byte on the lifeline before it begins. By then the worker knows the first process. If
the worker has died, the lifeline is closed, and the command never begins.
"""

import asyncio
import os
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from queue import SimpleQueue
from typing import Final, TypeAlias

from everstep.agent_domain.capabilities.bash import MIB, CommandResult, ExecutionPolicy, decode_output
from everstep.capabilities.bash import resource_watch
from everstep.capabilities.bash.cgroups import Cgroup, cgroup_for
from everstep.capabilities.bash.disk import DiskWatch
from everstep.capabilities.bash.proxy import Proxy
from everstep.capabilities.bash.way_out import open_way_out
from everstep.capabilities.bash.words import Unavailable, Unusable

MAX_OUTPUT_BYTES: Final = 10 * MIB
"""The limit for both streams together. A program that writes more does not stop by itself."""
END_SECONDS: Final = 10
"""How long the kernel may take to end processes. It takes a millisecond, unless a disk hangs."""
_CHUNK_BYTES: Final = 64 * 1024

BuildCommandLine: TypeAlias = Callable[[Callable[[bytes], int], int], list[str]]
"""Builds the command line, from a function that makes a descriptor with given content, and the lifeline."""

MountProblem: TypeAlias = Callable[[str], str | None]
"""An error text if a mounted file is not the one that was checked.

The argument is a root directory; the empty one is the worker's.
"""


class OutputStream:
    """The output of one stream, up to a limit."""

    def __init__(self, cap: int, descriptor: int) -> None:
        self.descriptor = descriptor
        os.set_blocking(self.descriptor, False)
        self.cap = cap
        self.kept = bytearray()
        self.size = 0
        self.ended = False

    def read(self) -> bool:
        """Read available output; return whether there was any."""
        try:
            chunk = os.read(self.descriptor, _CHUNK_BYTES)
        except BlockingIOError:
            return False
        self.ended = not chunk
        self.size += len(chunk)
        self.kept += chunk[: self.cap - len(self.kept)]
        return bool(chunk)

    @property
    def is_cut(self) -> bool:
        """Whether output was dropped."""
        return self.size > len(self.kept)


@dataclass(slots=True)
class FirstProcess:
    """The first process in the sandbox."""

    number: int
    handle: int
    gone: bool = False


class CommandProcess:
    """A command in its sandbox. The caller that started it has to call `end` in every case."""

    def __init__(
        self,
        policy: ExecutionPolicy,
        describe: BuildCommandLine,
        environment: Mapping[str, str],
        mount_problem: MountProblem,
        proxy: Proxy | None = None,
    ) -> None:
        self._policy = policy
        self._proxy = proxy
        self._opening: asyncio.Task[None] | None = None
        self._replaced = mount_problem
        self._loop = asyncio.get_running_loop()
        self.over = self._loop.create_future()
        """Done once all processes of the command have ended."""
        self.remark = ""
        """The reason why the sandbox ended it, if it did."""
        self._first: FirstProcess | None = None
        self.began = False
        """Whether the command itself was started."""
        self._disk = DiskWatch([policy.base_dir, *policy.writable_paths], policy.disk_bytes)
        self._cgroup = _cgroup(policy)
        self._ended = threading.Event()
        self._to_watch = SimpleQueue[int | None]()
        """The number of the first process once the command may begin; None if it never will."""
        self._lifeline, far_end = socket.socketpair()
        self._lifeline.setblocking(False)
        self._ours, child_ends = list[int](), [far_end.detach()]

        def make_pipe() -> tuple[int, int]:
            reading, writing = os.pipe()
            # A command may run as another user, and open it again: /dev/stdout.
            os.fchmod(writing, 0o622)
            self._ours.append(reading)
            child_ends.append(writing)
            return reading, writing

        def make_input(content: bytes) -> int:
            reading, writing = os.pipe()
            child_ends.append(reading)
            with open(writing, "wb") as file:
                file.write(content)
            return reading

        try:
            (stdout, writes_stdout), (stderr, writes_stderr) = make_pipe(), make_pipe()
            self._stdout, self._stderr = (
                OutputStream(policy.stdout_cap, stdout),
                OutputStream(policy.stderr_cap, stderr),
            )
            words = describe(make_input, child_ends[0])
            self._monitor = subprocess.Popen(  # noqa: S603 -- that is what the sandbox is for
                words,
                stdin=subprocess.DEVNULL,
                stdout=writes_stdout,
                stderr=writes_stderr,
                pass_fds=[each for each in child_ends if each not in {writes_stdout, writes_stderr}],
                env=dict(environment),
                # The command does not use it; the worker's own directory may be closed to the tool user.
                cwd="/",
                # Ctrl-C is for the worker. The worker ends commands once it knows their result.
                start_new_session=True,
            )
            self._monitor_handle = self._open_monitor_handle()
        except BaseException:
            self._close()
            raise
        finally:
            for descriptor in child_ends:
                os.close(descriptor)
        self._ours.append(self._monitor_handle)
        self._listen()
        # There is time for it while bubblewrap sets up the sandbox.
        self._unwatched = self._start_watcher()

    def _start_watcher(self) -> Exception | None:
        """Start the watching thread; return the error if there are too many threads."""
        try:
            threading.Thread(target=self._watch, name="everstep watch", daemon=True).start()
        except RuntimeError as error:
            return error
        return None

    def _open_monitor_handle(self) -> int:
        try:
            return os.pidfd_open(self._monitor.pid)
        except OSError:
            # Its end could not be observed. It waits on the lifeline, so hanging up ends it.
            self._hang_up()
            self._monitor.wait()
            raise

    def _hang_up(self) -> None:
        """Close the lifeline, so that the command never begins."""
        self._lifeline.shutdown(socket.SHUT_RDWR)

    def _listen(self) -> None:
        self._loop.add_reader(self._stdout.descriptor, self._read, self._stdout)
        self._loop.add_reader(self._stderr.descriptor, self._read, self._stderr)
        self._loop.add_reader(self._lifeline, self._on_ready)
        self._loop.add_reader(self._monitor_handle, self._on_monitor_exit)

    def _read(self, stream: OutputStream) -> None:
        stream.read()
        if stream.ended:
            self._loop.remove_reader(stream.descriptor)
        elif self._stdout.size + self._stderr.size > MAX_OUTPUT_BYTES and not self.remark:
            self.stop(
                f"it wrote more than {MAX_OUTPUT_BYTES // MIB} MiB; write to a file, and show parts of it"
            )

    def _on_ready(self) -> None:
        """Called when the sandbox is ready and waits."""
        self._loop.remove_reader(self._lifeline)
        if not self._lifeline.recv(1):
            return
        try:
            self._begin()
        except OSError as error:
            # Too many descriptors: its end could not be observed.
            self.stop(_unwatched_text(error))

    def _begin(self) -> None:
        self._find_first()
        if self._first is None:
            self.stop("its processes cannot be found; the kernel needs CONFIG_PROC_CHILDREN")
            return
        if problem := self._replaced(f"/proc/{self._first.number}/root"):
            self.stop(problem)
            return
        if self._unwatched:
            self.stop(_unwatched_text(self._unwatched))
            return
        if self._cgroup is not None:
            self._cgroup.add(self._first.number)
        if self._proxy is None:
            self._start_command(self._first)
        else:
            self._opening = self._loop.create_task(self._open_network(self._proxy, self._first))

    async def _open_network(self, proxy: Proxy, first: FirstProcess) -> None:
        """Open the network, then start the command."""
        try:
            await open_way_out(proxy, first.number)
            if not first.gone:
                self._start_command(first)
        except Exception as error:  # noqa: BLE001 -- after any error, the command must not wait
            self.stop(f"its network cannot be opened ({error})")

    def _start_command(self, first: FirstProcess) -> None:
        # The kernel kills the command's processes first when memory runs out. A command cannot change that:
        # its /proc is read-only.
        Path(f"/proc/{first.number}/oom_score_adj").write_text("1000", "ascii")
        self._to_watch.put(first.number)
        self.began = True
        self._lifeline.send(b"\n")

    def _find_first(self) -> None:
        """Find the first process: the monitor has one child at most."""
        monitor = self._monitor.pid
        with suppress(FileNotFoundError, ProcessLookupError):
            children = Path(f"/proc/{monitor}/task/{monitor}/children").read_text("ascii")
            for number in map(int, children.split()):
                handle = os.pidfd_open(number)
                self._ours.append(handle)
                self._first = FirstProcess(number, handle)
                self._loop.add_reader(handle, self._on_first_exit)

    def _on_first_exit(self) -> None:
        assert self._first is not None  # noqa: S101 -- it is what ended
        self._first.gone = True
        self._loop.remove_reader(self._first.handle)
        self._check_over()

    def _on_monitor_exit(self) -> None:
        self._loop.remove_reader(self._monitor_handle)
        self._monitor.wait()
        if self._cgroup is not None and self._cgroup.ran_out_of_memory and not self.remark:
            self.remark = resource_watch.too_much_memory(self._policy.memory_bytes)
        # Kill processes that were left in the background.
        self.kill()
        self._check_over()

    def _check_over(self) -> None:
        is_over = self._monitor.returncode is not None and (self._first is None or self._first.gone)
        if is_over and not self.over.done():
            self.over.set_result(None)

    def _watch(self) -> None:
        """Runs in a thread until the command has ended, and spends at most half of the time on polling."""
        first, pause = self._to_watch.get(), resource_watch.POLL_SECONDS
        while first is not None and not self._ended.wait(pause):
            started_at = time.monotonic()
            try:
                too_much = resource_watch.find_excess(first, self._policy.memory_bytes)
                too_much = too_much or self._disk.find_excess(first)
            except Exception as error:  # noqa: BLE001 -- after any error, nothing may run unwatched
                too_much = f"what it takes cannot be watched ({error})"
            if too_much:
                # If the loop has closed, the command has ended, too.
                with suppress(RuntimeError):
                    self._loop.call_soon_threadsafe(self._stop_for_excess, too_much)
                return
            pause = max(resource_watch.POLL_SECONDS, time.monotonic() - started_at)

    def _stop_for_excess(self, too_much: str) -> None:
        if not self._ended.is_set() and not self.remark:
            self.stop(too_much)

    def stop(self, remark: str) -> None:
        """Kill the command for a reason that its output reports."""
        self.remark = remark
        self.kill()

    def kill(self) -> None:
        """Kill the first process, and so all of them: they have ended once `over` is done."""
        if self._first is None and self._monitor.returncode is None:
            # If the monitor were killed between its first steps, its child would wait forever.
            self._monitor.send_signal(signal.SIGSTOP)
            os.waitid(os.P_PID, self._monitor.pid, os.WSTOPPED | os.WEXITED | os.WNOWAIT)
            try:
                self._find_first()
            except OSError:
                # Without a handle: it has not begun, and exits by itself.
                self._hang_up()
                self._monitor.send_signal(signal.SIGCONT)
            else:
                self._monitor.kill()
        if self._first is not None and not self._first.gone:
            with suppress(ProcessLookupError):
                signal.pidfd_send_signal(self._first.handle, signal.SIGKILL)

    async def end(self) -> None:
        """Kill what is left, and close all descriptors.

        Raises:
            TimeoutError: The processes did not end within `END_SECONDS`.
        """
        try:
            if not self.over.done():
                self.kill()
                await self._wait_for_end()
                if not self.over.done():
                    raise TimeoutError(f"the processes of a command did not end within {END_SECONDS} s")
            for stream in (self._stdout, self._stderr):
                # Not to its end: another process may hold the pipe open and continue to write.
                while stream.read() and stream.size < 2 * MAX_OUTPUT_BYTES:
                    pass
        finally:
            self._ended.set()
            self._disk.end()
            self._to_watch.put(None)
            if self._opening is not None:
                self._opening.cancel()
            if self._proxy is not None:
                self._proxy.close()
            self._close()

    async def _wait_for_end(self) -> None:
        """Wait even if the caller is cancelled again: it takes a millisecond, and no process may be left."""
        waiting = asyncio.ensure_future(asyncio.wait([self.over], timeout=END_SECONDS))
        cancelled: asyncio.CancelledError | None = None
        while not waiting.done():
            try:
                await asyncio.shield(waiting)
            except asyncio.CancelledError as error:
                cancelled = error
        if cancelled is not None:
            raise cancelled

    def _close(self) -> None:
        self._loop.remove_reader(self._lifeline)
        self._lifeline.close()
        for descriptor in self._ours:
            self._loop.remove_reader(descriptor)
            os.close(descriptor)
        if self._cgroup is not None:
            self._cgroup.remove()

    def result(self, timed_out: bool) -> CommandResult:
        """The result. The sandbox's own messages come last on stderr, where they are never cut off."""
        stderr = decode_output(bytes(self._stderr.kept))
        for refusal in self._proxy.refusals if self._proxy else ():
            stderr += f"{_new_line(stderr)}sandbox: {refusal}\n"
        if self.remark:
            stderr += f"{_new_line(stderr)}sandbox: the command was stopped, as {self.remark}\n"
        return CommandResult(
            None if timed_out or self.remark else self._monitor.returncode,
            decode_output(bytes(self._stdout.kept)),
            stderr,
            timed_out,
            self._stdout.is_cut,
            self._stderr.is_cut,
        )


def _cgroup(policy: ExecutionPolicy) -> Cgroup | None:
    try:
        return cgroup_for(policy)
    except OSError as error:
        raise Unavailable(f"no cgroup can be made for the command: {error}") from error


def _unwatched_text(error: Exception) -> str:
    return f"it cannot be watched ({error})"


def _new_line(text: str) -> str:
    return "" if not text or text.endswith("\n") else "\n"


async def run(
    policy: ExecutionPolicy,
    describe: BuildCommandLine,
    environment: Mapping[str, str],
    mount_problem: MountProblem,
    proxy: Proxy | None = None,
) -> CommandResult:
    """Run a command to its end, or to the policy's limits.

    Raises:
        Unusable: A mounted file was replaced before the command began.
        Unavailable: The sandbox did not start.
    """
    process = CommandProcess(policy, describe, environment, mount_problem, proxy)
    try:
        await asyncio.wait([process.over], timeout=policy.timeout)
        timed_out = not process.over.done()
    finally:
        await process.end()
    result = process.result(timed_out)
    if not process.began and not timed_out:
        if problem := mount_problem(""):
            raise Unusable(problem)
        raise Unavailable(result.stderr.strip() or f"bubblewrap ended with {result.exit_code}")
    return result
