"""The self-test of the sandbox: the worker attacks it before it runs the first command.

It runs once for each process and shape of policy, and again as long as an attack succeeds. `failed_checks`
gives the results without running a command.
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
from everstep.capabilities.bash.decoy import decoy, paths_open_to_file_tools
from everstep.capabilities.bash.profile import HOME
from everstep.capabilities.bash.sandbox import Sandbox
from everstep.capabilities.bash.way_out import PORT, VARIABLES
from everstep.capabilities.bash.words import Unavailable

SECONDS: Final = 60
"""For a sandbox that hangs: the attacks take a second, and many times that on a machine that is very busy."""
_INTERPRETER: Final = os.path.realpath(sys.executable)
_SCRIPT: Final = Path(attack.__file__).read_text("utf-8")
_PASSED = set[tuple[int, int, bool, bool]]()


async def require(policy: ExecutionPolicy) -> None:
    """Return if the sandbox holds.

    Raises:
        Unavailable: An attack succeeded, or the sandbox does not start.
    """
    shape = Sandbox(policy).shape
    if shape in _PASSED:
        return
    if failed := await failed_checks(policy):
        raise Unavailable("; ".join(failed))
    _PASSED.add(shape)


async def failed_checks(policy: ExecutionPolicy) -> list[str]:
    """The failed checks, each with advice; empty if the sandbox holds."""
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
    """The names of the attacks that succeeded with commands, and with file tools."""
    # The interpreter may be in a place that commands cannot see. The environment and the memory limit do not
    # affect the attacks.
    readable = {*policy.readable_paths, sys.base_prefix} - {"/usr", "/usr/local"}
    shape = replace(
        policy.with_memory(256 * MIB).with_timeout(SECONDS).inherit_environment(False),
        readable_paths=tuple(sorted(readable)),
    )
    with _open_targets(bool(policy.network)) as outside, decoy(os.stat(policy.base_dir)) as project:
        shape = shape.with_writable_paths(*shape.writable_paths, project / "project", project / "empty")
        outside |= {"project": str(project / "project"), "empty": str(project / "empty")}
        by_files = paths_open_to_file_tools(project / "project", project / "empty")
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
        # The background process is intended: it holds the streams open until it is killed.
        result = await Sandbox(shape).run(f"(setsid sleep {SECONDS} &); {shlex.join(words)}")
    if result.timed_out:
        raise Unavailable("the sandbox was too slow to be checked, or left a process running; try again")
    if result.exit_code != 0:
        lines = result.stderr.strip().splitlines() or ["it printed nothing"]
        raise Unavailable(f"the sandbox could not be checked: {lines[-1]}")
    return list(json.loads(result.stdout)), by_files


@contextmanager
def _open_targets(network: bool) -> Generator[dict[str, Any]]:
    """Files, sockets and a port that must not be reachable from inside."""
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
MAX_NAMESPACES: Final = "/proc/sys/user/max_user_namespaces"

_CONTAINER: Final = (
    "; if this is a container, it has to be allowed to make user namespaces "
    "(docker run --security-opt seccomp=unconfined --security-opt apparmor=unconfined "
    "--security-opt systempaths=unconfined)"
)


def _advice(problem: str) -> str:
    """Advice for an error, by the settings of this machine."""
    if "nknown option" in problem:
        return "; update bubblewrap to 0.8 or later"
    if "Can't find source path" in problem:
        return "; give the owner of the base directory access to it and to the folders above"
    if "mount" in problem and "not permitted" in problem:
        # Namespaces work; but where parts of /proc are hidden, the kernel refuses to mount another one.
        return _CONTAINER
    if (
        "amespace" not in problem
        and "setting up uid map" not in problem
        and "ermission denied" not in problem
    ):
        return ""
    settings = ((CLONE, "0", "1"), (APPARMOR, "1", "0"), (MAX_NAMESPACES, "0", "15000"))
    for path, forbidding, allowing in settings:
        if Path(path).exists() and Path(path).read_text("ascii").strip() == forbidding:
            name = path.removeprefix("/proc/sys/").replace("/", ".")
            return f"; user namespaces are forbidden here: sysctl -w {name}={allowing}"
    return _CONTAINER
