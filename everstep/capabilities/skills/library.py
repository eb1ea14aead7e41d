"""Reads skills from a directory, which may come from strangers.

A broken skill is logged and left out, and does not affect the others. No symlink leads out of the library,
files are read up to a size limit, and YAML gives plain values only.
"""

import logging
import os
import stat
import threading
from collections import deque
from collections.abc import Mapping
from functools import partial
from typing import Any, Final, cast

from everstep.agent_domain.agents.front_matter import split_front_matter
from everstep.agent_domain.capabilities import skills
from everstep.agent_domain.capabilities.bash import PathText
from everstep.agent_domain.capabilities.files import displayable
from everstep.agent_domain.capabilities.skills import RESOURCE_DIRECTORIES, SKILL_FILE, Skill
from everstep.agent_domain.errors import InvalidInput
from everstep.capabilities.files.enclosure import DIRECTORY, Enclosure, PathProblem, closing
from everstep.capabilities.files.regular_files import open_regular_file, read_at_most
from everstep.capabilities.files.searching import link_target_mode, some_entries
from everstep.plain_yaml import load_yaml

logger = logging.getLogger(__name__)

MAX_BYTES: Final = 256 * 1024
"""Larger skills are left out; a model could not use them."""

MAX_SKILLS: Final = 500
MAX_RESOURCES: Final = 200
"""The limit for one skill; more would fill the model's context with names."""


class SkillLibrary:
    """The skills in a directory: `{name}/SKILL.md` with its resources beside it, or `{name}.md`.

    The directory is read once, on first use. Without it there are no skills, and a warning is logged.
    """

    def __init__(self, path: PathText) -> None:
        # The installation reads them, by names that no model makes up.
        self._enclosure = Enclosure(path, is_for_agents=False)
        self._lock = threading.Lock()
        self._loaded: Mapping[str, Skill] | None = None

    @property
    def skills(self) -> Mapping[str, Skill]:
        """All skills, sorted by name."""
        with self._lock:
            if self._loaded is None:
                self._loaded = skills.skills_by_name(self._load())
            return self._loaded

    def get(self, name: str) -> Skill | None:
        """The skill with this name, or None."""
        return self.skills.get(name)

    def _load(self) -> list[tuple[str, Skill]]:
        loaded = list[tuple[str, Skill]]()
        if not os.path.isdir(self._enclosure.base):
            self._warn("", "the directory does not exist, so there are no skills")
            return loaded
        for path in self._paths():
            if len(loaded) >= MAX_SKILLS:
                self._warn(
                    path, f"it and later skills are left out; a library has at most {MAX_SKILLS} skills"
                )
                break
            if (skill := self._read(path)) is not None:
                loaded.append((path, skill))
        return loaded

    def _paths(self) -> list[str]:
        """The paths at which skills may be."""
        paths = list[str]()
        for name, kind in self._entries(""):
            mode = link_target_mode(self._enclosure, name) if stat.S_ISLNK(kind) else kind
            if stat.S_ISDIR(mode):
                paths.append(f"{name}/{SKILL_FILE}")
            elif stat.S_ISLNK(kind) and not mode:
                self._warn(name, "the link leads out of the library, or to nothing")
            elif skills.is_skill_file(name):
                paths.append(name)
        return paths

    def _entries(self, directory: str) -> list[tuple[str, int]]:
        try:
            with closing(self._enclosure.open_path(directory, DIRECTORY)) as opened:
                return some_entries(opened)
        except FileNotFoundError:
            return []
        except (OSError, PathProblem) as error:
            self._warn(directory, error)
            return []

    def _read(self, path: str) -> Skill | None:
        try:
            with open_regular_file(partial(self._enclosure.open_path, path), path) as file:
                content = read_at_most(file, MAX_BYTES + 1)
            return self._parse(path, content)
        except FileNotFoundError:
            # A directory without the file is no skill.
            return None
        except (OSError, PathProblem, ValueError) as error:
            self._warn(path, error)
            return None

    def _parse(self, path: str, content: bytes) -> Skill:
        if len(content) > MAX_BYTES:
            raise InvalidInput(f"it is larger than {MAX_BYTES} bytes; shorten it")
        front_matter, body = split_front_matter(content.decode("utf-8-sig"))
        fields = self._fields(path, front_matter) if front_matter else None
        directory = os.path.dirname(path)
        files = self._resource_files(directory) if directory else []
        return Skill.parse(fields, body, displayable(skills.default_name(path)), files)

    def _fields(self, path: str, front_matter: str) -> Mapping[str, Any] | None:
        """The fields, or None if the YAML is invalid."""
        try:
            # A newline first, so that errors name the lines by their numbers in the file.
            fields = load_yaml(f"\n{front_matter}")
        except ValueError as error:
            self._warn(path, f"its front matter is not valid YAML and is ignored: {error}")
            return None
        return cast("Mapping[str, Any]", fields) if isinstance(fields, Mapping) else None

    def _resource_files(self, directory: str) -> list[str]:
        """The files in the resource directories, relative to the skill's.

        Links to directories are not followed.
        """
        files = list[str]()
        pending = deque(each.rstrip("/") for each in RESOURCE_DIRECTORIES)
        while pending:
            here = pending.popleft()
            for name, kind in self._entries(f"{directory}/{here}"):
                path = f"{here}/{name}"
                if stat.S_ISDIR(kind):
                    pending.append(path)
                elif self._is_file(f"{directory}/{path}", kind):
                    files.append(displayable(path))
                if len(files) >= MAX_RESOURCES:
                    self._warn(directory, f"only {MAX_RESOURCES} of its resources are listed")
                    return files
        return files

    def _is_file(self, path: str, kind: int) -> bool:
        return stat.S_ISREG(link_target_mode(self._enclosure, path) if stat.S_ISLNK(kind) else kind)

    def _warn(self, path: str, why: object) -> None:
        where = os.path.join(self._enclosure.base, path).rstrip("/")
        logger.warning("skills: %s: %s", displayable(where), str(why).removeprefix("Error: "))
