"""The command that writes a new project."""

import json
import os
import shlex
from collections.abc import Iterable, Iterator, Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Final

import click

from everstep.agent_domain.errors import InvalidInput
from everstep.cli.command import command
from everstep.cli.printing import echo
from everstep.runtime.agents import BUILT_IN_PRESETS

TEMPLATES: Final = Path(__file__).parent / "project"

FILES: Final[Mapping[str, str]] = {
    "agents.py": "an agent with a tool",
    "test_agents.py": "its tests, in which a script plays the model",
    "everstep.toml": "settings: which agents, which models",
    "demo.yaml": "a script that plays the model until a key is set",
    "compose.yaml": "all processes in containers",
    ".env.example": "keys and secrets, to be copied to .env",
    ".gitignore": "keeps .env out of the repository",
    "README.md": "how to start, test and change it",
}
"""The files of a project, and what the command says of each."""

_DEMO: Final = "demo.yaml"

_PRESETS_OF_DEMO: Final = """
# The model of agents that name none: the provider whose key is set (OPENAI_API_KEY or ANTHROPIC_API_KEY),
# and this script while there is none.
[presets.demo]
scenario = "demo.yaml"
"""
_KEYS_OF_DEMO: Final = """\
Until a key is set, the script `demo.yaml` plays the model. For a real one, set `OPENAI_API_KEY` or
`ANTHROPIC_API_KEY` and start `everstep up` again. For any other, give the agent
`.with_model("openai-chat:NAME@URL")`."""
_KEYS_OF_MODEL: Final = """\
The agent asks the model `@MODEL@`, as `agents.py` says. A hosted model needs the key of its provider: set
`OPENAI_API_KEY` or `ANTHROPIC_API_KEY` before `everstep up`."""


@click.command()
@click.argument("path", type=click.Path(path_type=Path), default=Path())
@click.option(
    "--model",
    metavar="MODEL",
    help="The agent's model, such as openai:gpt-5.5; default: that of the provider whose key is set.",
)
@command
async def init(path: Path, model: str | None) -> None:
    """Write a new project: an agent with a tool, its tests and settings.

    PATH is its folder, by default this one; it may have other files. Existing files are never overwritten.
    """
    files = project_files(model)
    write_project(path, files)
    for line in _lines(path, files):
        echo(line)


def _lines(path: Path, files: Iterable[str]) -> Iterator[str]:
    """What the command says about a project that it has written."""
    folder = path.resolve()
    yield f"A new project is in {folder}:"
    yield ""
    for name in files:
        yield f"  {name:<15} {FILES[name]}"
    yield ""
    yield "Next:"
    yield ""
    if folder != Path.cwd():
        yield f"  cd {shlex.quote(str(path))}"
    yield "  everstep up --reload    starts everything, and reloads the agents when they change"
    yield "  pytest                  runs the tests"
    yield ""
    yield "In another terminal, in the same folder:"
    yield ""
    yield '  everstep run "What does it cost to ship 2 kg to Norway?"'


def project_files(model: str | None) -> dict[str, str]:
    """Return the contents of the files by name.

    Raises:
        InvalidInput: The model's name cannot be used.
    """
    if model is not None:
        # Refuse here what `everstep up` would refuse.
        BUILT_IN_PRESETS.resolve(model)
    values = {
        "@VERSION@": version("everstep"),
        "@PRESETS@": "" if model else _PRESETS_OF_DEMO,
        "@DEMO@": "" if model else f"| `{_DEMO}` | the script that plays the model until a key is set |\n",
        "@KEYS@": _KEYS_OF_MODEL if model else _KEYS_OF_DEMO,
        "@WITH_MODEL@": f"\n        .with_model({json.dumps(model, ensure_ascii=False)})" if model else "",
        # Last, as the text above has this mark.
        "@MODEL@": model or "",
    }
    return {name: _content(name, values) for name in FILES if model is None or name != _DEMO}


def _content(name: str, values: Mapping[str, str]) -> str:
    text = (TEMPLATES / f"{name.removeprefix('.')}.txt").read_text(encoding="utf-8")
    for mark, value in values.items():
        text = text.replace(mark, value)
    return f"{text.rstrip()}\n"


def write_project(folder: Path, files: Mapping[str, str]) -> None:
    """Write the files into a folder, which is created if there is none.

    Raises:
        InvalidInput: One of them exists; the message lists all that do, and nothing is written.
    """
    if os.path.lexists(folder) and not folder.is_dir():
        raise InvalidInput(f"{folder} is not a folder; name another one: everstep init PATH")
    if obstacles := list(_existing(folder, files)):
        raise InvalidInput(
            f"nothing is written, as {folder.resolve()} has these files already: {', '.join(obstacles)}. "
            "Move them away, or name another folder: everstep init PATH"
        )
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        # "x" never overwrites, even if the file was created after the check.
        with (folder / name).open("x", encoding="utf-8") as file:
            file.write(text)


def _existing(folder: Path, names: Mapping[str, str]) -> Iterator[str]:
    # A link that leads nowhere counts, too.
    return (name for name in names if os.path.lexists(folder / name))
