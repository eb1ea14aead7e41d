"""Skills: instructions in markdown that the model loads on demand."""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from posixpath import basename, dirname
from typing import Any, cast

from everstep.agent_domain.errors import InvalidInput
from everstep.agent_domain.values import FrozenDict, freeze

SKILL_FILE = "SKILL.md"
RESOURCE_DIRECTORIES = ("scripts/", "references/", "assets/")
METADATA_MARKER = "<skills-metadata>"
_KNOWN_KEYS = ("name", "description", "tags", "resources")


@dataclass(frozen=True, slots=True)
class Skill:
    """One skill; `extra` contains the unknown keys of its front matter."""

    name: str
    description: str = ""
    body: str = ""
    tags: tuple[str, ...] = ()
    resources: tuple[str, ...] = ()
    extra: FrozenDict = field(default_factory=FrozenDict)

    @classmethod
    def parse(
        cls, front_matter: Mapping[str, Any] | None, body: str, default_name: str, files: Iterable[str] = ()
    ) -> "Skill":
        """Create a skill from its parsed file.

        Args:
            front_matter: The keys of the front matter, if there is any.
            body: The instructions.
            default_name: The name if the front matter has none.
            files: The files in the skill's directory, as relative paths.
        """
        fields = {_readable(key): value for key, value in (front_matter or {}).items()}
        beside = sorted(file for file in files if file.startswith(RESOURCE_DIRECTORIES))
        return cls(
            name=_text(fields.get("name")) or default_name,
            description=_text(fields.get("description")),
            body=_readable(body).strip(),
            tags=_texts(fields.get("tags")),
            resources=tuple(dict.fromkeys([*_texts(fields.get("resources")), *beside])),
            extra=FrozenDict(
                {key: _freeze_value(value) for key, value in fields.items() if key not in _KNOWN_KEYS}
            ),
        )

    def content(self) -> str:
        """The instructions."""
        return self.body

    def rendered(self, arguments: str | None = None) -> str:
        """The text that the model reads when it loads the skill.

        Args:
            arguments: Replaces the placeholders in the instructions; None leaves them unchanged.
        """
        lines = [f'<skill name="{self.name}">', fill_arguments(self.body, arguments)]
        if self.resources:
            lines += ["", "## Available Resources", *(f"- {path}" for path in self.resources)]
        return "\n".join([*lines, "</skill>"])


def _freeze_value(value: object) -> Any:
    # YAML has types, such as dates, that JSON does not have.
    try:
        return freeze(value)
    except InvalidInput:
        return _readable(value)


def _readable(value: object) -> str:
    return str(value).encode(errors="replace").decode().replace("\x00", "\ufffd")


def _text(value: object) -> str:
    # YAML parses unquoted digits as a number.
    return "" if value is None or isinstance(value, list | Mapping) else _readable(value).strip()


def _texts(value: object) -> tuple[str, ...]:
    entries = cast("list[object]", value) if isinstance(value, list) else _text(value).split(",")
    return tuple(dict.fromkeys(text for entry in entries if (text := _text(entry))))


# --- The library ---


def default_name(path: str) -> str:
    """The name of a skill that does not set one: both `a/SKILL.md` and `a.md` are named `a`."""
    return basename(dirname(path)) if _has_directory(path) else basename(path).removesuffix(".md")


def is_skill_file(path: str) -> bool:
    """Whether a path, relative to the library, is that of a skill."""
    return path.count("/") == 1 if _has_directory(path) else "/" not in path and path.endswith(".md")


def _has_directory(path: str) -> bool:
    return path.endswith(f"/{SKILL_FILE}")


def skills_by_name(entries: Iterable[tuple[str, Skill]]) -> dict[str, Skill]:
    """The skills by name, sorted by name.

    Of two skills with the same name, a SKILL.md wins over a flat file, and then the first path.
    """
    # The last entry wins in a dictionary: flat files are first, and of equal kinds the first path is last.
    ordered = sorted(entries, key=lambda entry: entry[0], reverse=True)
    ordered.sort(key=lambda entry: _has_directory(entry[0]))
    skills = {skill.name: skill for _, skill in ordered}
    return dict(sorted(skills.items()))


def list_text(skills: Iterable[Skill]) -> str:
    """The list of skills for the model."""
    lines = [f"- [{skill.name}]: {skill.description}" for skill in skills]
    return "\n".join(["Available skills:", *lines]) if lines else "(no skills)"


def metadata_message(skills: Sequence[Skill], system_texts: Iterable[str]) -> str | None:
    """The system message that lists the skills; None without skills, or if such a message exists already.

    Args:
        skills: The skills.
        system_texts: The texts of the existing system messages.
    """
    if not skills or any(METADATA_MARKER in text for text in system_texts):
        return None
    hint = "Before work that one of them covers, read it with load_skill."
    return f"{METADATA_MARKER}\n{list_text(skills)}\n</skills-metadata>\n{hint}"


def load_text(
    skills: Mapping[str, Skill],
    skill_name: object = None,
    list_skills: object = False,
    arguments: str | None = None,
) -> str:
    """The result text of load_skill.

    Args:
        skills: The skills by name.
        skill_name: The skill to load.
        list_skills: Whether to list the skills instead.
        arguments: Replaces the placeholders in the skill.

    Raises:
        InvalidInput: The name is not text.
    """
    name = _name(skill_name)
    if list_skills is True or not name:
        return list_text(skills.values())
    if name not in skills:
        return f"Error: No skill named '{name}'\n\n{list_text(skills.values())}"
    return skills[name].rendered(arguments)


def _name(value: object) -> str:
    if value is None or isinstance(value, str):
        return (value or "").strip()
    problem = f"skill_name must be text, not {type(value).__name__}"
    raise InvalidInput(problem)


# --- Arguments ---

_PLACEHOLDER = re.compile(r"\$ARGUMENTS\[(?P<index>[0-9]+)\]|\$ARGUMENTS|(?<!\w)\$(?P<digit>[0-9])")


def fill_arguments(body: str, arguments: str | None) -> str:
    """Fill in the placeholders, or append the arguments if there are none; None changes nothing."""
    if arguments is None:
        return body
    # Indexes stay text: one with a thousand digits is a missing argument, and is never parsed.
    words = {str(index): word for index, word in enumerate(arguments.split())}

    def value(found: re.Match[str]) -> str:
        index = found["index"] or found["digit"]
        return words.get(index, "") if index else arguments

    text, placeholders = _PLACEHOLDER.subn(value, body)
    return text if placeholders or not words else f"{text}\n\nARGUMENTS: {arguments}"
