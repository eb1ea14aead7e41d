"""Running commands: what the sandbox allows, and what the model reads of the outcome.

There is no list of forbidden words: the sandbox is the protection, and what it refuses reaches
the model as the command's own error output. A failing command is a successful result.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Protocol, TypeAlias

from everstep.agent_domain.capabilities.network import Network, network
from everstep.agent_domain.checks import any_whole, finite, whole
from everstep.agent_domain.errors import InvalidInput
from everstep.agent_domain.values import valid_text

KIB = 1024
MIB = 1024 * KIB
GIB = 1024 * MIB

MIN_TIMEOUT = 1
MAX_MEMORY = GIB
MIN_CAP = KIB

KEPT_VARIABLES = frozenset({"PATH", "HOME", "LANG", "TERM", "TMPDIR", "TZ", "USER"})
"""The environment of a command, with all of `LC_*`; everything else may be a secret."""

TRUNCATED = "...(truncated)..."
NO_OUTPUT = "(no output)"


class _PathLike(Protocol):
    def __fspath__(self) -> str: ...


PathText: TypeAlias = str | _PathLike
"""Text, or any path object."""


def reduced(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that a command may see."""
    return {k: v for k, v in environment.items() if k in KEPT_VARIABLES or k.startswith("LC_")}


def decoded(output: bytes) -> str:
    """Read a command's output as text; what is no UTF-8, or cannot be stored, becomes U+FFFD."""
    return output.decode(errors="replace").replace("\x00", "\ufffd")


@dataclass(frozen=True, slots=True)
class ExecutionPolicy:
    """What a command may use. Numbers beyond a bound are moved to it, as no other value works."""

    base_dir: str
    timeout: float = 5
    memory_bytes: int = 128 * MIB
    network: Network = False
    """True for all public names, or the names that may be reached, like `("pypi.org", "*.github.com")`."""
    inherits_environment: bool = False
    readable_paths: tuple[str, ...] = ()
    writable_paths: tuple[str, ...] = ()
    stdout_cap: int = MIB
    stderr_cap: int = MIB
    disk_bytes: int = GIB
    git: bool = False
    """Whether git directories can be written, except for what runs code there."""

    def __post_init__(self) -> None:
        finite("timeout", self.timeout)
        whole("memory_bytes", self.memory_bytes, 1)
        whole("disk_bytes", self.disk_bytes, 1)
        any_whole("stdout_cap", self.stdout_cap)
        any_whole("stderr_cap", self.stderr_cap)
        self._set("base_dir", _path(self.base_dir))
        self._set("timeout", max(MIN_TIMEOUT, self.timeout))
        self._set("memory_bytes", min(MAX_MEMORY, self.memory_bytes))
        self._set("network", network(self.network))
        self._set("readable_paths", _paths(self.readable_paths))
        self._set("writable_paths", _paths(self.writable_paths))
        self._set("stdout_cap", max(MIN_CAP, self.stdout_cap))
        self._set("stderr_cap", max(MIN_CAP, self.stderr_cap))

    def _set(self, name: str, value: object) -> None:
        object.__setattr__(self, name, value)

    @classmethod
    def in_dir(cls, path: PathText) -> "ExecutionPolicy":
        """Return the bare policy: short, small, without network and without the environment."""
        return cls(_path(path))

    @classmethod
    def for_bash(cls, path: PathText, timeout: float = 120) -> "ExecutionPolicy":
        """Return the policy of the bash tool, which has more time and may say more."""
        return cls.in_dir(path).with_timeout(timeout).with_output_caps(5 * MIB, MIB)

    def with_timeout(self, seconds: float) -> "ExecutionPolicy":
        """Stop commands after so many seconds, at least one."""
        return replace(self, timeout=seconds)

    def with_memory(self, size: int) -> "ExecutionPolicy":
        """Give commands so many bytes of memory, at most 1 GiB."""
        return replace(self, memory_bytes=size)

    def with_disk(self, size: int) -> "ExecutionPolicy":
        """Let one command add so many bytes to the disk."""
        return replace(self, disk_bytes=size)

    def with_git(self, allowed: bool = True) -> "ExecutionPolicy":
        """Let commands add, commit and check out with git, or not; hooks and configuration stay closed."""
        return replace(self, git=allowed)

    def with_network(self, allowed: bool | Iterable[str] = True) -> "ExecutionPolicy":
        """Let commands speak HTTP and HTTPS with no hosts, with all public ones, or with those listed."""
        return replace(self, network=network(allowed))

    def with_readable_paths(self, *paths: PathText) -> "ExecutionPolicy":
        """Let commands read these paths besides the base directory, and no others named before."""
        return replace(self, readable_paths=_paths(paths))

    def with_writable_paths(self, *paths: PathText) -> "ExecutionPolicy":
        """Let commands write these paths besides the base directory, and no others named before."""
        return replace(self, writable_paths=_paths(paths))

    def with_output_caps(self, stdout: int, stderr: int) -> "ExecutionPolicy":
        """Keep so many bytes of each stream, at least 1 KiB."""
        return replace(self, stdout_cap=stdout, stderr_cap=stderr)

    def inherit_environment(self, inherit: bool = True) -> "ExecutionPolicy":
        """Pass the whole environment on, or not."""
        return replace(self, inherits_environment=inherit)

    def environment(self, inherited: Mapping[str, str]) -> dict[str, str]:
        """Return the environment for a command."""
        return dict(inherited) if self.inherits_environment else reduced(inherited)


def _path(path: PathText) -> str:
    text = valid_text(path if isinstance(path, str) else path.__fspath__(), "the path")
    if not text:
        raise InvalidInput(_EMPTY_PATH)
    return text


_EMPTY_PATH = "the path is empty; use '.' for the current directory"


def _paths(paths: Iterable[PathText]) -> tuple[str, ...]:
    return tuple(_path(path) for path in ((paths,) if isinstance(paths, str) else paths))


@dataclass(frozen=True, slots=True)
class BashPolicy:
    """How much of each output stream the model reads, in characters; `max_output_chars` ≤ 0: all."""

    max_output_chars: int = 50_000
    head_chars: int = 8_000
    tail_chars: int = 40_000

    def __post_init__(self) -> None:
        any_whole("max_output_chars", self.max_output_chars)
        whole("head_chars", self.head_chars, 0)
        whole("tail_chars", self.tail_chars, 0)

    def truncated(self, text: str, cut: bool = False) -> str:
        """Return what the model reads of a stream; `cut`: the sandbox has already dropped some."""
        if 0 < self.max_output_chars < len(text):
            text, cut = self._ends(text), True
        return f"{TRUNCATED}\n{text}" if cut else text

    def _ends(self, text: str) -> str:
        head = min(self.head_chars, self.max_output_chars)
        # Whatever tail_chars asks for: more does not fit, and less is raised to use the maximum up.
        tail = self.max_output_chars - head
        return "\n...\n".join(end for end in (text[:head], text[len(text) - tail :]) if end)


@dataclass(frozen=True, slots=True)
class CommandResult:
    """What became of a command; `exit_code` is None when it ended without one."""

    exit_code: int | None
    stdout: str = ""
    stderr: str = ""
    timed_out: bool = False
    stdout_cut: bool = False
    stderr_cut: bool = False


def result_text(result: CommandResult, timeout: float, policy: BashPolicy) -> str:
    """Say what became of a command. Streams are given as they are, with their last newline."""
    stderr = policy.truncated(result.stderr, result.stderr_cut)
    parts = (
        f"Time limit of {timeout:.15g}s reached, command stopped" if result.timed_out else "",
        f"Exit code: {result.exit_code}" if result.exit_code else "",
        policy.truncated(result.stdout, result.stdout_cut),
        f"STDERR:\n{stderr}" if stderr else "",
    )
    return "\n\n".join(part for part in parts if part) or NO_OUTPUT
