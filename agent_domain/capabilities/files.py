"""Reading, writing, editing and finding files: the rules on text, and the texts for the model.

This module opens no files. `path_problem` compares paths as text and is only a first check: it
cannot see symlinks. The actual confinement is elsewhere and uses directory file descriptors.
Every problem is an error text.
"""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum, auto
from fnmatch import translate
from itertools import islice
from posixpath import basename, join, normpath
from typing import TypeAlias, cast

from everstep.agent_domain.errors import InvalidInput
from everstep.agent_domain.values import truncate, valid_text

# --- Paths ---

OUTSIDE = "Error: Path is outside the allowed directory"
NUL_IN_PATH = "Error: Path contains a NUL character"


def path_problem(path: str, allowed: Sequence[str]) -> str | None:
    """The error text if a path is outside all allowed directories, of which the first is the base."""
    if "\x00" in path:
        return NUL_IN_PATH
    target = normpath(join(allowed[0], path))
    return None if any(_within(target, normpath(root)) for root in allowed) else OUTSIDE


def _within(path: str, root: str) -> bool:
    return path == root or path.startswith(root.rstrip("/") + "/")


_CONTROL = re.compile("[\x00-\x1f\x7f\u2028\u2029]")


def displayable(name: str) -> str:
    """A file name that can be stored and fits on one line; other characters become U+FFFD."""
    return _CONTROL.sub("\ufffd", name.encode(errors="surrogateescape").decode(errors="replace"))


NO_BASE = "Error: The directory for the file tools does not exist; report this to the operator of this agent"


def not_text(argument: str) -> str:
    """The error text for an argument that cannot be encoded as UTF-8."""
    return f"Error: {argument} holds characters that UTF-8 cannot express"


def nul_in(argument: str) -> str:
    """The error text for an argument that contains NUL."""
    return NUL_IN_PATH if argument == "path" else f"Error: {argument} contains a NUL character"


def no_regular_file(path: str) -> str:
    """The error text for a special file, which is never opened: reading could block or have side effects."""
    return f"Error: '{path}' is no regular file but a pipe, a socket, a device or a broken link"


def too_many_links(path: str) -> str:
    """The error text for a path with too many links or directories."""
    return f"Error: '{path}' leads in circles, or through too many links or directories"


def path_error(path: str, detail: str) -> str:
    """The error text with the operating system's error about a path."""
    return f"Error: '{path}' cannot be used: {detail}"


# --- Reading ---

MAX_LINES = 2000
MAX_LINE_CHARS = 2000
EMPTY_FILE = "(empty file)"
PAST_THE_END = "Error: The file ends before this offset"
BINARY = "Error: This file is binary, only text can be read"


def no_file(path: str) -> str:
    """The error text for a missing file."""
    return f"Error: No file at '{path}'"


def is_a_directory(path: str) -> str:
    """The error text for a directory where a file is expected."""
    return f"Error: '{path}' names a directory, list_dir shows what is in it"


def text_of(content: bytes) -> str | None:
    """Decode a text file; None if it is binary, which means invalid UTF-8 or a NUL."""
    try:
        text = content.decode()
    except UnicodeDecodeError:
        return None
    return None if "\x00" in text else text


def file_excerpt(text: str, offset: int = 0, limit: int = MAX_LINES) -> str:
    """A part of a file as numbered lines.

    Args:
        text: The file.
        offset: The number of lines to skip.
        limit: The number of lines to show, at most `MAX_LINES`; ≤ 0: `MAX_LINES`.
    """
    if not text:
        return EMPTY_FILE
    start, size = window(offset, limit)
    return numbered_lines(text.removesuffix("\n").split("\n")[start : start + size], start) or PAST_THE_END


def window(offset: int, limit: int) -> tuple[int, int]:
    """How many lines to skip and how many to show, within the bounds."""
    return max(offset, 0), min(limit, MAX_LINES) if limit > 0 else MAX_LINES


def numbered_lines(lines: Iterable[str], skipped: int) -> str:
    """The lines with their numbers, given how many lines precede them."""
    return "\n".join(
        f"{number:>6}\t{truncate(line, MAX_LINE_CHARS)}" for number, line in enumerate(lines, skipped + 1)
    )


def truncation_note(limit: int) -> str:
    """The note after the last line that the rest of the file is not read."""
    return f"... the file goes on, and only its first {limit} bytes are read"


def offset_too_large(limit: int) -> str:
    """The error text for an offset behind the part that is read."""
    return f"Error: Only the first {limit} bytes of a file are read, and this offset lies behind them"


# --- Writing and editing ---

NOTHING_TO_CHANGE = "Error: new_string equals old_string, so nothing would change"
NOTHING_TO_REPLACE = "Error: old_string must hold the text to replace"
NOT_FOUND = "Error: The file does not contain old_string"


def write_summary(path: str, content: str) -> str:
    """The result text after writing a file."""
    lines = content.count("\n") + 1
    return f"Wrote {path}: {len(content.encode())} bytes, {lines} lines"


def too_long_to_write(size: int, limit: int) -> str:
    """The error text for new content that is too long."""
    return f"Error: The file would have {size} bytes, at most {limit} can be written. Split it into several"


def too_large_to_edit(limit: int) -> str:
    """The detail for `read_error` when a file is too large to edit."""
    return f"It is larger than {limit} bytes, the most that can be edited"


def no_parent_directory(path: str) -> str:
    """The error text for a file that cannot be created because a part of its path is not a directory."""
    return f"Error: No file can be made at '{path}', something on the way there is no directory"


def concurrent_change_error(path: str) -> str:
    """The error text for a file that other processes keep changing."""
    return f"Error: '{path}' was not edited, because other processes keep changing it; read it again"


def read_error(detail: str) -> str:
    """The error text for a file that could not be read for an edit."""
    return f"Error: Reading the file failed: {detail}"


@dataclass(frozen=True, slots=True)
class Edit:
    """The new text of a file, and the number of replacements."""

    text: str
    replacements: int

    def summary(self, path: str) -> str:
        """The result text after an edit."""
        return f"Edited {path}: {self.replacements} replacement(s)"


def edit_problem(old: str, new: str) -> str | None:
    """The error text for an edit that is invalid in any file, so it is checked before reading the file."""
    if old == new:
        return NOTHING_TO_CHANGE
    return None if old else NOTHING_TO_REPLACE


def apply_edit(text: str, old: str, new: str, replace_all: bool = False) -> Edit | str:
    """Replace the old string, or return the error text; occurrences do not overlap."""
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
"""The maximum length of a path on Linux."""
MAX_ALTERNATIVES = 100
"""Several `{a,b}` multiply; no sensible pattern needs more."""

MAX_EXPANDED_CHARS = 4 * MAX_PATTERN_CHARS
"""The summed length of the alternatives of a pattern: all are compiled before the first path is compared."""

MAX_PATTERNS = 20
"""The maximum in one search; each is compared with every path."""

PATTERN_REQUIRED = "Error: pattern is required"

Matcher: TypeAlias = Callable[[str], bool]
_WILDCARD = re.compile(r"[*?]|\[[^\]]+\]|\{[^{}]*,[^{}]*\}")
_BRACES = re.compile(r"\{([^{}]*,[^{}]*)\}")


def parse_patterns(pattern: object, patterns: object) -> tuple[str, ...]:
    """Combine the two arguments of search_files, each of which may be text or a list of texts.

    Raises:
        InvalidInput: An argument has another type, or there are too many patterns.
    """
    entries = [*_entries(pattern, "pattern"), *_entries(patterns, "patterns")]
    unique = tuple(dict.fromkeys(entry for entry in entries if entry.strip()))
    if len(unique) > MAX_PATTERNS:
        problem = f"at most {MAX_PATTERNS} patterns fit in one search, not {len(unique)}"
        raise InvalidInput(problem)
    return unique


def _entries(value: object, name: str) -> list[str]:
    if value is None or isinstance(value, str):
        return [value or ""]
    if isinstance(value, list | tuple):
        return [valid_text(entry, f"an entry of {name}") for entry in cast("Iterable[object]", value)]
    problem = f"{name} must be text or a list of text, not {type(value).__name__}"
    raise InvalidInput(problem)


def match_files(
    patterns: Iterable[str], paths: Iterable[str], max_results: int = MAX_RESULTS
) -> dict[str, list[str]]:
    """The matching files by pattern; a file is listed under its first matching pattern only.

    Args:
        patterns: The patterns.
        paths: The relative paths of all files.
        max_results: The maximum number of files; ≤ 0: all.
    """
    ordered, seen = sorted(set(paths)), set[str]()
    groups: dict[str, list[str]] = {}
    for pattern in dict.fromkeys(patterns):
        fits = matcher(pattern)
        room = max_results - len(seen) if max_results > 0 else None
        groups[pattern] = list(islice((path for path in ordered if path not in seen and fits(path)), room))
        seen.update(groups[pattern])
    return groups


def search_text(groups: Mapping[str, Sequence[str]]) -> str:
    """The result text of a search; without patterns, the error text that requires one."""
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


class _Kind(Enum):
    """The kinds of patterns."""

    PATH = auto()
    GLOB = auto()
    NAME = auto()
    PART = auto()
    """A part of a name."""


def _kind(pattern: str) -> _Kind:
    if pattern.startswith("./"):
        return _Kind.GLOB if _WILDCARD.search(pattern) else _Kind.PATH
    if "/" in pattern and "*" not in pattern:
        return _Kind.PATH
    if _WILDCARD.search(pattern):
        return _Kind.GLOB
    return _Kind.NAME if "." in pattern else _Kind.PART


def matcher(pattern: str) -> Matcher:
    """The function that decides which relative paths match a pattern.

    Raises:
        InvalidInput: The pattern is too long, or has too many alternatives.
    """
    if len(pattern) > MAX_PATTERN_CHARS:
        raise InvalidInput(_PATTERN_TOO_LONG)
    rooted = pattern.removeprefix("./")
    match _kind(pattern):
        case _Kind.PATH:
            return lambda path: path == rooted
        case _Kind.GLOB:
            globs = _globs(rooted)
            return lambda path: any(_matches(glob, path.split("/")) for glob in globs)
        case _Kind.NAME:
            return lambda path: basename(path) == pattern
        case _:
            return lambda path: pattern in basename(path)


def directory_matcher(pattern: str) -> Matcher:
    """The function that decides below which directories, given as relative paths, the pattern can match."""
    rooted = pattern.removeprefix("./")
    match _kind(pattern):
        case _Kind.PATH:
            return lambda directory: rooted.startswith(f"{directory}/")
        case _Kind.GLOB:
            globs = _globs(rooted)
            return lambda directory: any(_can_match_below(glob, directory.split("/")) for glob in globs)
        case _:
            return lambda _: True


_PATTERN_TOO_LONG = f"a pattern has more than {MAX_PATTERN_CHARS} characters; shorten it"


_Globs: TypeAlias = Sequence["re.Pattern[str] | None"]
"""One pattern for each component of a path; None is `**`."""


def _globs(pattern: str) -> list[_Globs]:
    return [[*map(_compile_glob, _components(alternative))] for alternative in _alternatives(pattern)]


def _compile_glob(glob: str) -> "re.Pattern[str] | None":
    # Not `fnmatchcase`: its cache would hold tens of thousands of patterns as long as the process lives.
    return None if glob == "**" else re.compile(translate(glob))


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
        if sum(map(len, [*done, *todo])) > MAX_EXPANDED_CHARS:
            raise InvalidInput(_EXPANSION_TOO_LONG)
    return done


_EXPANSION_TOO_LONG = f"the braces of the pattern mean more than {MAX_EXPANDED_CHARS} characters; split it"
_TOO_MANY_ALTERNATIVES = f"the braces of the pattern mean more than {MAX_ALTERNATIVES} patterns; split it"


def _components(glob: str) -> list[str]:
    """Split a glob into components, with `**` (any number of directories) always separate and never last."""
    parts = list[str]()
    for part in glob.split("/"):
        parts += [part] if part == "**" or "**" not in part else ["**", part.replace("**", "*")]
    return [*parts, "*"] if parts[-1] == "**" else parts


def _matches(globs: _Globs, parts: Sequence[str]) -> bool:
    """Match component by component with a set of positions, so no pattern causes exponential backtracking."""
    return len(globs) in _positions(globs, parts)


def _can_match_below(globs: _Globs, parts: Sequence[str]) -> bool:
    """Whether a longer path that begins with these components can match."""
    return any(position < len(globs) for position in _positions(globs, parts))


def _positions(globs: _Globs, parts: Sequence[str]) -> set[int]:
    at = _past_stars(globs, {0})
    for part in parts:
        at = _past_stars(globs, {p for i in at if (p := _step(globs, i, part)) is not None})
    return at


def _step(globs: _Globs, position: int, part: str) -> int | None:
    if position == len(globs):
        return None
    glob = globs[position]
    if glob is None:
        return position
    return position + 1 if glob.match(part) else None


def _past_stars(globs: _Globs, positions: set[int]) -> set[int]:
    """Add the positions after each `**`, which may also mean no directory at all."""
    reached = set(positions)
    for position, glob in enumerate(globs):
        if glob is None and position in reached:
            reached.add(position + 1)
    return reached


def search_cut_short(entries: int) -> str:
    """The note that a search stopped before it had seen all entries."""
    return f"... the search ended after {entries} entries; begin the pattern with a directory to search there"


def unread_directories(count: int) -> str:
    """The note that a search could not read some directories."""
    return f"... {count} directories could not be read"


# --- Listing ---

MAX_ENTRIES = 50


def listing(path: str, entries: Iterable[tuple[str, bool]], max_entries: int = MAX_ENTRIES) -> str:
    """The result text of a listing, directories first.

    Args:
        path: The directory.
        entries: Pairs of a name and whether it is a directory.
        max_entries: The maximum number of entries to show; ≤ 0: all.
    """
    ordered = sorted(entries, key=lambda entry: (not entry[1], entry[0].casefold(), entry[0]))
    lines = [f"{'[dir]' if is_dir else '[file]'} {displayable(name)}" for name, is_dir in ordered]
    return _lines(lines, max_entries) or f"'{path}' has no entries"


def listing_cut_short(entries: int) -> str:
    """The note that a directory has more entries than are read."""
    return f"... only {entries} entries were looked at, there are more"


def no_directory(path: str) -> str:
    """The error text for a missing directory."""
    return f"Error: No directory at '{path}'"
