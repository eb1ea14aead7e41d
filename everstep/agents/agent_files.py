"""Agent definitions in files: one agent each, in markdown (`.md`) or JSON (`.json`).

Such files have many authors, so a folder with one broken file still gives all other agents. They may also
come from strangers: no file is read beyond its size limit, and YAML gives plain values only.
"""

import logging
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final, cast

from everstep.agent_domain.agents import registry
from everstep.agent_domain.agents.spec import AgentSpec
from everstep.agent_domain.errors import InvalidInput
from everstep.plain_yaml import load_yaml

logger = logging.getLogger(__name__)

AgentSpec.load_yaml = staticmethod(load_yaml)

MAX_BYTES: Final = 1024 * 1024
"""Larger files are refused; no prompt is that long."""

SUFFIXES: Final = (".md", ".json")

PROJECT_FOLDERS: Final = (".everstep/agents", ".claude/agents")
HOME_FOLDER: Final = ".everstep/agents"


@dataclass(frozen=True, slots=True)
class SkippedFile:
    """The argument of a warning: the path that was skipped, and the error."""

    path: Path
    error: InvalidInput

    def __str__(self) -> str:
        # The text comes from a file and may end up in a terminal, so control characters are replaced.
        text = "".join(char if char.isprintable() or char == "\n" else "\ufffd" for char in str(self.error))
        return f"skipped an agent definition: {text}"


class AgentRegistry(registry.AgentSpecRegistry):
    """Agent specs by name, from code and from files."""

    def load_from_file(self, path: Path | str) -> AgentSpec:
        """Register the agent in the file.

        Raises:
            InvalidInput: The file is invalid; the message names it.
        """
        spec = read_agent(_valid_path(path))
        self.register(spec)
        return spec

    def load_from_directory(self, path: Path | str, recursive: bool = False) -> None:
        """Register all agents in the folder, if it exists, sorted by name.

        A file that is no agent is logged as a warning and skipped.
        """
        for file in agent_files(_valid_path(path), recursive=recursive):
            try:
                self.load_from_file(file)
            except InvalidInput as error:
                skip(file, error)

    def auto_discover(self, project: Path | str | None = None, home: Path | str | None = None) -> None:
        """Register the agents of the project and of the user.

        The first folder with a name wins: `.everstep/agents/` of the project, then its `.claude/agents/`,
        then `.everstep/agents/` at home.
        """
        root = Path.cwd() if project is None else _valid_path(project)
        folders = [root / folder for folder in PROJECT_FOLDERS]
        folders.append((Path.home() if home is None else _valid_path(home)) / HOME_FOLDER)
        # A later registration replaces an earlier one, so the first folder comes last.
        for folder in reversed(folders):
            self.load_from_directory(folder)


def read_agent(path: Path) -> AgentSpec:
    """Read the agent in the file.

    Raises:
        InvalidInput: The file is invalid; the message names it.
    """
    try:
        text = _text(path)
        return AgentSpec.from_json(text) if _suffix(path) == ".json" else AgentSpec.from_markdown(text)
    except OSError as error:
        # Its text repeats the path, after a number.
        raise InvalidInput(f"{path}: {error.strerror or error}") from error
    except ValueError as error:
        raise InvalidInput(f"{path}: {error}") from error


def _valid_path(value: object) -> Path:
    if not isinstance(value, str | os.PathLike):
        raise InvalidInput(f"a path must be text or a Path, not {type(value).__name__}")
    path = Path(cast("str | os.PathLike[str]", value))
    if "\x00" in str(path):
        raise InvalidInput("a path contains a NUL character; remove it")
    return path


def _text(path: Path) -> str:
    if _suffix(path) not in SUFFIXES:
        raise InvalidInput(f"an agent is defined in a file that ends in {' or '.join(SUFFIXES)}")
    # Reading from a pipe or a device could block forever.
    if path.exists() and not path.is_file():
        raise InvalidInput("it is not a regular file")
    with path.open("rb") as file:
        content = file.read(MAX_BYTES + 1)
    if len(content) > MAX_BYTES:
        raise InvalidInput(f"it is larger than {MAX_BYTES} bytes; shorten it")
    return content.decode("utf-8-sig")


def _suffix(path: Path) -> str:
    return path.suffix.lower()


def agent_files(directory: Path, *, recursive: bool = False) -> Iterator[Path]:
    """The agent files of a folder, then those of its subfolders if `recursive`, each sorted by name.

    Links to folders are not followed: they may form loops.
    """
    pending = [directory]
    while pending:
        entries = _entries(pending.pop())
        folders = [entry for entry in entries if entry.is_dir(follow_symlinks=False)]
        files = [Path(entry) for entry in entries if not entry.is_dir(follow_symlinks=False)]
        yield from (file for file in files if _suffix(file) in SUFFIXES)
        pending.extend(Path(folder) for folder in reversed(folders) if recursive)


def _entries(folder: Path) -> list[os.DirEntry[str]]:
    try:
        with os.scandir(folder) as entries:
            return sorted(entries, key=lambda entry: entry.name)
    except FileNotFoundError:
        return []
    except OSError as error:
        skip(folder, InvalidInput(f"{folder}: {error}"))
        return []


def skip(path: Path, error: InvalidInput) -> None:
    """Log that the file defines no agent, and why."""
    logger.warning("%s", SkippedFile(path, error))
