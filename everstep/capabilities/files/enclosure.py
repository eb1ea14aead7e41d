"""Directories, and no way out of them.

A path is text that a model made up. As text it is only compared to find the directory that it is meant for;
then it is opened from the descriptor of that directory, so that no symlink leads out, nor one that is put
there in the same moment. Two ways lead to the same place:

- `openat2`, with which the kernel watches over the whole way, in one call;
- step by step: each part is opened from the descriptor of the one before and never followed; what a symlink
  says is read as text, and walked like a path. This also decides what the kernel refuses to: an absolute link
  may lead back inside. And it goes where there is nothing yet, to make it.
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

LOOK: Final = getattr(os, "O_PATH", os.O_RDONLY | os.O_NONBLOCK)
"""Opens nothing for its content, so no device notices. Without such a flag, at least nothing waits."""

DIRECTORY: Final = os.O_RDONLY | os.O_DIRECTORY

MAX_LINKS: Final = 40
"""What Linux follows on one way."""

MAX_PATH: Final = 4_096
MAX_STEPS: Final = 5_000
"""Parts of paths: twice as many as the longest can have, for what links add."""

_UNDECIDED: Final = frozenset({errno.EXDEV, errno.ELOOP, errno.EAGAIN})
"""A link that leads out or is absolute; a magic one or a circle; something that moved meanwhile."""


class Problem(EverstepError):
    """What the model reads instead of a result."""


@contextmanager
def closing(descriptor: int) -> Generator[int]:
    """The descriptor, closed afterwards."""
    try:
        yield descriptor
    finally:
        os.close(descriptor)


class Enclosure:
    """Directories within which paths are opened; relative ones start in the first."""

    def __init__(
        self, base: PathText, *others: PathText, write: bool = False, is_for_agents: bool = True
    ) -> None:
        self.base = _absolute(base)
        self._is_for_agents = is_for_agents
        self.write = write
        """Whether paths are opened to change what is there."""
        self._given = list(dict.fromkeys([self.base, *(_absolute(other) for other in others)]))
        self.roots = _outermost(self.base, self._given[1:])

    def place(self, path: str) -> tuple[str, str]:
        """The root that a path is meant for, and the way from there; `..` in it is taken as text."""
        target = os.path.normpath(os.path.join(self.base, path))
        problem: str | None = OUTSIDE
        for root in self._spelled():
            problem = path_problem(target, [root])
            if problem is None:
                rest = _bounded(target[len(root.rstrip("/")) :].strip("/") or ".")
                self.require_open(root if rest == "." else os.path.join(root, rest))
                return root, rest
            if problem != OUTSIDE:
                break
        raise Problem(problem)

    def _spelled(self) -> Iterator[str]:
        """The roots as they were given, and as the system calls them where a symlink leads to one."""
        yield from self.roots
        yield from map(os.path.realpath, self.roots)

    def require_open(self, path: str) -> None:
        """Refuse what no agent may touch, like what lies outside; no link may be in the way below a root."""
        if not self._is_for_agents:
            return
        root = max((each for each in self.roots if path_problem(path, [each]) is None), key=len, default="")
        real = os.path.realpath(root) if root else ""
        place = os.path.join(real, path[len(root) :].lstrip("/")).rstrip("/") if root else path
        if current().forbids(place, [os.path.realpath(each) for each in self._given], write=self.write):
            raise Problem(OUTSIDE)

    def opened(self, path: str, flags: int) -> int:
        """Open what a path names; a symlink may lead anywhere inside. The caller closes it."""
        root, rest = self.place(path)
        try:
            with closing(open_root(root)) as directory:
                return self._beneath(directory, rest, path, flags)
        except NotADirectoryError:
            if rest != ".":
                raise
        # A policy may name a single file.
        return os.open(root, flags | os.O_NOFOLLOW | os.O_CLOEXEC)

    def _beneath(self, directory: int, rest: str, path: str, flags: int) -> int:
        if openat2.is_available():
            try:
                return self._let_through(openat2.open_beneath(directory, rest, flags))
            except OSError as error:
                if error.errno not in _UNDECIDED:
                    raise
        with self.located(path) as (parent, name):
            return os.open(name, flags | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=parent)

    def _let_through(self, opened: int) -> int:
        """What was opened, unless links have led to what no agent may touch."""
        try:
            # Where there is no /proc, the way is gone step by step.
            self.require_open(_path_of(opened))
        except BaseException:
            os.close(opened)
            raise
        return opened

    @contextmanager
    def located(self, path: str, *, make: bool = False) -> Generator[tuple[int, str]]:
        """The directory that holds what a path means, and the name there: of no symlink, or of nothing yet.

        With `make`, directories that are missing on the way are made.
        """
        walk = _Walk(self, make=make)
        try:
            yield walk.to(path)
        finally:
            walk.close()

    def require_inside(self, path: str) -> None:
        """Raise the problem of a path that leads out."""
        # Whatever else is wrong is said by what the path is used for.
        with suppress(OSError), self.located(path):
            pass


def _path_of(opened: int) -> str:
    try:
        return os.readlink(f"/proc/self/fd/{opened}")
    except FileNotFoundError:
        raise OSError(errno.EAGAIN, os.strerror(errno.EAGAIN)) from None


def _outermost(base: str, others: list[str]) -> tuple[str, ...]:
    """The roots that lie in no other: commands may replace an inner one by a link out of the outer one."""
    distinct = list(dict.fromkeys([base, *others]))
    return tuple(
        root
        for root in distinct
        if not any(_lies_in(root, other, base) for other in distinct if other != root)
    )


def _lies_in(root: str, other: str, base: str) -> bool:
    if path_problem(root, [other]) is None:
        return True
    # The same behind other names, except for the base: relative paths need it under the name that it has.
    real, outer = os.path.realpath(root), os.path.realpath(other)
    return root != base and real != outer and path_problem(real, [outer]) is None


def _bounded(path: str) -> str:
    """Refuse what the kernel does, so that nobody makes a thousand directories to find out."""
    if len(os.fsencode(path)) >= MAX_PATH:
        raise OSError(errno.ENAMETOOLONG, os.strerror(errno.ENAMETOOLONG))
    return path


def _absolute(directory: object) -> str:
    text = os.fspath(cast("str", directory)) if isinstance(directory, str | os.PathLike) else ""
    if not text or "\x00" in text:
        raise InvalidInput(f"{directory!r} is no directory; pass a path as text or as a Path")
    return os.path.abspath(text)


def open_root(root: str) -> int:
    """Open a directory that the agent's makers named; they may have named it by a symlink."""
    try:
        return os.open(root, LOOK | os.O_DIRECTORY | os.O_CLOEXEC)
    except FileNotFoundError:
        raise Problem(NO_BASE) from None


class _Walk:
    """One way, step by step. `here` is where it has come to: beneath `root`, by `names` that are no links."""

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

    def to(self, path: str) -> tuple[int, str]:
        """Walk until one name is left."""
        here = self._begin(path)
        while self.todo:
            name = self.todo.popleft()
            self._count(steps=1)
            if name == "..":
                here = self._up()
            elif name in {"", "."}:
                continue
            elif (target := _link(name, here)) is not None:
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
        """Start from a root; what was still to do is done afterwards."""
        self.root, rest = self.enclosure.place(path)
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
        """One up, which only a link asks for. Walked anew: what is open may have been moved away."""
        if self.names:
            return self._begin(os.path.join(self.root, *self.names[:-1]))
        # Above a root there may be another one, or the same again, but nothing to look at on the way there.
        rest = "/".join(self.todo)
        self.todo.clear()
        return self._begin(os.path.join(os.path.realpath(self.root), "..", rest))

    def _enter(self, name: str, here: int) -> int:
        flags = LOOK | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
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


def _link(name: str, directory: int) -> str | None:
    """What a symlink says; None for everything else, and for nothing."""
    try:
        return os.readlink(name, dir_fd=directory)
    except FileNotFoundError:
        return None
    except OSError as error:
        if error.errno == errno.EINVAL:
            return None
        raise
