"""Opens paths inside of given directories, with no way out of them.

A path is text that a model made up. The text is only used to find the directory that it belongs to. Then the
path is opened from that directory's descriptor, so that no symlink leads out, not even one that is created in
the same moment. There are two ways:

- `openat2`, with which the kernel checks the whole path in one call;
- step by step: each part is opened from the descriptor of the one before, without following links. The
  target of a symlink is read as text, and resolved like a path. This also handles the paths that the kernel
  refuses, as an absolute link may lead back inside. And it can make directories that do not exist.
"""

import errno
import os
from collections import deque
from collections.abc import Generator, Iterator
from contextlib import contextmanager, suppress
from typing import Final, cast

from everstep.agent_domain.capabilities.bash import PathText
from everstep.agent_domain.capabilities.files import NO_BASE, OUTSIDE, path_problem
from everstep.agent_domain.errors import EverstepError, InvalidInput
from everstep.capabilities.files import openat2, ownership
from everstep.capabilities.protection import current

PATH_ONLY: Final = getattr(os, "O_PATH", os.O_RDONLY | os.O_NONBLOCK)
"""Opens no content, so devices do not notice.

Where this flag is missing, at least the open does not block.
"""

DIRECTORY: Final = os.O_RDONLY | os.O_DIRECTORY

MAX_LINKS: Final = 40
"""Linux's limit for links in one path."""

MAX_PATH: Final = 4_096
MAX_STEPS: Final = 5_000
"""Parts of paths: twice as many as the longest path can have, to allow for links."""

_UNDECIDED: Final = frozenset({errno.EXDEV, errno.ELOOP, errno.EAGAIN})
"""A link that leads out or is absolute; a magic link or a loop; a file that was moved during the call."""


class PathProblem(EverstepError):
    """The error text that the model reads as the result."""


@contextmanager
def closing(descriptor: int) -> Generator[int]:
    """Close the descriptor afterwards."""
    try:
        yield descriptor
    finally:
        os.close(descriptor)


class Enclosure:
    """Directories within which paths are opened; relative paths start in the first.

    Args:
        base: The first directory.
        others: More directories, or single files.
        write: Whether files are opened to be changed.
        is_for_agents: Whether the protection rules apply.
    """

    def __init__(
        self, base: PathText, *others: PathText, write: bool = False, is_for_agents: bool = True
    ) -> None:
        self.base = _absolute(base)
        self._is_for_agents = is_for_agents
        self.write = write
        """Whether paths are opened to change the files."""
        self._given = list(dict.fromkeys([self.base, *(_absolute(other) for other in others)]))
        self.roots = _outermost(self.base, self._given[1:])

    def split_path(self, path: str) -> tuple[str, str]:
        """Find the root of a path, and the rest of the path; `..` in it is resolved as text."""
        target = os.path.normpath(os.path.join(self.base, path))
        problem: str | None = OUTSIDE
        for root in self._root_names():
            problem = path_problem(target, [root])
            if problem is None:
                rest = _check_length(target[len(root.rstrip("/")) :].strip("/") or ".")
                self.require_open(root if rest == "." else os.path.join(root, rest))
                return root, rest
            if problem != OUTSIDE:
                break
        raise PathProblem(problem)

    def _root_names(self) -> Iterator[str]:
        """The roots as given, then as real paths."""
        yield from self.roots
        yield from map(os.path.realpath, self.roots)

    def require_open(self, path: str) -> None:
        """Refuse a path that no agent may touch, as if it were outside; it has no links below a root."""
        if not self._is_for_agents:
            return
        root = max((each for each in self.roots if path_problem(path, [each]) is None), key=len, default="")
        real = os.path.realpath(root) if root else ""
        place = os.path.join(real, path[len(root) :].lstrip("/")).rstrip("/") if root else path
        if current().forbids(place, [os.path.realpath(each) for each in self._given], write=self.write):
            raise PathProblem(OUTSIDE)

    def open_path(self, path: str, flags: int) -> int:
        """Open a path; a symlink may lead anywhere inside. The caller closes the descriptor."""
        root, rest = self.split_path(path)
        try:
            with closing(open_root(root)) as directory:
                return self._open_beneath(directory, rest, path, flags)
        except NotADirectoryError:
            if rest != ".":
                raise
        # A policy may name a single file.
        return os.open(root, flags | os.O_NOFOLLOW | os.O_CLOEXEC)

    def _open_beneath(self, directory: int, rest: str, path: str, flags: int) -> int:
        if openat2.is_available():
            try:
                return self._check_access(openat2.open_beneath(directory, rest, flags))
            except OSError as error:
                if error.errno not in _UNDECIDED:
                    raise
        with self.open_parent(path) as (parent, name):
            return os.open(name, flags | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=parent)

    def _check_access(self, opened: int) -> int:
        """Return the descriptor, unless links led to a path that no agent may touch."""
        try:
            # Without /proc this raises EAGAIN, and the path is resolved step by step.
            self.require_open(_path_of(opened))
        except BaseException:
            os.close(opened)
            raise
        return opened

    @contextmanager
    def open_parent(self, path: str, *, make: bool = False) -> Generator[tuple[int, str]]:
        """Open the directory that holds a path's target; yield it and the name in it, which is no symlink.

        The name may not exist. With `make`, missing directories on the way are made.
        """
        walk = _Walk(self, make=make)
        try:
            yield walk.walk_to(path)
        finally:
            walk.close()

    def require_inside(self, path: str) -> None:
        """Raise the problem of a path that leads out."""
        # Other errors are reported where the path is used.
        with suppress(OSError), self.open_parent(path):
            pass


def _path_of(opened: int) -> str:
    try:
        return os.readlink(f"/proc/self/fd/{opened}")
    except FileNotFoundError:
        raise OSError(errno.EAGAIN, os.strerror(errno.EAGAIN)) from None


def _outermost(base: str, others: list[str]) -> tuple[str, ...]:
    """The roots outside of all other roots: commands may replace an inner one by a link out of the outer."""
    distinct = list(dict.fromkeys([base, *others]))
    return tuple(
        root
        for root in distinct
        if not any(_lies_in(root, other, base) for other in distinct if other != root)
    )


def _lies_in(root: str, other: str, base: str) -> bool:
    if path_problem(root, [other]) is None:
        return True
    # Compare real paths too, except for the base: relative paths need it under its given name.
    real, outer = os.path.realpath(root), os.path.realpath(other)
    return root != base and real != outer and path_problem(real, [outer]) is None


def _check_length(path: str) -> str:
    """Apply the kernel's length limit first, or a thousand directories might be made before it applies."""
    if len(os.fsencode(path)) >= MAX_PATH:
        raise OSError(errno.ENAMETOOLONG, os.strerror(errno.ENAMETOOLONG))
    return path


def _absolute(directory: object) -> str:
    text = os.fspath(cast("str", directory)) if isinstance(directory, str | os.PathLike) else ""
    if not text or "\x00" in text:
        raise InvalidInput(f"{directory!r} is not a directory; pass a path as text or as a Path")
    return os.path.abspath(text)


def open_root(root: str) -> int:
    """Open a root directory, which may be given as a symlink."""
    try:
        return os.open(root, PATH_ONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except FileNotFoundError:
        raise PathProblem(NO_BASE) from None


class _Walk:
    """Resolves one path step by step.

    `here` is the directory reached so far: `names`, without links, below `root`.
    """

    def __init__(self, enclosure: Enclosure, *, make: bool) -> None:
        self.enclosure, self.make = enclosure, make
        self.root, self.names = "", list[str]()
        self.here: int | None = None
        self.todo = deque[str]()
        self.links = self.steps = 0

    def close(self) -> None:
        if self.here is not None:
            os.close(self.here)
            self.here = None

    def walk_to(self, path: str) -> tuple[int, str]:
        """Resolve until one name is left."""
        here = self._begin(path)
        while self.todo:
            name = self.todo.popleft()
            self._count(steps=1)
            if name == "..":
                here = self._up()
            elif name in {"", "."}:
                continue
            elif (target := _link_target(name, here)) is not None:
                here = self._follow(target, here)
            elif self.todo:
                here = self._enter(name, here)
            else:
                self._require_open(name)
                return here, name
        self._require_open()
        return here, "."

    def _require_open(self, *names: str) -> None:
        self.enclosure.require_open(os.path.join(self.root, *self.names, *names))

    def _count(self, *, steps: int = 0, links: int = 0) -> None:
        self.steps += steps
        self.links += links
        if self.steps > MAX_STEPS or self.links > MAX_LINKS:
            raise OSError(errno.ELOOP, os.strerror(errno.ELOOP))

    def _begin(self, path: str) -> int:
        """Continue from a root with a path; parts that are left are resolved after it."""
        self.root, rest = self.enclosure.split_path(path)
        self.names = []
        self.todo.extendleft(reversed(rest.split("/")))
        return self._at(open_root(self.root))

    def _at(self, opened: int) -> int:
        self.close()
        self.here = opened
        return opened

    def _follow(self, target: str, here: int) -> int:
        self._count(links=1)
        if target.startswith("/"):
            return self._begin(target)
        self.todo.extendleft(reversed(target.split("/")))
        return here

    def _up(self) -> int:
        """Go to the parent, which only a link can ask for.

        The path is resolved again, as the open directory may have been moved.
        """
        if self.names:
            return self._begin(os.path.join(self.root, *self.names[:-1]))
        # Above a root there may be another root, or the same one again; there is nothing to open in between.
        rest = "/".join(self.todo)
        self.todo.clear()
        return self._begin(os.path.join(os.path.realpath(self.root), "..", rest))

    def _enter(self, name: str, here: int) -> int:
        flags = PATH_ONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
        try:
            opened = os.open(name, flags, dir_fd=here)
        except FileNotFoundError:
            if not self.make:
                raise
            self._require_open(name)
            ownership.make_directory(name, here)
            opened = os.open(name, flags, dir_fd=here)
        self.names.append(name)
        return self._at(opened)


def _link_target(name: str, directory: int) -> str | None:
    """The target of a symlink; None for other files, and for missing ones."""
    try:
        return os.readlink(name, dir_fd=directory)
    except FileNotFoundError:
        return None
    except OSError as error:
        if error.errno == errno.EINVAL:
            return None
        raise
