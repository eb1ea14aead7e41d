"""Walks directory trees: breadth first, one descriptor at a time, never through a symlink."""

import os
import stat
import time
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Final

from everstep.agent_domain.capabilities import files
from everstep.capabilities.files.enclosure import DIRECTORY, PATH_ONLY, Enclosure, PathProblem, closing

MAX_SEEN: Final = 100_000
"""Maximum entries for a search or a listing."""

MAX_SECONDS: Final = 10.0
"""Hostile patterns on hostile trees take long."""

MAX_LINKS_SEEN: Final = 1_000
"""How many links of a directory are resolved; the others are listed as files."""


@dataclass(slots=True)
class Search:
    """A search, its hits, and what could not be searched."""

    enclosure: Enclosure
    patterns: Sequence[str]
    hits: list[str] = field(default_factory=list[str])
    seen: int = 0
    unread: int = 0
    was_cut: bool = False

    def run(self) -> None:
        """Search every directory that the patterns may match, the nearest first."""
        fits = [files.matcher(pattern) for pattern in self.patterns]
        leads_on = [files.directory_matcher(pattern) for pattern in self.patterns]
        ends = time.monotonic() + MAX_SECONDS
        pending = deque([""])
        while pending and not self.was_cut:
            for path, kind in self._entries(pending.popleft()):
                if self.seen >= MAX_SEEN or time.monotonic() > ends:
                    self.was_cut = True
                    return
                self.seen += 1
                if stat.S_ISDIR(kind):
                    if any(leads(path) for leads in leads_on):
                        pending.append(path)
                elif any(fit(path) for fit in fits) and self._is_file(path, kind):
                    self.hits.append(path)

    def _entries(self, directory: str) -> Iterator[tuple[str, int]]:
        """The entries of a directory with their modes, sorted by name."""
        try:
            with closing(self.enclosure.open_path(directory, DIRECTORY | os.O_NOFOLLOW)) as opened:
                entries = some_entries(opened)
        except (OSError, PathProblem):
            if not directory:
                raise
            self.unread += 1
            return
        for name, kind in sorted(entries):
            yield (f"{directory}/{name}" if directory else name), kind

    def _is_file(self, path: str, kind: int) -> bool:
        """A link counts if it leads to a file inside."""
        if not stat.S_ISLNK(kind):
            return stat.S_ISREG(kind)
        return stat.S_ISREG(link_target_mode(self.enclosure, path))

    @property
    def notes(self) -> list[str]:
        """Notes for the model about an incomplete search."""
        cut = [files.search_cut_short(self.seen)] if self.was_cut else []
        return [*cut, *([files.unread_directories(self.unread)] if self.unread else [])]


def some_entries(directory: int) -> list[tuple[str, int]]:
    """The names in a directory with their types, sorted; one over the limit shows that there are more."""
    with os.scandir(directory) as entries:
        return sorted((entry.name, _kind(entry)) for entry in islice(entries, MAX_SEEN + 1))


def _kind(entry: os.DirEntry[str]) -> int:
    """The file type bits of the mode, as far as they are used here."""
    if entry.is_symlink():
        return stat.S_IFLNK
    if entry.is_dir(follow_symlinks=False):
        return stat.S_IFDIR
    return stat.S_IFREG if entry.is_file(follow_symlinks=False) else 0


def link_target_mode(enclosure: Enclosure, path: str) -> int:
    """The mode of a link's target; 0 if it does not exist or is outside."""
    try:
        with closing(enclosure.open_path(path, PATH_ONLY)) as opened:
            return os.fstat(opened).st_mode
    except (OSError, PathProblem):
        return 0


def list_directory(enclosure: Enclosure, path: str) -> tuple[list[tuple[str, bool]], bool]:
    """The entries of a directory, whether each is a directory, and whether there are more."""
    with closing(enclosure.open_path(path, DIRECTORY)) as opened:
        raw_entries = some_entries(opened)
    links = [name for name, kind in raw_entries if stat.S_ISLNK(kind)][:MAX_LINKS_SEEN]
    directories = {
        name for name in links if stat.S_ISDIR(link_target_mode(enclosure, os.path.join(path, name)))
    }
    entries = [(name, stat.S_ISDIR(kind) or name in directories) for name, kind in raw_entries]
    return entries[:MAX_SEEN], len(entries) > MAX_SEEN
