"""The file system, the environment and the limits inside the sandbox. Nothing else is visible.

Programs and libraries are read-only, with a few files of /etc. The command has its own /proc, /dev and
processes, empty scratch directories whose total size is the policy's memory, and the base directory at its
own path. There is no /sys, there are no home directories and no sockets of other processes.
"""

import resource
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Final

from everstep.agent_domain.capabilities.bash import MIB, ExecutionPolicy
from everstep.capabilities.bash import way_out
from everstep.capabilities.bash.protected_mounts import Mount

NAME: Final = "agent"
USER: Final = 1000
"""The user id that the command sees."""
HOME: Final = f"/home/{NAME}"
SCRATCH: Final = {"/tmp": 2, HOME: 4, "/dev/shm": 4}  # noqa: S108 -- names inside the sandbox
"""Scratch directories, which are deleted afterwards, with the divisor of the policy's memory for each;
together they may take all of it.
"""

PROCESSES: Final = 256
"""Including threads."""
OPEN_FILES: Final = 1024
SIGNALS: Final = 1024
"""Pending signals, and timers; the kernel counts them for each user."""
FILE_SIZE: Final = 1024 * MIB
STACK: Final = 8 * MIB

_RLIMIT_SIGPENDING: Final = 11  # the module has no name for it
_STDERR: Final = 9
"""Where the first process keeps the command's stderr; it is closed in the command."""

PROGRAMS: Final = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

_ISOLATED: Final = [
    *["--unshare-user", "--unshare-pid", "--unshare-ipc", "--unshare-uts", "--unshare-cgroup-try"],
    # Always: with a network, the namespace holds only the proxy of `way_out.py`.
    "--unshare-net",
    *["--disable-userns", "--cap-drop", "ALL", "--uid", str(USER), "--gid", str(USER)],
    *["--hostname", "sandbox", "--new-session", "--die-with-parent", "--as-pid-1"],
]

_SYSTEM: Final = ["/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32"]

# What programs need in order to start, and no more: no passwords, no keys, no configuration of services.
_ETC: Final = [
    *["alternatives", "fonts", "ld.so.cache", "localtime", "mime.types", "protocols", "services", "timezone"],
    *["ssl/certs", "ssl/openssl.cnf", "pki/ca-trust", "pki/tls/certs"],
]

_FILES: Final = {
    "/etc/passwd": f"root:x:0:0::/root:/bin/bash\n{NAME}:x:{USER}:{USER}::{HOME}:/bin/bash\n",
    "/etc/group": f"root:x:0:\n{NAME}:x:{USER}:\n",
    "/etc/nsswitch.conf": "passwd: files\ngroup: files\nhosts: files\n",
    "/etc/hosts": "127.0.0.1 localhost sandbox\n::1 localhost sandbox\n",
}


def arguments(
    policy: ExecutionPolicy, mounts: Sequence[Mount], descriptor: Callable[[bytes], int]
) -> list[str]:
    """The arguments for bubblewrap.

    Args:
        policy: With real paths.
        mounts: In the order in which they are made.
        descriptor: Makes a descriptor from which the given bytes are read.
    """
    return [
        *_ISOLATED,
        *(word for path in _SYSTEM for word in _system(path)),
        *(word for name in _ETC for word in _read_only(f"/etc/{name}")),
        *(w for path, text in _FILES.items() for w in _file(path, descriptor(text.encode()))),
        *["--proc", "/proc", "--dev", "/dev", "--dir", "/var/tmp", "--dir", "/run"],  # noqa: S108
        *(
            w
            for p, part in SCRATCH.items()
            for w in ["--size", str(policy.memory_bytes // part), "--tmpfs", p]
        ),
        *(word for mount in mounts for word in mount.words(descriptor)),
        # Both are made in memory, with half of the machine's memory as their size.
        *["--remount-ro", "/dev", "--remount-ro", "/"],
        # Otherwise a process could undo its oom_score_adj, or write into another process.
        *["--remount-ro", "/proc", "--chdir", policy.base_dir],
    ]


@cache
def _system(path: str) -> list[str]:
    if Path(path).is_symlink():
        return ["--symlink", str(Path(path).readlink()), path]
    return ["--ro-bind", path, path] if Path(path).is_dir() else []


def _read_only(path: str) -> list[str]:
    """If the file exists; a link is resolved."""
    return ["--ro-bind-try", path, path]


def _file(path: str, descriptor: int) -> list[str]:
    return ["--perms", "0644", "--ro-bind-data", str(descriptor), path]


def environment(policy: ExecutionPolicy, inherited: Mapping[str, str]) -> dict[str, str]:
    """The command's variables. Those that name directories or users are set to the ones inside."""
    variables = policy.environment(inherited)
    path = f"{variables['PATH']}:{PROGRAMS}" if variables.get("PATH") else PROGRAMS
    inside = {"PATH": path, "HOME": HOME, "TMPDIR": next(iter(SCRATCH)), "USER": NAME}
    return variables | inside | (way_out.VARIABLES if policy.network else {})


def prelude(policy: ExecutionPolicy, lifeline: int) -> str:
    """The script of the sandbox's first process, a bash. It sets its own limits, which its children inherit.

    Over the lifeline it reports that it is ready, and waits for the answer; none comes if the worker has
    died. Then it runs the command in a child, which signals can end, and reaps the processes that the child
    leaves. Its own messages about the child's end are discarded.
    """
    limits = {
        "c": (resource.RLIMIT_CORE, 0, 1),
        "d": (resource.RLIMIT_DATA, policy.memory_bytes, 1024),
        "f": (resource.RLIMIT_FSIZE, max(FILE_SIZE, policy.disk_bytes), 1024),
        "i": (_RLIMIT_SIGPENDING, SIGNALS, 1),
        "n": (resource.RLIMIT_NOFILE, OPEN_FILES, 1),
        "s": (resource.RLIMIT_STACK, STACK, 1024),
        "u": (resource.RLIMIT_NPROC, PROCESSES, 1),
    }
    words = " ".join(f"-{flag} {_limit(kind, value) // unit}" for flag, (kind, value, unit) in limits.items())
    return (
        f"ulimit {words} && echo >&{lifeline} && read -r _ <&{lifeline} || exit 1; "
        f"exec {lifeline}<&- {_STDERR}>&2 2>/dev/null; "
        f'"$BASH" -c "$1" bash 2>&{_STDERR} {_STDERR}>&-; exit $?'
    )


def _limit(kind: int, value: int) -> int:
    """A hard limit that is lower already is kept."""
    hard = resource.getrlimit(kind)[1]
    return value if hard == resource.RLIM_INFINITY else min(value, hard)
