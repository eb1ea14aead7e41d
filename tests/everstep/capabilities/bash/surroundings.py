"""The environment of a sandbox in tests: secrets, open services, and a check for remaining processes."""

import os
import shutil
import socket
import sys
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from uuid import UUID, uuid4

from everstep.agent_domain.capabilities.bash import ExecutionPolicy
from everstep.agent_domain.tools.tools import ToolContext
from everstep.capabilities.bash import UseBash
from everstep.runtime.builder import AgentBuilder
from tests.node import do_without

SECRET = "S3CRET-of-the-worker"  # noqa: S105 -- a fake secret
PYTHON = os.path.realpath(sys.executable)
MARK = "LC_EVERSTEP_TEST"
"""A variable that commands may see, used to identify their processes."""

CONTEXT = ToolContext(UUID(int=1), "call", 1)


def need_a_sandbox() -> None:
    """Fail with the missing requirement where no sandbox can be created."""
    if sys.platform != "linux" or shutil.which("bwrap") is None:
        do_without("this needs Linux with bubblewrap; install it (Debian: apt-get install bubblewrap)")


@dataclass(frozen=True)
class SandboxHost:
    """The parts of a worker's machine that matter to a sandbox."""

    base_dir: Path
    outside: Path
    port: int
    abstract: str
    mark: str

    @property
    def placeholders(self) -> dict[str, object]:
        """Placeholders in hostile commands."""
        return {
            "base": self.base_dir,
            "outside": self.outside,
            "port": self.port,
            "abstract": self.abstract,
            "worker": os.getpid(),
            "python": PYTHON,
        }

    def running_processes(self) -> list[str]:
        """The processes of commands that still exist."""
        found = list[str]()
        for process in Path("/proc").iterdir():
            if process.name.isdigit() and int(process.name) != os.getpid():
                try:
                    words = (process / "cmdline").read_bytes()
                    told = (process / "environ").read_bytes() + words
                except (FileNotFoundError, ProcessLookupError, PermissionError):
                    continue
                if self.mark.encode() in told:
                    found.append(words.decode(errors="replace"))
        return found


@contextmanager
def open_sandbox_host(folder: Path) -> Generator[SandboxHost]:
    """A machine with a secret to read, and services to connect to."""
    base_dir, outside, mark = folder / "work", folder / "outside", uuid4().hex
    base_dir.mkdir()
    outside.mkdir()
    (outside / "secret").write_text(SECRET)
    with socket.create_server(("127.0.0.1", 0)) as door, socket.socket(socket.AF_UNIX) as local:
        local.bind(f"\0{mark}")
        local.listen()
        yield SandboxHost(base_dir, outside, door.getsockname()[1], mark, mark)


def policy_for(around: SandboxHost, seconds: float = 10) -> ExecutionPolicy:
    """The default policy, with a Python interpreter for attacks."""
    return ExecutionPolicy.for_bash(around.base_dir, seconds).with_readable_paths(sys.base_prefix)


async def bash(command: str, policy: ExecutionPolicy) -> str:
    """The result that a model reads."""
    (tool,) = AgentBuilder.new().with_capability(UseBash(policy)).definition().tools
    return await tool.call({"command": command}, CONTEXT)
