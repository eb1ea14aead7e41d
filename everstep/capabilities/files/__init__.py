"""Files: `read_file`, `write_file`, `edit_file`, and to look around `search_files` and `list_dir`.

Rules and texts are in `everstep.agent_domain.capabilities.files`. The modules here do the I/O:

- `enclosure`: keeps paths inside of the directory (and the policy's readable and writable paths);
- `reading`, `writing`, `searching`: bounded in memory and time, and for regular files only.

Every error is a successful result that reports it to the model.
"""

import errno
import os
from collections.abc import Callable, Generator, Mapping
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any, Final, Self, cast

from everstep.agent_domain.agents.builder import DefinitionBuilder
from everstep.agent_domain.capabilities import files
from everstep.agent_domain.capabilities.bash import ExecutionPolicy, PathText
from everstep.agent_domain.checks import require_integer
from everstep.agent_domain.errors import InvalidInput, ToolFailed
from everstep.agent_domain.tools.function_tool import BaseTool
from everstep.agent_domain.tools.tools import Effect, ToolContext, ToolOptions
from everstep.capabilities.files import editing, regular_files, searching, writing
from everstep.capabilities.files.enclosure import Enclosure, PathProblem

QUICK: Final = ToolOptions(quick=True, effect=Effect.IDEMPOTENT)
"""For tools that return at once: the data is bounded, and mostly in memory already."""

SLOW: Final = ToolOptions(effect=Effect.IDEMPOTENT)
"""For tools that wait for the disk (a write returns once it is on the disk), or read very many directories.
"""

SLOW_ONCE: Final = ToolOptions(effect=Effect.AT_MOST_ONCE)
"""The same for an edit: a second attempt would find the result of the first."""


class FileTool(BaseTool):
    """The base of the file tools: it returns errors as texts."""

    def __init__(self, base_dir: PathText, *, policy: ExecutionPolicy | None = None) -> None:
        super().__init__()
        self._enclosure = readable_enclosure(base_dir, policy)

    @classmethod
    def in_directory(cls, base_dir: PathText) -> Self:
        """The tool for the files of one directory."""
        return cls(base_dir)

    @classmethod
    def with_policy(cls, policy: ExecutionPolicy) -> Self:
        """The tool for the policy's directory, and for its readable and writable paths."""
        return cls(policy.base_dir, policy=policy)

    def call(self, args: dict[str, Any], context: ToolContext) -> Any:
        """Check the arguments and call; null counts as a missing argument."""
        present = {name: value for name, value in args.items() if value is not None}
        try:
            _require_text(present)
            return super().call(present, context)
        except PathProblem as problem:
            return str(problem)
        except (ToolFailed, InvalidInput) as error:
            return f"Error: {error}"

    def unstorable(self, args: Mapping[str, Any]) -> str | None:
        """The error for text that cannot be a path or the content of a text file, or None."""
        try:
            _require_text(args)
        except PathProblem as problem:
            return str(problem)
        path_first = sorted(args, key=lambda name: name != "path")
        return next((files.nul_in(name) for name in path_first if _holds_nul(args[name])), None)


def _holds_nul(value: object) -> bool:
    if isinstance(value, list):
        return any(map(_holds_nul, cast("list[object]", value)))
    return isinstance(value, str) and "\x00" in value


def _require_text(args: Mapping[str, Any]) -> None:
    for name, value in args.items():
        try:
            _ = isinstance(value, str) and value.encode()
        except UnicodeEncodeError:
            raise PathProblem(files.not_text(name)) from None


@contextmanager
def _os_errors_as_text(path: str, missing: str, word: Callable[[str], str] = str) -> Generator[None]:
    """Turn an OSError for a path into an error text for the model, which `word` may rephrase."""
    try:
        yield
    except OSError as error:
        match error.errno:
            case errno.ENOENT | errno.ENOTDIR:
                text = missing
            case errno.ELOOP:
                text = files.too_many_links(path)
            case errno.EISDIR:
                text = files.is_a_directory(path)
            case number:
                text = files.path_error(path, os.strerror(number or 0))
        raise PathProblem(word(text)) from error


class ReadFileTool(FileTool):
    """Read a text file. Every line comes with its number and a tab, which are not part of the file.

    Args:
        path: The file, relative to the working directory.
        offset: How many lines to skip.
        limit: How many lines to read, at most 2000.
    """

    name = "read_file"
    options = QUICK

    def __init__(self, base_dir: PathText, policy: ExecutionPolicy | None = None) -> None:
        super().__init__(base_dir, policy=policy)

    def __call__(self, path: str, offset: int = 0, limit: int = files.MAX_LINES) -> str:
        """Read it."""
        opened = partial(self._enclosure.open_path, path)
        with (
            _os_errors_as_text(path, files.no_file(path)),
            regular_files.open_regular_file(opened, path) as file,
        ):
            return regular_files.read_lines(file, offset, limit)


class WriteFileTool(FileTool):
    """Write a text file: the whole of it, in place of what was there. Directories are made as needed.

    Args:
        path: The file, relative to the working directory.
        content: All that the file is to hold.
    """

    name = "write_file"
    options = SLOW

    def __init__(self, base_dir: PathText, policy: ExecutionPolicy | None = None) -> None:
        super().__init__(base_dir, policy=policy)
        self._enclosure = writable_enclosure(base_dir, policy)

    def __call__(self, path: str, content: str) -> str:
        """Write it."""
        self._enclosure.require_inside(path)
        data = content.encode()
        if len(data) > writing.MAX_WRITE:
            return files.too_long_to_write(len(data), writing.MAX_WRITE)
        if path.endswith(("/", "/.", "/..")):
            return files.is_a_directory(path)
        with (
            _os_errors_as_text(path, files.no_parent_directory(path)),
            self._enclosure.open_parent(path, make=True) as (directory, name),
            writing.file_lock(directory, name),
        ):
            writing.replace(directory, name, data, path)
        return files.write_summary(path, content)


class EditFileTool(FileTool):
    """Replace a text in a file, exactly as it stands there: without line numbers, with its white space.

    Args:
        path: The file, relative to the working directory.
        old_string: The text to replace. It has to occur once, unless replace_all is set.
        new_string: What to put in its place; nothing to delete it.
        replace_all: Whether to replace it wherever it occurs.
    """

    name = "edit_file"
    options = SLOW_ONCE

    def __init__(self, base_dir: PathText, policy: ExecutionPolicy | None = None) -> None:
        super().__init__(base_dir, policy=policy)
        self._enclosure = writable_enclosure(base_dir, policy)

    def __call__(self, path: str, old_string: str, new_string: str, replace_all: bool = False) -> str:
        """Edit it."""
        self._enclosure.require_inside(path)
        if problem := files.edit_problem(old_string, new_string):
            return problem
        change = editing.replacement(old_string, new_string, replace_all=replace_all)
        missing = files.no_file(path)
        with ExitStack() as until_edited:
            with _os_errors_as_text(path, missing, editing.edit_failure):
                located = self._enclosure.open_parent(path)
                directory, name = until_edited.enter_context(located)
            with _os_errors_as_text(path, missing):
                return editing.edit(directory, name, path, change)


class SearchFilesTool(FileTool):
    """Find files by name and path, not by content.

    Without wildcards a pattern with a dot is an exact name and any other a part of one, in all directories;
    with a slash it is an exact path. Wildcards are *, ?, [abc], {a,b}, and ** for any directories: *.py finds
    files in the working directory only, **/*.py everywhere, src/**/*.py below src.

    Args:
        pattern: What to find, or a list of it.
        patterns: More patterns.
    """

    name = "search_files"
    options = SLOW

    def __init__(
        self,
        base_dir: PathText,
        max_results: int = files.MAX_RESULTS,
        policy: ExecutionPolicy | None = None,
    ) -> None:
        super().__init__(base_dir, policy=policy)
        require_integer("max_results", max_results)
        self._max_results = max_results

    def __call__(self, pattern: str | list[str] = "", patterns: str | list[str] = "") -> str:
        """Search."""
        globs = files.parse_patterns(pattern, patterns)
        search = searching.Search(self._enclosure, globs)
        if globs:
            with _os_errors_as_text(".", files.NO_BASE):
                search.run()
        groups = files.match_files(globs, search.hits, self._max_results)
        return "\n".join([files.search_text(groups), *search.notes])


class ListDirTool(FileTool):
    """List what is in a directory.

    Args:
        path: The directory, relative to the working directory.
    """

    name = "list_dir"
    options = QUICK

    def __init__(
        self,
        base_dir: PathText,
        max_entries: int = files.MAX_ENTRIES,
        policy: ExecutionPolicy | None = None,
    ) -> None:
        super().__init__(base_dir, policy=policy)
        require_integer("max_entries", max_entries)
        self._max_entries = max_entries

    def __call__(self, path: str = ".") -> str:
        """List it."""
        with _os_errors_as_text(path, files.no_directory(path)):
            entries, has_more = searching.list_directory(self._enclosure, path)
        text = files.listing(path, entries, self._max_entries)
        return f"{text}\n{files.listing_cut_short(len(entries))}" if has_more else text


class UseFileTools:
    """Lets an agent read, write and edit files in a directory.

    Of the policy, which may be the one of bash, only `readable_paths` and `writable_paths` are used.
    """

    name = "files"

    def __init__(self, base_dir: PathText, policy: ExecutionPolicy | None = None) -> None:
        self.tools = tuple(kind(base_dir, policy) for kind in (ReadFileTool, WriteFileTool, EditFileTool))

    def install(self, builder: DefinitionBuilder) -> DefinitionBuilder:
        """Add the tools."""
        return builder.with_tools(self.tools)


def readable_enclosure(base_dir: PathText, policy: ExecutionPolicy | None) -> Enclosure:
    """The paths in which files may be read."""
    more = (*policy.readable_paths, *policy.writable_paths) if policy else ()
    return Enclosure(base_dir, *more)


def writable_enclosure(base_dir: PathText, policy: ExecutionPolicy | None) -> Enclosure:
    """The paths in which files may be written."""
    return Enclosure(base_dir, *(policy.writable_paths if policy else ()), write=True)
