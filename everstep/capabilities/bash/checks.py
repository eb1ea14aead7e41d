"""Whether the sandbox holds here: the worker attacks it itself before it runs the first command.

Asked once for a process and a shape of policy, and again for as long as something is open. `failed_checks` is
for whoever wants to know without running a command.
"""

import json
import os
import platform
import shlex
import socket
import sys
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import Any, Final
from uuid import uuid4

from everstep.agent_domain.capabilities.bash import KEPT_VARIABLES, MIB, ExecutionPolicy
from everstep.capabilities.bash import attack, seccomp
from everstep.capabilities.bash.decoy import decoy, opened_by_files
from everstep.capabilities.bash.profile import HOME
from everstep.capabilities.bash.sandbox import Sandbox
from everstep.capabilities.bash.way_out import PORT, VARIABLES
from everstep.capabilities.bash.words import Unavailable

SECONDS: Final = 20
_INTERPRETER: Final = os.path.realpath(sys.executable)
_SCRIPT: Final = Path(attack.__file__).read_text("utf-8")
_HELD = set[tuple[int, int, bool, bool]]()


async def require(policy: ExecutionPolicy) -> None:
    """Return if the sandbox holds; raise what is wrong if not."""
    shape = Sandbox(policy).shape
    if shape in _HELD:
        return
    if failed := await failed_checks(policy):
        raise Unavailable("; ".join(failed))
    _HELD.add(shape)


async def failed_checks(policy: ExecutionPolicy) -> list[str]:
    """What is open, or keeps the sandbox from working, each with what to do; empty if it holds."""
    if sys.platform != "linux" or platform.machine() not in seccomp.MACHINES:
        return [
            f"it needs Linux on {' or '.join(seccomp.MACHINES)}; "
            f"run the worker there, not on {sys.platform} {platform.machine()}"
        ]
    try:
        opened, by_files = await _attack(policy)
    except Unavailable as error:
        return [f"{error}{_advice(str(error))}"]
    return [
        *(f"the sandbox leaves open: {name}; update bubblewrap and the kernel" for name in opened),
        *(f"file tools leave open: {name}; report it, and run no agents here" for name in by_files),
    ]


async def _attack(policy: ExecutionPolicy) -> tuple[list[str], list[str]]:
    """What is open to commands, and what to file tools."""
    # The interpreter may stand where no command looks. Environment and memory are no matter of what is tried.
    readable = {*policy.readable_paths, sys.base_prefix} - {"/usr", "/usr/local"}
    shape = replace(
        policy.with_memory(256 * MIB).with_timeout(SECONDS).inherit_environment(False),
        readable_paths=tuple(sorted(readable)),
    )
    with _outside(bool(policy.network)) as outside, decoy(os.stat(policy.base_dir)) as project:
        shape = shape.with_writable_paths(*shape.writable_paths, project / "project", project / "empty")
        outside |= {"project": str(project / "project"), "empty": str(project / "empty")}
        by_files = opened_by_files(project / "project", project / "empty")
        shared = [shape.base_dir, *shape.readable_paths, *shape.writable_paths]
        outside["shared"] = [HOME, *map(os.path.realpath, shared)]
        words = [
            _INTERPRETER,
            "-I",
            "-S",
            "-c",
            _SCRIPT,
            json.dumps(outside),
        ]
        # Left behind on purpose: it holds the streams until it is gone.
        result = await Sandbox(shape).run(f"(setsid sleep {SECONDS} &); {shlex.join(words)}")
    if result.timed_out:
        raise Unavailable("the sandbox was too slow to be checked, or left a process running; try again")
    if result.exit_code != 0:
        said = result.stderr.strip().splitlines() or ["it said nothing"]
        raise Unavailable(f"the sandbox could not be checked: {said[-1]}")
    return list(json.loads(result.stdout)), by_files


@contextmanager
def _outside(network: bool) -> Generator[dict[str, Any]]:
    """Something to be found, if the sandbox lets it be found."""
    name = f"everstep-{uuid4()}"
    with (
        socket.create_server(("127.0.0.1", 0)) as door,
        socket.socket(socket.AF_UNIX) as local,
        NamedTemporaryFile(prefix="everstep-outside-") as file,
    ):
        local.bind(f"\0{name}")
        local.listen()
        Path(file.name).chmod(0o644)
        shell = {"PWD", "SHLVL", "_", "OLDPWD"}
        locale = {variable for variable in os.environ if variable.startswith("LC_")}
        yield {
            "proxy": PORT if network else None,
            "port": door.getsockname()[1],
            "socket": name,
            "file": file.name,
            "processes": os.readlink("/proc/self/ns/pid"),
            "variables": sorted(KEPT_VARIABLES | shell | locale | set(VARIABLES if network else ())),
        }


CLONE: Final = "/proc/sys/kernel/unprivileged_userns_clone"
APPARMOR: Final = "/proc/sys/kernel/apparmor_restrict_unprivileged_userns"
MOST: Final = "/proc/sys/user/max_user_namespaces"

_CONTAINER: Final = (
    "; if this is a container, it has to be allowed to make user namespaces "
    "(docker run --security-opt seccomp=unconfined --security-opt apparmor=unconfined "
    "--security-opt systempaths=unconfined)"
)


def _advice(problem: str) -> str:
    """What to do about it, by what this machine forbids."""
    if "nknown option" in problem:
        return "; update bubblewrap to 0.8 or later"
    if "Can't find source path" in problem:
        return "; let whoever owns the base directory look into it and into the folders above"
    if "mount" in problem and "not permitted" in problem:
        # Namespaces there are; but where parts of /proc are hidden, nobody may mount another one.
        return _CONTAINER
    if (
        "amespace" not in problem
        and "setting up uid map" not in problem
        and "ermission denied" not in problem
    ):
        return ""
    settings = ((CLONE, "0", "1"), (APPARMOR, "1", "0"), (MOST, "0", "15000"))
    for path, forbidding, allowing in settings:
        if Path(path).exists() and Path(path).read_text("ascii").strip() == forbidding:
            name = path.removeprefix("/proc/sys/").replace("/", ".")
            return f"; user namespaces are forbidden here: sysctl -w {name}={allowing}"
    return _CONTAINER
