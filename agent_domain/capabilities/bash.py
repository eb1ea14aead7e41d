"""Shell commands: the policy of the sandbox, and the result text for the model.

There is no list of forbidden words. The sandbox is the protection, and its refusals reach the
model as the command's own error output. A failing command is a successful result.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Protocol, TypeAlias

from everstep.agent_domain.capabilities.network import Network, parse_network
from everstep.agent_domain.checks import require_finite, require_integer, require_integer_at_least
from everstep.agent_domain.errors import InvalidInput
from everstep.agent_domain.values import valid_text

KIB = 1024
MIB = 1024 * KIB
GIB = 1024 * MIB

MIN_TIMEOUT = 1
MAX_MEMORY = GIB
MIN_CAP = KIB

KEPT_VARIABLES = frozenset({"PATH", "HOME", "LANG", "TERM", "TMPDIR", "TZ", "USER"})
"""The environment variables that a command receives, in addition to `LC_*`; others may be secrets."""

TRUNCATED = "...(truncated)..."
NO_OUTPUT = "(no output)"


class _PathLike(Protocol):
    def __fspath__(self) -> str: ...


PathText: TypeAlias = str | _PathLike
"""Text, or any path object."""


def default_environment(environment: Mapping[str, str]) -> dict[str, str]:
    """The environment variables that a command receives by default."""
    return {k: v for k, v in environment.items() if k in KEPT_VARIABLES or k.startswith("LC_")}


def decode_output(output: bytes) -> str:
    """Decode a command's output; invalid UTF-8, and NUL, which cannot be stored, become U+FFFD."""
    return output.decode(errors="replace").replace("\x00", "\ufffd")


@dataclass(frozen=True, slots=True)
class ExecutionPolicy:
    """The resources of a command. Numbers outside their bounds are clamped."""

    base_dir: str
    timeout: float = 5
    memory_bytes: int = 128 * MIB
    network: Network = False
    """True for all public host names, or the allowed names, like `("pypi.org", "*.github.com")`."""
    inherits_environment: bool = False
    readable_paths: tuple[str, ...] = ()
    writable_paths: tuple[str, ...] = ()
    stdout_cap: int = MIB
    stderr_cap: int = MIB
    disk_bytes: int = GIB
    git: bool = False
    """Whether git directories are writable, except for files that run code, such as hooks."""

    def __post_init__(self) -> None:
        require_finite("timeout", self.timeout)
        require_integer_at_least("memory_bytes", self.memory_bytes, 1)
        require_integer_at_least("disk_bytes", self.disk_bytes, 1)
        require_integer("stdout_cap", self.stdout_cap)
        require_integer("stderr_cap", self.stderr_cap)
        self._set("base_dir", _path(self.base_dir))
        self._set("timeout", max(MIN_TIMEOUT, self.timeout))
        self._set("memory_bytes", min(MAX_MEMORY, self.memory_bytes))
        self._set("network", parse_network(self.network))
        self._set("readable_paths", _paths(self.readable_paths))
        self._set("writable_paths", _paths(self.writable_paths))
        self._set("stdout_cap", max(MIN_CAP, self.stdout_cap))
        self._set("stderr_cap", max(MIN_CAP, self.stderr_cap))

    def _set(self, name: str, value: object) -> None:
        object.__setattr__(self, name, value)

    @classmethod
    def in_dir(cls, path: PathText) -> "ExecutionPolicy":
        """The minimal policy: low limits, no network, and only the default environment variables."""
        return cls(_path(path))

    @classmethod
    def for_bash(cls, path: PathText, timeout: float = 120) -> "ExecutionPolicy":
        """The policy of the bash tool, which has a longer timeout and larger output limits."""
        return cls.in_dir(path).with_timeout(timeout).with_output_caps(5 * MIB, MIB)

    def with_timeout(self, seconds: float) -> "ExecutionPolicy":
        """A copy that stops commands after this many seconds, at least 1."""
        return replace(self, timeout=seconds)

    def with_memory(self, size: int) -> "ExecutionPolicy":
        """A copy that limits memory to this many bytes, at most 1 GiB."""
        return replace(self, memory_bytes=size)

    def with_disk(self, size: int) -> "ExecutionPolicy":
        """A copy that limits how many bytes one command may add to the disk."""
        return replace(self, disk_bytes=size)

    def with_git(self, allowed: bool = True) -> "ExecutionPolicy":
        """A copy that allows git to add, commit and check out; hooks and configuration stay read-only."""
        return replace(self, git=allowed)

    def with_network(self, allowed: bool | Iterable[str] = True) -> "ExecutionPolicy":
        """A copy that allows HTTP and HTTPS to no hosts, to all public ones, or to a list of names."""
        return replace(self, network=parse_network(allowed))

    def with_readable_paths(self, *paths: PathText) -> "ExecutionPolicy":
        """A copy that lets commands read these paths and the base directory; replaces earlier paths."""
        return replace(self, readable_paths=_paths(paths))

    def with_writable_paths(self, *paths: PathText) -> "ExecutionPolicy":
        """A copy that lets commands write these paths and the base directory; replaces earlier paths."""
        return replace(self, writable_paths=_paths(paths))

    def with_output_caps(self, stdout: int, stderr: int) -> "ExecutionPolicy":
        """A copy that keeps this many bytes of each output stream, at least 1 KiB."""
        return replace(self, stdout_cap=stdout, stderr_cap=stderr)

    def inherit_environment(self, inherit: bool = True) -> "ExecutionPolicy":
        """A copy that passes the whole environment to commands, or only the default variables."""
        return replace(self, inherits_environment=inherit)

    def environment(self, inherited: Mapping[str, str]) -> dict[str, str]:
        """The environment of a command, given that of this process."""
        return dict(inherited) if self.inherits_environment else default_environment(inherited)


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
    """How many characters of each output stream the model reads; `max_output_chars` ≤ 0: all."""

    max_output_chars: int = 50_000
    head_chars: int = 8_000
    tail_chars: int = 40_000

    def __post_init__(self) -> None:
        require_integer("max_output_chars", self.max_output_chars)
        require_integer_at_least("head_chars", self.head_chars, 0)
        require_integer_at_least("tail_chars", self.tail_chars, 0)

    def truncated(self, text: str, cut: bool = False) -> str:
        """The part of an output stream that the model reads.

        Args:
            text: The stream.
            cut: Whether the sandbox has already dropped a part of it.
        """
        if 0 < self.max_output_chars < len(text):
            text, cut = self._ends(text), True
        return f"{TRUNCATED}\n{text}" if cut else text

    def _ends(self, text: str) -> str:
        head = min(self.head_chars, self.max_output_chars)
        # tail_chars has no effect: the tail fills the rest of max_output_chars, even if that is more or less.
        tail = self.max_output_chars - head
        return "\n...\n".join(end for end in (text[:head], text[len(text) - tail :]) if end)


@dataclass(frozen=True, slots=True)
class CommandResult:
    """The result of a command; `exit_code` is None if it ended without one."""

    exit_code: int | None
    stdout: str = ""
    stderr: str = ""
    timed_out: bool = False
    stdout_cut: bool = False
    stderr_cut: bool = False


def result_text(result: CommandResult, timeout: float, policy: BashPolicy) -> str:
    """The result text for the model. Streams are unchanged, including their last newline."""
    stderr = policy.truncated(result.stderr, result.stderr_cut)
    parts = (
        f"Time limit of {timeout:.15g}s reached, command stopped" if result.timed_out else "",
        f"Exit code: {result.exit_code}" if result.exit_code else "",
        policy.truncated(result.stdout, result.stdout_cut),
        f"STDERR:\n{stderr}" if stderr else "",
    )
    return "\n\n".join(part for part in parts if part) or NO_OUTPUT
