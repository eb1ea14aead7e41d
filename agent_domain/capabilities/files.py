"""Reading, writing, editing and finding files: the rules on text, and what the model reads.

Nothing here opens anything. `path_problem` compares paths as text and is a first line only:
a symlink is invisible to it. Confinement itself is done elsewhere, with directory file
descriptors. Every problem is an error text.
"""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from itertools import islice
from posixpath import basename, join, normpath
from typing import TypeAlias, cast

from agent_domain.errors import InvalidInput
from agent_domain.values import cut, valid_text

# --- Paths ---

OUTSIDE = "Error: Path is outside the allowed directory"
NUL_IN_PATH = "Error: Path contains a NUL character"


def path_problem(path: str, allowed: Sequence[str]) -> str | None:
    """Return the error text if the path leads out of all allowed directories; the first is the base."""
    if "\x00" in path:
        return NUL_IN_PATH
    target = normpath(join(allowed[0], path))
    return None if any(_within(target, normpath(root)) for root in allowed) else OUTSIDE


def _within(path: str, root: str) -> bool:
    return path == root or path.startswith(root.rstrip("/") + "/")


def displayable(name: str) -> str:
    """Return a file name that can be stored; bytes of it that are no UTF-8 become U+FFFD."""
    return name.encode(errors="surrogateescape").decode(errors="replace")


# --- Reading ---

MAX_LINES = 2000
MAX_LINE_CHARS = 2000
EMPTY_FILE = "(empty file)"
PAST_THE_END = "Error: The file ends before this offset"
BINARY = "Error: This file is binary, only text can be read"


def no_file(path: str) -> str:
    """Say that there is no such file."""
    return f"Error: No file at '{path}'"


def is_a_directory(path: str) -> str:
    """Say that a directory was named where a file was expected."""
    return f"Error: '{path}' names a directory, list_dir shows what is in it"


def text_of(content: bytes) -> str | None:
    """Decode a text file; None if it is binary: no UTF-8, or with a NUL."""
    try:
        text = content.decode()
    except UnicodeDecodeError:
        return None
    return None if "\x00" in text else text


def numbered(text: str, offset: int = 0, limit: int = MAX_LINES) -> str:
    """Return a part of a file as numbered lines; a limit ≤ 0 means as many as possible."""
    if not text:
        return EMPTY_FILE
    start = max(offset, 0)
    size = min(limit, MAX_LINES) if limit > 0 else MAX_LINES
    lines = text.removesuffix("\n").split("\n")[start : start + size]
    shown = (f"{number:>6}\t{cut(line, MAX_LINE_CHARS)}" for number, line in enumerate(lines, start + 1))
    return "\n".join(shown) or PAST_THE_END


# --- Writing and editing ---

NOTHING_TO_CHANGE = "Error: new_string equals old_string, so nothing would change"
NOTHING_TO_REPLACE = "Error: old_string must hold the text to replace"
NOT_FOUND = "Error: The file does not contain old_string"


def wrote(path: str, content: str) -> str:
    """Say what was written."""
    lines = content.count("\n") + 1
    return f"Wrote {path}: {len(content.encode())} bytes, {lines} lines"


def reading_failed(detail: str) -> str:
    """Say why a file could not be edited."""
    return f"Error: Reading the file failed: {detail}"


@dataclass(frozen=True, slots=True)
class Edit:
    """The whole new text of a file, and how often the old string was replaced."""

    text: str
    replacements: int

    def summary(self, path: str) -> str:
        """Say what was edited."""
        return f"Edited {path}: {self.replacements} replacement(s)"


def edit_problem(old: str, new: str) -> str | None:
    """Return the error text for an edit that makes no sense in any file; checked before reading it."""
    if old == new:
        return NOTHING_TO_CHANGE
    return None if old else NOTHING_TO_REPLACE


def edited(text: str, old: str, new: str, replace_all: bool = False) -> Edit | str:
    """Replace the old string, or return the error text; hits do not overlap."""
    if problem := edit_problem(old, new):
        return problem
    hits = text.count(old)
    if not hits:
        return NOT_FOUND
    if hits > 1 and not replace_all:
        return _ambiguous(hits)
    return Edit(text.replace(old, new), hits)


def _ambiguous(hits: int) -> str:
    return (
        f"Error: old_string occurs {hits} times. Set replace_all=true to change every one, "
        "or extend old_string until it occurs once"
    )


# --- Searching ---

MAX_RESULTS = 10
SHOWN_PER_PATTERN = 5
MAX_PATTERN_CHARS = 4096
"""No path is longer."""
MAX_ALTERNATIVES = 100
"""`{a,b}` multiplies; nobody means more."""

PATTERN_REQUIRED = "Error: pattern is required"

Matcher: TypeAlias = Callable[[str], bool]
_WILDCARD = re.compile(r"[*?]|\[[^\]]+\]|\{[^{}]*,[^{}]*\}")
_BRACES = re.compile(r"\{([^{}]*,[^{}]*)\}")


def patterns_of(pattern: object, patterns: object) -> tuple[str, ...]:
    """Read the two arguments of search_files, of which either may be text or a list of it."""
    entries = [*_entries(pattern, "pattern"), *_entries(patterns, "patterns")]
    return tuple(dict.fromkeys(entry for entry in entries if entry.strip()))


def _entries(value: object, name: str) -> list[str]:
    if value is None or isinstance(value, str):
        return [value or ""]
    if isinstance(value, list | tuple):
        return [valid_text(entry, f"an entry of {name}") for entry in cast("Iterable[object]", value)]
    problem = f"{name} must be text or a list of text, not {type(value).__name__}"
    raise InvalidInput(problem)


def found(
    patterns: Iterable[str], paths: Iterable[str], max_results: int = MAX_RESULTS
) -> dict[str, list[str]]:
    """Match relative paths of files; a file counts for the first pattern only. A maximum ≤ 0: all."""
    ordered, seen = sorted(set(paths)), set[str]()
    groups: dict[str, list[str]] = {}
    for pattern in dict.fromkeys(patterns):
        fits = matcher(pattern)
        room = max_results - len(seen) if max_results > 0 else None
        groups[pattern] = list(islice((path for path in ordered if path not in seen and fits(path)), room))
        seen.update(groups[pattern])
    return groups


def search_text(groups: Mapping[str, Sequence[str]]) -> str:
    """Say what a search found; without patterns, that one is needed."""
    if not groups:
        return PATTERN_REQUIRED
    count = sum(map(len, groups.values()))
    if not count:
        return f"No file matches {', '.join(groups)}"
    shown = [f"\n[{pattern}]\n{_paths_text(paths)}" for pattern, paths in groups.items() if paths]
    return "\n".join([f"Files found: {count}", *shown])


def _paths_text(paths: Sequence[str]) -> str:
    return _lines([displayable(path) for path in paths], SHOWN_PER_PATTERN)


def _lines(lines: Sequence[str], limit: int) -> str:
    if limit <= 0 or len(lines) <= limit:
        return "\n".join(lines)
    return "\n".join([*lines[:limit], f"... {len(lines) - limit} more not shown"])


def matcher(pattern: str) -> Matcher:
    """Say which relative paths a pattern means; the first line that applies decides."""
    if len(pattern) > MAX_PATTERN_CHARS:
        raise InvalidInput(_PATTERN_TOO_LONG)
    if pattern.startswith("./"):
        return _from_root(pattern.removeprefix("./"))
    if "/" in pattern and "*" not in pattern:
        return lambda path: path == pattern
    if _WILDCARD.search(pattern):
        return _glob(pattern)
    if "." in pattern:
        return lambda path: basename(path) == pattern
    return lambda path: pattern in basename(path)


_PATTERN_TOO_LONG = f"a pattern has more than {MAX_PATTERN_CHARS} characters; shorten it"


def _from_root(pattern: str) -> Matcher:
    return _glob(pattern) if _WILDCARD.search(pattern) else lambda path: path == pattern


def _glob(pattern: str) -> Matcher:
    globs = [_components(alternative) for alternative in _alternatives(pattern)]
    return lambda path: any(_matches(glob, path.split("/")) for glob in globs)


def _alternatives(pattern: str) -> list[str]:
    """Expand `{a,b}`, the innermost braces first."""
    done, todo = list[str](), [pattern]
    while todo:
        text = todo.pop()
        if not (braces := _BRACES.search(text)):
            done.append(text)
            continue
        choices = braces[1].split(",")
        if len(done) + len(todo) + len(choices) > MAX_ALTERNATIVES:
            raise InvalidInput(_TOO_MANY_ALTERNATIVES)
        todo += [text[: braces.start()] + choice + text[braces.end() :] for choice in choices]
    return done


_TOO_MANY_ALTERNATIVES = f"the braces of the pattern mean more than {MAX_ALTERNATIVES} patterns; split it"


def _components(glob: str) -> list[str]:
    """Split a glob so that `**` stands alone (any directories, also none) and never at the end."""
    parts = list[str]()
    for part in glob.split("/"):
        parts += [part] if part == "**" or "**" not in part else ["**", part.replace("**", "*")]
    return [*parts, "*"] if parts[-1] == "**" else parts


def _matches(globs: Sequence[str], parts: Sequence[str]) -> bool:
    """Match component by component, keeping all positions at once: patterns cannot make it slow."""
    at = _past_stars(globs, {0})
    for part in parts:
        at = _past_stars(globs, {p for i in at if (p := _step(globs, i, part)) is not None})
    return len(globs) in at


def _step(globs: Sequence[str], position: int, part: str) -> int | None:
    if position == len(globs):
        return None
    if globs[position] == "**":
        return position
    return position + 1 if fnmatchcase(part, globs[position]) else None


def _past_stars(globs: Sequence[str], positions: set[int]) -> set[int]:
    """Add the positions after each `**`, which may also mean no directory at all."""
    reached = set(positions)
    for position, glob in enumerate(globs):
        if glob == "**" and position in reached:
            reached.add(position + 1)
    return reached


# --- Listing ---

MAX_ENTRIES = 50


def listing(path: str, entries: Iterable[tuple[str, bool]], max_entries: int = MAX_ENTRIES) -> str:
    """List (name, is a directory) pairs, directories first; a maximum ≤ 0: all."""
    ordered = sorted(entries, key=lambda entry: (not entry[1], entry[0].casefold(), entry[0]))
    lines = [f"{'[dir]' if is_dir else '[file]'} {displayable(name)}" for name, is_dir in ordered]
    return _lines(lines, max_entries) or f"'{path}' has no entries"


def no_directory(path: str) -> str:
    """Say that there is no such directory."""
    return f"Error: No directory at '{path}'"
