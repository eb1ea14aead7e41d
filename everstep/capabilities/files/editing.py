"""Editing: reads a file, changes its text and replaces it, safely with concurrent writers."""

import os
from collections.abc import Callable
from typing import Final, TypeAlias

from everstep.agent_domain.capabilities import files
from everstep.capabilities.files.enclosure import PathProblem
from everstep.capabilities.files.regular_files import open_regular_file, read_at_most
from everstep.capabilities.files.writing import MAX_WRITE, file_lock, replace, stat_entry

MAX_TRIES: Final = 10
"""How often a file is read again because another process has changed it."""

Change: TypeAlias = Callable[[str], files.Edit | str]
"""Maps the text of a file to its new text, or to an error text."""


def edit(directory: int, name: str, path: str, change: Change) -> str:
    """Change a file, and return a summary or an error text; `path` is the model's name for the file."""
    with file_lock(directory, name):
        for _ in range(MAX_TRIES):
            before, text = _read(directory, name, path)
            edited = change(text)
            if isinstance(edited, str):
                return edited
            if _is_unchanged(directory, name, before):
                replace(directory, name, edited.text.encode(), path)
                return edited.summary(path)
    return files.concurrent_change_error(path)


def replacement(old: str, new: str, *, replace_all: bool) -> Change:
    """Replace a text, unless the file would become too long: a single letter may occur a million times."""

    def change(text: str) -> files.Edit | str:
        hits = text.count(old)
        size = len(text.encode()) + hits * (len(new.encode()) - len(old.encode()))
        if size > MAX_WRITE and (hits == 1 or replace_all):
            return files.too_long_to_write(size, MAX_WRITE)
        return files.apply_edit(text, old, new, replace_all)

    return change


def _read(directory: int, name: str, path: str) -> tuple[os.stat_result, str]:
    def open_file(flags: int) -> int:
        return os.open(name, flags | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=directory)

    try:
        with open_regular_file(open_file, path) as file:
            before = os.fstat(file)
            content = read_at_most(file, MAX_WRITE + 1)
    except FileNotFoundError:
        raise PathProblem(edit_failure(files.no_file(path))) from None
    except OSError as error:
        raise PathProblem(edit_failure(os.strerror(error.errno or 0))) from error
    except PathProblem as problem:
        raise PathProblem(edit_failure(str(problem))) from problem
    if len(content) > MAX_WRITE:
        raise PathProblem(edit_failure(files.too_large_to_edit(MAX_WRITE)))
    text = files.text_of(content)
    if text is None:
        raise PathProblem(edit_failure(files.BINARY))
    return before, text


def edit_failure(why: str) -> str:
    """The error for a file that could not be edited because it could not be read."""
    return files.read_error(why.removeprefix("Error: "))


def _is_unchanged(directory: int, name: str, before: os.stat_result) -> bool:
    now = stat_entry(directory, name)
    return now is not None and _mark(now) == _mark(before)


def _mark(of: os.stat_result) -> tuple[int, ...]:
    return of.st_dev, of.st_ino, of.st_size, of.st_mtime_ns
