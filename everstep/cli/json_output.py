"""Output for programs: `--json` of the commands that read.

A list is one object per line, everything else one object on one line. The shapes are those of the HTTP API
where it has the same data; docs/json-output.md has the keys of each command.
"""

import json
from collections.abc import Iterable, Mapping
from typing import Any

import click
from pydantic import BaseModel

from everstep.agent_domain.values import json_text, thaw
from everstep.cli.printing import echo

json_option = click.option(
    "--json", "as_json", is_flag=True, help="Print JSON: one object, or for a list one per line."
)
"""`--json` of a command that reads."""


def print_json(data: BaseModel | Mapping[str, Any]) -> None:
    """Print an object on one line."""
    echo(json_line(data))


def print_json_lines(items: Iterable[BaseModel | Mapping[str, Any]]) -> None:
    """Print each object on a line of its own."""
    for item in items:
        print_json(item)


def json_data(model: BaseModel) -> dict[str, Any]:
    """A model as JSON data."""
    return model.model_dump(mode="json")


def json_line(data: BaseModel | Mapping[str, Any]) -> str:
    """An object on one line; characters that a terminal would interpret are escaped, so none is lost."""
    text = json_text(json_data(data) if isinstance(data, BaseModel) else thaw(data))
    if text.isprintable():
        return text
    # `json.dumps` writes those outside of the basic plane as two escapes, as JSON requires.
    return "".join(char if char.isprintable() else json.dumps(char)[1:-1] for char in text)
