"""The attacks of the self-test. The script runs inside the sandbox, on its own, and is never imported there.

The argument is JSON: what exists outside, to be searched for. The script prints, as JSON, the names of the
attacks that succeeded. It is Python only, so that it depends on no programs of the system.
"""

import ctypes
import json
import os
import resource
import socket
import sys
from collections.abc import Callable, Mapping
from typing import Any

_LIBC = ctypes.CDLL(None, use_errno=True)
_NEW_USER, _NEW_MOUNTS = 0x10000000, 0x00020000


def _call_succeeds(name: str, *arguments: Any) -> bool:
    """Whether the system call succeeded."""
    return getattr(_LIBC, name)(*arguments) >= 0


def _system_call(x86: int, arm: int, *arguments: Any) -> bool:
    number = x86 if os.uname().machine == "x86_64" else arm
    return _call_succeeds("syscall", ctypes.c_long(number), *arguments)


def _succeeds(work: Callable[[], object]) -> bool:
    try:
        work()
    except OSError:
        return False
    return True


def _connects(family: int, address: Any) -> bool:
    with socket.socket(family, socket.SOCK_STREAM) as plug:
        plug.settimeout(1)
        plug.connect(address)
    return True


def _writes(path: str) -> bool:
    with open(path, "wb"):
        return True


def _reads(path: str) -> bool:
    with open(path, "rb"):
        return True


def _status(name: str) -> str:
    with open("/proc/self/status", encoding="ascii") as file:
        return next(line.split()[1] for line in file if line.startswith(f"{name}:"))


def _starts_as_another_user() -> bool:
    """Whether it can leave a file that gives the worker's rights to the user who starts it."""
    path = "/tmp/lent"  # noqa: S108 -- inside
    _writes(path)
    return _succeeds(lambda: os.chmod(path, 0o4755)) or _succeeds(  # noqa: S103
        lambda: os.close(os.open(f"{path}.2", os.O_CREAT | os.O_WRONLY, 0o4755))
    )


def _finds_in_homes(shared: list[str]) -> bool:
    """Whether the home directories hold more than the paths that lead to something shared."""
    homes = [f"{top}/{name}" for top in ("/root", "/home") if os.path.isdir(top) for name in os.listdir(top)]
    return any(
        not any(f"{path}/".startswith(f"{home}/") or f"{home}/".startswith(f"{path}/") for path in shared)
        for home in homes
    )


def build_attacks(outside: Mapping[str, Any]) -> dict[str, Callable[[], bool]]:
    """The attacks, by the name of what would be open."""
    port, name = outside["port"], outside["socket"]
    attacks: dict[str, Callable[[], bool]] = {
        "the worker's network": lambda: _succeeds(lambda: _connects(socket.AF_INET, ("127.0.0.1", port))),
        "local sockets of the worker": lambda: _succeeds(lambda: _connects(socket.AF_UNIX, f"\0{name}")),
        "local sockets": lambda: (
            any(
                _succeeds(lambda kind=kind: socket.socket(socket.AF_UNIX, kind).close())
                for kind in (socket.SOCK_STREAM, socket.SOCK_DGRAM, socket.SOCK_SEQPACKET)
            )
            or _succeeds(_datagrams)
        ),
        "the machine's hypervisor": lambda: _succeeds(lambda: _connects(socket.AF_VSOCK, (2, 1))),
        "files of the worker": lambda: _succeeds(lambda: _reads(outside["file"])),
        "passwords of the machine": lambda: os.path.lexists("/etc/shadow"),
        "other people's homes": lambda: _finds_in_homes(outside["shared"]),
        "the system's services": lambda: os.path.lexists("/run/docker.sock") or os.path.lexists("/sys"),
        "writing to the system": lambda: any(
            _succeeds(lambda path=path: _writes(f"{path}/written"))
            for path in ("", "/usr", "/etc", "/dev", "/run")
        ),
        "kernel settings": lambda: (
            _succeeds(lambda: _writes("/proc/sys/kernel/core_pattern"))
            or _succeeds(lambda: _writes("/proc/sysrq-trigger"))
        ),
        "the worker's processes": lambda: os.readlink("/proc/self/ns/pid") == outside["processes"],
        "the worker's environment": lambda: not set(os.environ) <= set(outside["variables"]),
        "descriptors of the worker": lambda: any(
            _succeeds(lambda number=number: os.fstat(number)) for number in range(3, 256)
        ),
        "reading other processes": lambda: _call_succeeds("ptrace", ctypes.c_long(0), 0, 0, 0),
        "mounting": lambda: _call_succeeds("mount", b"none", b"/tmp", b"tmpfs", ctypes.c_ulong(0), None),
        "changing the root": lambda: _call_succeeds("chroot", b"/tmp"),
        "new namespaces": lambda: any(_call_succeeds("unshare", flag) for flag in (_NEW_USER, _NEW_MOUNTS)),
        "programs in the kernel": lambda: _system_call(321, 280, 0, 0, 0),
        "keys in the kernel": lambda: _system_call(250, 219, 0, -3, 1),
        "work in the kernel": lambda: _system_call(425, 425, 8, ctypes.create_string_buffer(256)),
        "measuring the kernel": lambda: _system_call(
            298, 241, ctypes.create_string_buffer(128), 0, -1, -1, 0
        ),
        "memory outside of all limits": lambda: (
            _system_call(319, 279, b"x", 0)
            or _system_call(29, 194, 0, 4096, 0)
            or _system_call(64, 190, 0, 1, 0o600)
        ),
        "events of the machine": lambda: _system_call(206, 0, 1, ctypes.byref(ctypes.c_ulong(0))),
        "watches of the worker's user": lambda: _system_call(294, 26, 0),
        "starting as another user": _starts_as_another_user,
        "typing into terminals": lambda: not _denies_typing(),
        "capabilities": lambda: any(
            int(_status(f"Cap{which}"), 16) for which in ("Prm", "Eff", "Bnd", "Amb")
        ),
        "more rights": lambda: _status("NoNewPrivs") != "1" or _status("Seccomp") != "2",
        "processes without end": lambda: _without_limit(resource.RLIMIT_NPROC),
        "the memory of other processes": lambda: _succeeds(lambda: _writes("/proc/1/mem")),
        "being spared when memory runs out": _escapes_oom_killer,
        "processes without limits": lambda: any(map(_is_unlimited, filter(str.isdigit, os.listdir("/proc")))),
        "memory without end": lambda: _without_limit(resource.RLIMIT_DATA),
        "core dumps": lambda: resource.getrlimit(resource.RLIMIT_CORE)[1] != 0,
    }
    attacks |= _project(outside["project"], outside["empty"])
    if outside["proxy"]:
        attacks["the worker's network, by its proxy"] = lambda: any(
            _succeeds(lambda host=host: _tunnels(outside["proxy"], host, port)) for host in _OWN_NAMES
        )
    return attacks


_OWN_NAMES = ("127.0.0.1", "localhost", "[::1]", "[::ffff:127.0.0.1]", "0.0.0.0", "0x7f.1")  # noqa: S104 -- to attack


def _tunnels(proxy: int, host: str, port: int) -> None:
    with socket.create_connection(("127.0.0.1", proxy), 2) as plug:
        plug.sendall(f"CONNECT {host}:{port} HTTP/1.1\r\n\r\n".encode())
        if plug.recv(12) != b"HTTP/1.1 200":
            raise ConnectionRefusedError


def _datagrams() -> None:
    """A pair of sockets each of which can send to any path."""
    for end in socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM):
        end.close()


def _escapes_oom_killer() -> bool:
    with open("/proc/self/oom_score_adj", encoding="ascii") as file:
        return file.read().strip() != "1000" or _succeeds(lambda: _writes("/proc/self/oom_score_adj"))


def _is_unlimited(process: str) -> bool:
    try:
        with open(f"/proc/{process}/limits", encoding="ascii") as file:
            lines = file.read().splitlines()
    except OSError:
        # It has ended.
        return False
    bounded = ("Max data size", "Max processes", "Max open files", "Max file size")
    return any("unlimited" in line for line in lines if line.startswith(bounded))


def _project(project: str, empty: str) -> dict[str, Callable[[], bool]]:
    """Attacks on an installation in the agents' folder, and on files that it reads from there."""
    data = f"{project}/.everstep"
    return {
        "the installation's data": lambda: any(
            _succeeds(lambda path=path: _reads(f"{data}/{path}"))
            for path in ("api-secret", "postgres/PG_VERSION")
        ),
        "the installation's database": lambda: (
            _succeeds(lambda: _connects(socket.AF_UNIX, f"{data}/run/.s.PGSQL.5432"))
            or _succeeds(lambda: _writes(f"{data}/postgres/postgresql.auto.conf"))
        ),
        "secrets of the project": lambda: (
            any(
                _succeeds(lambda path=path: _reads(f"{project}/{path}"))
                for path in (".env", "sub/.env.local")
            )
            or _moves(f"{project}/.env")
            or _moves(f"{project}/sub")
        ),
        "settings of the installation": lambda: _changes(f"{project}/everstep.toml"),
        "definitions of agents": lambda: (
            any(
                _succeeds(lambda path=path: _writes(f"{project}/{path}"))
                for path in (".everstep/agents/x.md", ".claude/agents/x.md")
            )
            or any(
                _moves(f"{project}/{name}") or _succeeds(lambda name=name: os.mkdir(f"{empty}/{name}/agents"))
                for name in (".everstep", ".claude")
            )
        ),
        "code that git runs": lambda: (
            _moves(f"{project}/.git")
            or any(_changes(f"{project}/.git/{name}") for name in ("config", "config.worktree", "commondir"))
            or any(
                _succeeds(lambda p=p: _writes(f"{project}/.git/{p}")) for p in ("hooks/x", "info/attributes")
            )
        ),
    }


def _changes(path: str) -> bool:
    return _succeeds(lambda: _writes(path)) or _moves(path) or _succeeds(lambda: os.unlink(path))


def _moves(path: str) -> bool:
    return _succeeds(lambda: os.rename(path, f"{path}.moved"))


def _without_limit(kind: int) -> bool:
    return resource.getrlimit(kind)[1] == resource.RLIM_INFINITY


def _denies_typing() -> bool:
    """Whether typing is refused even on a terminal that the process owns."""
    leader, follower = os.openpty()
    try:
        return not _call_succeeds("ioctl", follower, ctypes.c_ulong(0x5412), b"x") and ctypes.get_errno() == 1
    finally:
        os.close(leader)
        os.close(follower)


if __name__ == "__main__":
    print(json.dumps([name for name, works in build_attacks(json.loads(sys.argv[1])).items() if works()]))  # noqa: T201
