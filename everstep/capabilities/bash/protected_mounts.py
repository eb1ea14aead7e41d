"""Mounts that protect parts of the directories that a command can write to.

The rules are in `everstep.capabilities.protection`; this module makes mounts of them. A mount cannot be
renamed or removed, but the directories above it can. So those are mounted on themselves, up to the directory
that the policy names. Placeholders occupy protected names that do not exist while the command runs.
"""

import os
import stat
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import Enum, auto
from functools import partial
from typing import Final

from everstep.agent_domain.capabilities.bash import ExecutionPolicy
from everstep.capabilities.bash import aftermath
from everstep.capabilities.bash.places import replaced_text
from everstep.capabilities.bash.words import Unusable
from everstep.capabilities.protection import Protection, placeholders, repositories, tree
from everstep.capabilities.protection.placeholders import Placeholder, is_placeholder
from everstep.capabilities.protection.rules import GIT, READ_ONLY_NAMES, holds_data, innermost, lies_in

MAX_MOUNTS: Final = 2_000


class MountKind(Enum):
    """The way in which a path is mounted."""

    WRITABLE = auto()
    PIN = auto()
    """Mounted on itself with the same rights, so that it cannot be renamed."""
    READ_ONLY = auto()
    HIDDEN = auto()
    EMPTY = auto()
    """An empty directory, read-only."""
    TEXT = auto()
    """A file without effect, read-only."""


@dataclass(frozen=True, slots=True)
class Mount:
    """One mount of the sandbox."""

    path: str
    kind: MountKind
    source: str
    is_directory: bool = True
    text: str = ""

    def words(self, descriptor: Callable[[bytes], int]) -> list[str]:
        """The arguments for bubblewrap."""
        match self.kind:
            case MountKind.WRITABLE | MountKind.PIN:
                return ["--bind", self.source, self.path]
            case MountKind.READ_ONLY:
                return ["--ro-bind", self.source, self.path]
            case MountKind.TEXT:
                content = descriptor(self.text.encode())
                return ["--perms", "0444", "--ro-bind-data", str(content), self.path]
            case MountKind.HIDDEN | MountKind.EMPTY:
                mode = "0555" if self.kind is MountKind.EMPTY else "0000"
                if not self.is_directory:
                    return ["--perms", mode, "--ro-bind-data", str(descriptor(b"")), self.path]
                return ["--perms", mode, "--tmpfs", self.path, "--remount-ro", self.path]


@dataclass(slots=True)
class Guard:
    """The mounts of one command, and the placeholders that it needs until it has ended."""

    kinds: dict[str, MountKind]
    checked_files: dict[str, os.stat_result]
    placeholders: dict[str, Placeholder] = field(default_factory=dict[str, Placeholder])
    unclaimed: list[str] = field(default_factory=list[str])
    """Protected names that do not exist and have no placeholder."""
    repositories: set[str] = field(default_factory=set[str])
    """The git directories that existed before the command."""
    known_paths: set[str] = field(default_factory=set[str])
    """Settings that existed before the command, and folders that could not be read."""
    writable: tuple[str, ...] = ()
    is_large: bool = False
    """Whether scanning takes long."""

    def mounts(self, sources: Mapping[str, str]) -> list[Mount]:
        """All mounts, each after the mounts that contain it.

        Args:
            sources: Where the policy's own paths are found.
        """
        return [
            Mount(path, kind, _source(path, sources), not self._is_file(path), self._text(path))
            for path, kind in sorted(self.kinds.items(), key=_in_order)
        ]

    def _is_file(self, path: str) -> bool:
        return path in self.checked_files and not stat.S_ISDIR(self.checked_files[path].st_mode)

    def _text(self, path: str) -> str:
        placeholder = self.placeholders.get(path)
        return (placeholder and placeholder.text) or ""

    def replaced_in(self, root: str) -> str | None:
        """An error text if a path under the sandbox's root is not the file that was checked, or None."""
        for path, checked in self.checked_files.items():
            try:
                mounted = os.lstat(f"{root}{path}")
            except OSError:
                return replaced_text(path)
            covered = self.kinds[path] in {MountKind.HIDDEN, MountKind.EMPTY, MountKind.TEXT}
            if (mounted.st_dev == checked.st_dev) if covered else not os.path.samestat(mounted, checked):
                return replaced_text(path)
        return None

    def disarm_leftovers(self, protection: Protection) -> list[str]:
        """Disable files that the command was not allowed to make, once it has ended.

        Returns:
            Sentences for the command's output.
        """
        sentences = [*aftermath.rename_forbidden(self.unclaimed)]
        for root in _outermost(self.writable):
            # Without a limit on folders: the limit on files bounds the folders that a command makes.
            look = partial(tree.scan, root, protection, sys.maxsize, closed=self.known_paths)
            new_paths = {path for path in {*look().settings} - self.known_paths if not is_placeholder(path)}
            sentences += aftermath.rename_forbidden(sorted(new_paths))
            sentences += aftermath.disarm(look().repositories, self.repositories, self.writable)
        return sentences

    def release(self) -> None:
        """Remove the placeholders; the command has ended."""
        while self.placeholders:
            _, placeholder = self.placeholders.popitem()
            placeholder.release()


def _source(path: str, sources: Mapping[str, str]) -> str:
    root = innermost(path, sources)
    return path if root is None else f"{sources[root]}{path[len(root.rstrip('/')) :]}"


def _in_order(entry: tuple[str, MountKind]) -> list[str]:
    return entry[0].split("/")


def build_guard(policy: ExecutionPolicy, protection: Protection, at_most: int = tree.MAX_FOLDERS) -> Guard:
    """Scan the policy's directories and plan the mounts. The policy's paths have to be real paths.

    Raises:
        Unusable: A path of the policy is closed to agents, or cannot be protected.
        TooLarge: A directory of the policy has more than `at_most` directories in it.
    """
    building = _GuardBuilder(policy, protection)
    try:
        building.build(at_most)
    except BaseException:
        building.guard.release()
        raise
    return building.guard


def _outermost(paths: Iterable[str]) -> list[str]:
    distinct = list(dict.fromkeys(paths))
    return [path for path in distinct if innermost(path, (each for each in distinct if each != path)) is None]


class _GuardBuilder:
    def __init__(self, policy: ExecutionPolicy, protection: Protection) -> None:
        self.policy = policy
        self.protection = protection
        self.writable = [policy.base_dir, *policy.writable_paths]
        self.roots = dict.fromkeys(policy.readable_paths, MountKind.READ_ONLY)
        self.roots |= dict.fromkeys(self.writable, MountKind.WRITABLE)
        self.closed = set[str]()
        self.guard = Guard(dict(self.roots), {}, writable=tuple(self.writable))

    def build(self, at_most: int) -> None:
        for root in self.roots:
            if self.protection.hides(root) or holds_data(root):
                raise Unusable(
                    f"{root} holds the data of an installation; name a directory for the work alone"
                )
        for path in self.protection.unresolved:
            self._require_no_link(path)
        for path in self.protection.hidden:
            self._put(path, MountKind.HIDDEN)
        for path in self.protection.read_only:
            self._put(path, MountKind.READ_ONLY)
        for root in _outermost(self.writable):
            self._scan(root, at_most)
        for folder in self._start_folders():
            self._keep_names(folder)
        self._pin()
        if len(self.guard.kinds) > MAX_MOUNTS:
            raise Unusable(
                f"{self.policy.base_dir} holds more than {MAX_MOUNTS} files and folders to protect; "
                "name a directory that holds nothing but the work"
            )

    def _scan(self, root: str, at_most: int) -> None:
        result = tree.scan(root, self.protection, at_most)
        for path in result.hidden:
            self._put(path, MountKind.HIDDEN)
        for path in result.read_only:
            self._put(path, MountKind.HIDDEN if holds_data(path) else MountKind.READ_ONLY)
        self.guard.repositories.update(filter(repositories.is_git_directory, result.repositories))
        self.guard.known_paths.update(result.settings, result.closed)
        self.guard.is_large |= result.folders > tree.FEW_FOLDERS
        for path in result.repositories:
            self._close_repository(path)
        self._close_targets(repositories.paths_referenced_from(root))

    def _close_repository(self, folder: str) -> None:
        """Protect all of it, or only the parts that run code if the policy lets the rest be written."""
        if self._root_of(folder) is None or folder in self.closed:
            return
        self.closed.add(folder)
        self._close_repository(repositories.common_directory(folder))
        self._close_targets(repositories.referenced_paths(folder))
        if not self.policy.git and folder not in self.writable:
            self._put(folder, MountKind.READ_ONLY)
            return
        try:
            parts = repositories.parts_of(folder)
        except OSError as error:
            if folder in self.writable:
                raise Unusable(f"{folder} is a git directory that cannot be protected: {error}") from None
            self._put(folder, MountKind.READ_ONLY)
            return
        self._put(folder, MountKind.WRITABLE)
        for path in parts.read_only:
            self._put(path, MountKind.READ_ONLY)
        for path in parts.missing_folders:
            self._occupy(path, MountKind.EMPTY)
        for path, text in parts.missing_files.items():
            self._occupy(path, MountKind.TEXT, text)
        for inner in parts.nested:
            self._close_repository(inner)

    def _close_targets(self, leads: Iterable[repositories.ReferencedPath]) -> None:
        """Protect the files that git would follow; a missing hooks folder must not be created."""
        for led in leads:
            if os.path.lexists(led.path):
                self._put(led.path, MountKind.READ_ONLY)
                continue
            missing = led.path
            while not os.path.lexists(above := os.path.dirname(missing)):
                missing = above
            if not os.path.isdir(above):
                continue
            if led.is_file and missing == led.path:
                self._occupy(missing, MountKind.TEXT, repositories.NOTHING)
            else:
                self._occupy(missing, MountKind.EMPTY)

    def _start_folders(self) -> Iterator[str]:
        """The folders in which an installation may be started later, or git may run."""
        yield from dict.fromkeys(self.writable)
        start = self.protection.start_folder
        if start and start not in self.writable and self._root_of(start) in self.writable:
            yield start

    def _keep_names(self, folder: str) -> None:
        if not os.path.isdir(folder):
            return
        for name in self._names(folder):
            path = f"{folder}/{name}"
            self._require_no_link(path)
            if not is_placeholder(path) and os.path.lexists(path):
                continue
            if name.startswith(".") or folder == self.protection.start_folder:
                self._occupy(path, MountKind.EMPTY)
            else:
                # A listing of a directory for work alone shows no placeholders.
                self.guard.unclaimed.append(path)
        for path in self.protection.read_only:
            if not os.path.lexists(path) and os.path.isdir(os.path.dirname(path)):
                self._occupy(path, MountKind.EMPTY)

    def _names(self, folder: str) -> Iterator[str]:
        yield from READ_ONLY_NAMES
        # An agent may be asked to make a repository if there is none.
        if not repositories.is_git_directory(folder) and not (
            self.policy.git and not _has_repository(folder)
        ):
            yield GIT

    def _require_no_link(self, path: str) -> None:
        """Refuse links: a mount protects the target of a link, not the link."""
        root = innermost(path, self.writable)
        while root is not None and path not in self.roots and lies_in(path, root):
            if os.path.islink(path):
                raise Unusable(
                    f"{path} is a link, which a command could replace; put there what it leads to, or name a "
                    "directory that holds nothing but the work"
                )
            path = os.path.dirname(path)

    def _occupy(self, path: str, kind: MountKind, text: str | None = None) -> None:
        if self._root_of(path) not in self.writable or self.guard.kinds.get(path) in {
            MountKind.EMPTY,
            MountKind.TEXT,
        }:
            return
        self.guard.kinds.pop(path, None)
        placeholder = placeholders.occupy(path, text)
        if placeholder is not None:
            self.guard.placeholders[path] = placeholder
            self._put(path, kind)
        elif os.path.lexists(path):
            self._put(path, MountKind.READ_ONLY)

    def _root_of(self, path: str) -> str | None:
        return innermost(path, self.roots)

    def _put(self, path: str, kind: MountKind) -> None:
        """Record the mount of an existing path; the policy's own paths are not changed."""
        root = self._root_of(path)
        if root is None or path in self.roots or self.guard.kinds.get(path) is MountKind.HIDDEN:
            return
        if kind is not MountKind.HIDDEN and self.roots[root] is MountKind.READ_ONLY:
            return
        try:
            self.guard.checked_files[path] = os.lstat(path)
        except OSError:
            return
        self.guard.kinds[path] = kind

    def _pin(self) -> None:
        """Mount the directories above on themselves, and drop mounts inside a path that is closed already."""
        kinds = self.guard.kinds
        for path in [*kinds]:
            root = self._root_of(path)
            above = os.path.dirname(path)
            while root is not None and lies_in(above, root) and above != root:
                if above not in kinds:
                    self._put(above, MountKind.PIN)
                above = os.path.dirname(above)
        closed = dict[str, MountKind]()
        for path, kind in sorted(kinds.items(), key=_in_order):
            outer = innermost(path, closed)
            outer_kind = None if outer is None else closed[outer]
            if path not in self.roots and _is_needless(kind, outer_kind):
                del kinds[path]
                self.guard.checked_files.pop(path, None)
            else:
                closed[path] = kind


def _has_repository(folder: str) -> bool:
    """Whether git finds a repository from this folder."""
    above = [folder]
    while above[-1] != os.path.dirname(above[-1]):
        above.append(os.path.dirname(above[-1]))
    return any(os.path.lexists(f"{each}/{GIT}") and not is_placeholder(f"{each}/{GIT}") for each in above)


def _is_needless(kind: MountKind, outer: MountKind | None) -> bool:
    if outer in {MountKind.HIDDEN, MountKind.EMPTY}:
        return True
    return outer is MountKind.READ_ONLY and kind not in {MountKind.HIDDEN, MountKind.WRITABLE}
