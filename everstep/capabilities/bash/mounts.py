"""Mounts for a worker that is root: they make root's directories usable for an unprivileged tool user.

A command never runs as root: limits on processes do not bind root, and root may read root's files. It runs as
the owner of the base directory, or as `TOOL_USER` if root owns the directory. Such a directory is mounted
once more, with root's files appearing as the tool user's (an "idmapped mount"). Files that the command writes
there belong to root outside.

The mounts are in their own mount namespace, made by a thread that ends afterwards. A process that enters the
namespace finds each directory under `STAGE`, so it needs no right to pass the parents (such as /root).
"""

import ctypes
import errno
import os
import subprocess
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterable
from contextlib import ExitStack
from typing import Final, TypeVar

from everstep.capabilities.bash.places import ResolvedPath, replaced_text
from everstep.capabilities.bash.words import Unusable

TOOL_USER: Final = 65533
"""User and group. Distributions reserve this number and assign it to no user; containers have it, too."""

PROGRAMS: Final = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin:/run/current-system/sw/bin"
"""The directories of the machine's own programs."""

STAGE: Final = "/tmp"  # noqa: S108 -- seen in the namespace only, where it is empty and ours
MAX_CACHED: Final = 32
"""How many namespaces are cached for the next command in the same directories."""

T = TypeVar("T")

_NEW_MOUNTS, _OWN_ROOT = 0x00020000, 0x00000200  # CLONE_NEWNS, CLONE_FS
_SLAVE, _RECURSIVE = 1 << 19, 1 << 14
_NO_SETUID, _NO_DEVICES, _NO_PROGRAMS = 2, 4, 8
_AT_HERE, _AT_RECURSIVE, _AT_EMPTY = -100, 0x8000, 0x1000
_CLONE_TREE, _CLOSE_ON_EXEC = 1, 0o2000000
_MOVE_FROM_DESCRIPTOR = 4
_ATTRIBUTE_MAPPED = 0x00100000
# The same numbers on every architecture.
_OPEN_TREE, _MOVE_MOUNT, _MOUNT_SETATTR = 428, 429, 442


class Mounts:
    """A mount namespace; it lasts as long as this object."""

    def __init__(self, descriptor: int, sources: dict[str, str]) -> None:
        self.descriptor = descriptor
        self.sources = sources
        """The place of each path in the namespace."""

    def __del__(self) -> None:
        os.close(self.descriptor)

    @property
    def path(self) -> str:
        """The path by which other processes of this user reach it without a passed descriptor."""
        return f"/proc/{os.getpid()}/fd/{self.descriptor}"


_CACHE: "OrderedDict[tuple[int, int, tuple[ResolvedPath, ...]], Mounts]" = OrderedDict()
_LOCK = threading.Lock()


def find_mounts(user: int, group: int, places: Iterable[ResolvedPath]) -> Mounts:
    """The namespace that holds these directories for the user, cached or new."""
    key = (user, group, tuple(places))
    with _LOCK:
        if key not in _CACHE:
            _CACHE[key] = _in_thread(lambda: _make_mounts(*key))
        _CACHE.move_to_end(key)
        while len(_CACHE) > MAX_CACHED:
            _CACHE.popitem(last=False)
        return _CACHE[key]


def forget(folder: str) -> None:
    """Drop cached namespaces with paths in a folder; running commands keep theirs."""
    with _LOCK:
        for key in [key for key in _CACHE if any(each.path.startswith(f"{folder}/") for each in key[2])]:
            del _CACHE[key]


def _in_thread(work: Callable[[], T]) -> T:
    """Run in a new thread: the work changes the thread's view of the file system, so it is not used again."""
    results, errors = list[T](), list[BaseException]()

    def run() -> None:
        try:
            results.append(work())
        except BaseException as error:  # noqa: BLE001 -- raised again below
            errors.append(error)

    thread = threading.Thread(target=run, name="everstep mounts")
    thread.start()
    thread.join()
    for error in errors:
        raise error
    return results[0]


def _make_mounts(user: int, group: int, places: tuple[ResolvedPath, ...]) -> Mounts:
    with ExitStack() as opened:
        mapping = _mapping(user, group) if any(each.of_root for each in places) else None
        if mapping is not None:
            opened.callback(os.close, mapping)
        _call("unshare", _NEW_MOUNTS | _OWN_ROOT)
        # Mounts propagate from the outside into the namespace, and not the other way around.
        _call("mount", None, b"/", None, _SLAVE | _RECURSIVE, None)
        trees = [_tree(each, user, mapping, opened) for each in places]
        _call(
            "mount", b"tmpfs", STAGE.encode(), b"tmpfs", _NO_SETUID | _NO_DEVICES | _NO_PROGRAMS, b"mode=755"
        )
        sources = {each.path: f"{STAGE}/{place}" for place, each in enumerate(places)}
        for each, tree in zip(places, trees, strict=True):
            _attach(tree, each, sources[each.path])
        return Mounts(os.open("/proc/thread-self/ns/mnt", os.O_RDONLY | os.O_CLOEXEC), sources)


def _tree(place: ResolvedPath, user: int, mapping: int | None, opened: ExitStack) -> int:
    """A detached copy of the mount."""
    path = place.path.encode()
    tree = _call("syscall", _OPEN_TREE, _AT_HERE, path, _CLONE_TREE | _CLOSE_ON_EXEC | _AT_RECURSIVE)
    opened.callback(os.close, tree)
    if not place.is_same_file(os.fstat(tree)):
        raise Unusable(replaced_text(place.path))
    _set(tree, _NO_SETUID | _NO_DEVICES)
    if place.of_root and mapping is not None:
        try:
            _set(tree, _ATTRIBUTE_MAPPED, mapping)
        except OSError as error:
            if place.writable or error.errno not in {errno.EINVAL, errno.EPERM, errno.EBUSY}:
                raise Unusable(_root_owned_text(place.path, user)) from error
    return tree


def _set(tree: int, attributes: int, mapping: int = 0) -> None:
    class Attributes(ctypes.Structure):
        _fields_ = [(name, ctypes.c_uint64) for name in ("set", "clear", "propagation", "mapping")]

    values = Attributes(attributes, 0, 0, mapping)
    flags = _AT_EMPTY | _AT_RECURSIVE
    _call("syscall", _MOUNT_SETATTR, tree, b"", flags, ctypes.byref(values), ctypes.sizeof(values))


def _attach(tree: int, place: ResolvedPath, target: str) -> None:
    if place.is_directory:
        os.mkdir(target)
    else:
        os.close(os.open(target, os.O_CREAT | os.O_WRONLY, 0o644))
    _call("syscall", _MOVE_MOUNT, tree, b"", _AT_HERE, target.encode(), _MOVE_FROM_DESCRIPTOR)


def _mapping(user: int, group: int) -> int:
    """A user namespace in which root is the tool user; it outlives the process that it is made with."""
    process = subprocess.Popen(
        ["unshare", "--user", "cat"],  # noqa: S607 -- of util-linux, which belongs to every system
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        bufsize=0,
        # Not the worker's PATH: an agent may have put a program into one of its folders.
        env={"PATH": PROGRAMS},
    )
    with process:
        assert process.stdin is not None  # noqa: S101 -- for type checkers
        assert process.stdout is not None  # noqa: S101
        process.stdin.write(b"\n")
        # Once it answers, it is in its namespace.
        if process.stdout.read(1) != b"\n":
            raise OSError(errno.EPERM, "no user namespace can be made")
        for name, number in (("uid_map", user), ("gid_map", group)):
            with open(f"/proc/{process.pid}/{name}", "w", encoding="ascii") as file:
                file.write(f"0 {number} 1")
        return os.open(f"/proc/{process.pid}/ns/user", os.O_RDONLY | os.O_CLOEXEC)


def _root_owned_text(path: str, user: int) -> str:
    return (
        f"{path} belongs to root, and its file system cannot be mounted for another user; "
        f"give it to the tool user (chown -R {user}:{user} {path}), or let the worker not run as root"
    )


_LIBC = ctypes.CDLL(None, use_errno=True)


def _call(name: str, *arguments: object) -> int:
    wide = (ctypes.c_long(each) if isinstance(each, int) else each for each in arguments)
    result = getattr(_LIBC, name)(*wide)
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{name}{arguments[:1]}: {os.strerror(number)}")
    return result
