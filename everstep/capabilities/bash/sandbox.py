"""Runs commands of a model in a sandbox. There is no way to run one outside of it."""

import asyncio
import os
import pwd
import shutil
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Final

from everstep.agent_domain.capabilities.bash import CommandResult, ExecutionPolicy
from everstep.capabilities.bash import process, profile, seccomp
from everstep.capabilities.bash.mounts import TOOL_USER, Mounts, find_mounts
from everstep.capabilities.bash.places import ResolvedPath, real_path, replacement_problem
from everstep.capabilities.bash.protected_mounts import Guard, build_guard
from everstep.capabilities.bash.proxy import Proxy
from everstep.capabilities.bash.words import Unavailable, Unusable
from everstep.capabilities.protection import Protection, current
from everstep.capabilities.protection.repositories import linked_git_directory
from everstep.capabilities.protection.rules import innermost
from everstep.capabilities.protection.tree import FEW_FOLDERS, TooLarge

MAX_COMMAND_BYTES: Final = 128 * 1024 - 1
"""Maximum bytes of a command: the kernel's limit for one argument."""

_CLOSED: Final = ("/boot", "/dev", "/etc", "/proc", "/sys", "/bin", "/sbin", "/lib", "/lib64", "/usr")
_OPEN: Final = ("/usr/src", "/usr/local/src")


def command_problem(command: object) -> str | None:
    """The reason why a command cannot be run, for its author, or None."""
    if not isinstance(command, str):
        return f"the command is of type {type(command).__name__}, not text"
    if not command.strip():
        return "the command is empty"
    if "\0" in command:
        return (
            "the command contains a NUL character, which no command can; write \\0 where a program reads it"
        )
    try:
        size = len(command.encode())
    except UnicodeEncodeError as error:
        return f"the command contains {command[error.start]!r}, which is not a valid character"
    if size > MAX_COMMAND_BYTES:
        most = f"at most {MAX_COMMAND_BYTES} are possible"
        return f"the command has {size} bytes, and {most}; write a file in several parts"
    return None


@dataclass(frozen=True, slots=True)
class Launch:
    """How bubblewrap is started: as which user, and where it finds the policy's paths."""

    prefix: list[str] = field(default_factory=list[str])
    sources: dict[str, str] = field(default_factory=dict[str, str])
    mounts: Mounts | None = None
    """Kept alive while the command runs."""

    def words(self, policy: ExecutionPolicy, guard: Guard, descriptor: Callable[[bytes], int]) -> list[str]:
        """The command line, up to the program to run inside."""
        inside = profile.arguments(policy, guard.mounts(self.sources), descriptor)
        filtered = ["--seccomp", str(descriptor(seccomp.program()))]
        return [*self.prefix, _find_program("bwrap"), *inside, *filtered, "--"]


def proxy_for(policy: ExecutionPolicy) -> Proxy | None:
    """The proxy for the policy's network; None without a network."""
    return Proxy(policy.network) if policy.network else None


class Sandbox:
    """Runs commands under a policy."""

    def __init__(
        self, policy: ExecutionPolicy, proxy_for: Callable[[ExecutionPolicy], Proxy | None] = proxy_for
    ) -> None:
        self.policy = policy
        self._proxy_for = proxy_for

    @property
    def shape(self) -> tuple[int, int, bool, bool]:
        """The inputs of the self-test: the worker's user, the directory's owner, network, and git."""
        policy = self.policy
        return os.geteuid(), os.stat(self.resolved_policy().base_dir).st_uid, bool(policy.network), policy.git

    async def run(self, command: str) -> CommandResult:
        """Run `bash -c {command}`.

        Raises:
            Unusable: The command or a path of the policy cannot be used.
            Unavailable: The sandbox does not work on this machine.
        """
        if problem := command_problem(command):
            raise Unusable(problem)
        policy = self.resolved_policy()
        protection = current()
        guard = await _build_guard(policy, protection)
        sentences = list[str]()
        try:
            result = await self._run(command, policy, guard)
        finally:
            try:
                sentences = await _disarm_leftovers(guard, protection)
            finally:
                guard.release()
        return replace(result, stderr="".join([result.stderr, *(f"sandbox: {each}\n" for each in sentences)]))

    async def _run(self, command: str, policy: ExecutionPolicy, guard: Guard) -> CommandResult:
        places = places_of(policy)
        launch = launch_for(policy, places)

        def build_command_line(descriptor: Callable[[bytes], int], lifeline: int) -> list[str]:
            script = profile.prelude(policy, lifeline)
            # The worker's own bash may be in a place that commands cannot see.
            bash = _find_program("bash", profile.PROGRAMS)
            return [*launch.words(policy, guard, descriptor), bash, "-c", script, "bash", command]

        def mount_problem(root: str) -> str | None:
            return replacement_problem(places, root) or (guard.replaced_in(root) if root else None)

        environment = profile.environment(policy, os.environ)
        return await process.run(
            policy, build_command_line, environment, mount_problem, self._proxy_for(policy)
        )

    def resolved_policy(self) -> ExecutionPolicy:
        """The policy with its paths resolved."""
        policy = self.policy
        commands_write = [
            os.path.realpath(os.path.expanduser(p)) for p in (policy.base_dir, *policy.writable_paths)
        ]
        existing = partial(_resolve_path, commands_write=commands_write)
        base_dir = existing(policy.base_dir, writable=True, directory=True)
        writable = [existing(path, writable=True) for path in policy.writable_paths]
        repository = linked_git_directory(base_dir) if policy.git else None
        if repository and innermost(repository, [base_dir, *writable]) is None:
            # The repository of a linked worktree, or of a submodule; what runs code is read-only there as
            # well.
            writable.append(repository)
        return replace(
            policy,
            base_dir=base_dir,
            readable_paths=tuple(existing(path) for path in policy.readable_paths),
            writable_paths=tuple(writable),
        )


async def _disarm_leftovers(guard: Guard, protection: Protection) -> list[str]:
    """Disable leftovers, even if the command is cancelled; in a thread if there are many folders."""
    if not guard.is_large:
        return guard.disarm_leftovers(protection)
    settling = asyncio.ensure_future(asyncio.to_thread(guard.disarm_leftovers, protection))
    cancelled: asyncio.CancelledError | None = None
    while not settling.done():
        try:
            await asyncio.shield(settling)
        except asyncio.CancelledError as error:
            cancelled = error
    if cancelled is not None:
        raise cancelled
    return settling.result()


async def _build_guard(policy: ExecutionPolicy, protection: Protection) -> Guard:
    """Build the guard, in a thread if there are many folders."""
    with suppress(TooLarge):
        return build_guard(policy, protection, FEW_FOLDERS)
    try:
        looking = asyncio.ensure_future(asyncio.to_thread(build_guard, policy, protection))
        try:
            return await asyncio.shield(looking)
        except asyncio.CancelledError:
            looking.add_done_callback(_release_when_done)
            raise
    except TooLarge as error:
        raise Unusable(str(error)) from None
    except RuntimeError as error:
        raise Unavailable(f"the directory cannot be looked through ({error})") from error


def _release_when_done(looking: "asyncio.Future[Guard]") -> None:
    if not looking.cancelled() and looking.exception() is None:
        looking.result().release()


def _resolve_path(
    path: str, *, commands_write: Iterable[str], writable: bool = False, directory: bool = False
) -> str:
    real = Path(real_path(os.path.expanduser(path), commands_write))
    if not real.exists():
        raise Unusable(
            f"there is no {'directory' if directory else 'file or directory'} {path}; make it first"
        )
    if directory and not real.is_dir():
        raise Unusable(f"{path} is not a directory; name one to work in")
    if real == Path("/") or (writable and _is_of_the_system(real)):
        raise Unusable(f"{path} holds the system itself; name a directory that holds nothing but the work")
    return str(real)


def _is_of_the_system(path: Path) -> bool:
    return any(path.is_relative_to(each) for each in _CLOSED) and not any(
        path.is_relative_to(each) for each in _OPEN
    )


_PACKAGES: Final = {"bwrap": "bubblewrap", "bash": "bash"}


_PROGRAM_PATHS: Final = dict[tuple[str, str], str]()
"""Programs by name and search path. A program that was removed is searched again."""


def _find_program(name: str, where: str | None = None) -> str:
    # The machine's own first: an agent may be able to write to a folder of the worker's PATH.
    where = where or f"{profile.PROGRAMS}:{os.environ.get('PATH', '')}"
    cached = _PROGRAM_PATHS.get((name, where))
    if cached and os.access(cached, os.X_OK):
        return cached
    path = shutil.which(name, path=where)
    if path is None:
        package = _PACKAGES.get(name, "util-linux")
        raise Unavailable(f"{name} is not installed; install it (Debian and Ubuntu: apt install {package})")
    _PROGRAM_PATHS[name, where] = path
    return path


def launch_for(policy: ExecutionPolicy, places: Sequence[ResolvedPath]) -> Launch:
    """The command that starts bubblewrap: root switches to an unprivileged user first."""
    _find_program("bwrap")
    if os.geteuid() != 0:
        return Launch()
    _find_program("unshare")
    user, group = _tool_user(policy.base_dir)
    try:
        mounts = find_mounts(user, group, places)
    except PermissionError:
        # Root in a container that may not mount: files that do not belong to root can be used directly.
        if of_root := [each.path for each in places if each.of_root and each.writable]:
            who = f"{TOOL_USER}:{TOOL_USER}"
            raise Unusable(
                f"{of_root[0]} belongs to root, no command runs as root, and this container may not mount "
                f"it for another user; give it to the tool user (chown -R {who} {of_root[0]}), or let the "
                "worker not run as root"
            ) from None
        words = [
            _find_program("setpriv"),
            "--reuid",
            str(user),
            "--regid",
            str(group),
            "--clear-groups",
            "--",
        ]
        return Launch(words)
    words = [
        _find_program("nsenter"),
        f"--mount={mounts.path}",
        "--setuid",
        str(user),
        "--setgid",
        str(group),
        "--",
    ]
    return Launch(words, mounts.sources, mounts)


def _tool_user(base_dir: str) -> tuple[int, int]:
    """The owner of the directory, with the owner's group; never root."""
    status = os.stat(base_dir)
    user = status.st_uid or TOOL_USER
    try:
        group = pwd.getpwuid(user).pw_gid
    except KeyError:
        group = status.st_gid
    return user, group if user != TOOL_USER and group else TOOL_USER


def places_of(policy: ExecutionPolicy) -> tuple[ResolvedPath, ...]:
    """The files to which the policy's paths lead now."""
    writable = {policy.base_dir, *policy.writable_paths}
    return tuple(
        ResolvedPath.at(path, path in writable) for path in sorted({*writable, *policy.readable_paths})
    )
