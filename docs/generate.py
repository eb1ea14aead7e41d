"""Writes the pages of `docs/reference/` that follow from the code: `make reference`.

A test compares them with what this would write, so that they cannot go stale.
"""

import ast
import inspect
import textwrap
from collections.abc import Iterable, Iterator, Mapping
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final, cast

import click

import everstep
from everstep.agent_domain.state import events
from everstep.agent_domain.stream import envelopes
from everstep.agent_domain.stream.envelopes import EnvelopeType
from everstep.cli.main import commands
from everstep.http_api.app import create_app
from everstep.http_api.metrics import Metrics
from everstep.runtime.settings import Settings

ROOT: Final = Path(__file__).parent
FOLDER: Final = ROOT / "reference"
NOTE: Final = "<!-- Written by `make reference`. Change the code, not this page. -->"

GROUPS: Final = {
    "Agents": ("agents", "everstep.agents", "everstep.inference.models"),
    "Running in-process": ("everstep.local",),
    "Tools": ("tools",),
    "Models": ("messages", "everstep.inference"),
    "Continuation, errors and the loop": ("loop",),
    "State, steps, snapshots and events": ("state",),
    "Capabilities": ("capabilities", "everstep.capabilities"),
    "Services: client, executions and sessions": ("storage", "everstep.client", "everstep.workflows", "ids"),
    "Watching": ("stream", "everstep.streams"),
    "Testing": ("testing", "everstep.testing"),
    "Errors": ("errors",),
    "Values": ("values", "result"),
}
"""The sections of the Python reference, and the modules whose public names they list."""


def page(title: str, *blocks: str) -> str:
    """A page of these blocks."""
    return "\n\n".join((NOTE, f"# {title}", *blocks)) + "\n"


def table(head: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    """A table in Markdown."""
    head = [*head]
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in row)} |" for row in lines)


def docstrings_of_fields(owner: type) -> dict[str, str]:
    """The docstring that follows each field of a class."""
    (definition,) = ast.parse(textwrap.dedent(inspect.getsource(owner))).body
    found: dict[str, str] = {}
    body = cast("ast.ClassDef", definition).body
    for field, text in pairwise(body):
        match field, text:
            case ast.AnnAssign(target=ast.Name(name)), ast.Expr(value=ast.Constant(value=str(said))):
                found[name] = inspect.cleandoc(said).replace("\n", " ")
            case _:
                pass
    return found


def settings() -> str:
    """Each setting: its variable, its key in everstep.toml, its default and what it means."""
    meanings = docstrings_of_fields(Settings)
    missing = Settings.model_fields.keys() - meanings.keys()
    if missing:
        raise LookupError(f"give these settings a docstring: {sorted(missing)}")
    blocks = [
        f"## {name}\n\nVariable `{_variable(name, field)}` · "
        f"default {_default(field.get_default(call_default_factory=True))}\n\n{meanings[name]}"
        for name, field in Settings.model_fields.items()
    ]
    return page(
        "Settings",
        "Read once when a process starts. From the strongest to the weakest: arguments of the command, "
        "variables of the environment, `everstep.toml` in the current folder, defaults. The headings are the "
        "keys in `everstep.toml`. Lists are written in a variable with commas, in `everstep.toml` as lists.",
        *blocks,
    )


def _variable(name: str, field: Any) -> str:
    choices = getattr(field.validation_alias, "choices", ())
    return "`, `".join(each for each in choices if str(each).isupper()) or f"EVERSTEP_{name.upper()}"


def _default(value: object) -> str:
    match value:
        case None:
            return "none"
        case () | {}:
            return "empty"
        case _:
            return f"`{value}`"


def commands_of(
    command: click.Command, name: str, parent: click.Context | None = None
) -> Iterator[tuple[str, str]]:
    """Each command with its `--help`."""
    settings: dict[str, Any] = {**command.context_settings, "max_content_width": 100, "terminal_width": 100}
    context = click.Context(command, info_name=name.rsplit(maxsplit=1)[-1], parent=parent, **settings)
    yield name, command.get_help(context)
    if isinstance(command, click.Group):
        for below in command.list_commands(context):
            found = command.get_command(context, below)
            if found is not None:
                yield from commands_of(found, f"{name} {below}", context)


def cli() -> str:
    """Each command as `--help` shows it."""
    blocks = [f"## {name}\n\n```text\n{text}\n```" for name, text in commands_of(commands, "everstep")]
    return page("Commands", "What `--help` says of each.", *blocks)


def http() -> str:
    """Each operation of the HTTP API, and the schemas of what crosses it."""
    state: Any = SimpleNamespace(allowed_origins=(), allowed_hosts=(), metrics=Metrics())
    document = create_app(state).openapi()
    blocks: list[str] = [
        "A running API has the same at `/docs`, to try, and at `/openapi.json`. "
        "[Sessions over HTTP](../http-api.md) explains how the operations work together.",
    ]
    for path, operations in document["paths"].items():
        for method, operation in operations.items():
            blocks.append(f"## {method.upper()} {path}")
            blocks.append(operation.get("description") or operation["summary"])
            if rows := [_parameter(each) for each in operation.get("parameters", ())]:
                blocks.append(table(("parameter", "in", "meaning"), rows))
            if body := operation.get("requestBody"):
                blocks.append(f"Body: {_schema(body)}")
            rows = [
                (code, _schema(answer), answer["description"])
                for code, answer in operation["responses"].items()
            ]
            blocks.append(table(("status", "body", "when"), rows))
    blocks.append("## Schemas")
    for name, schema in sorted(document["components"]["schemas"].items()):
        blocks.append(f"### {name}")
        if text := schema.get("description"):
            blocks.append(text)
        if "enum" in schema:
            blocks.append(", ".join(f"`{value}`" for value in schema["enum"]))
        required = schema.get("required", ())
        rows = [
            (f"`{field}`", _type(value), "yes" if field in required else "", value.get("description", ""))
            for field, value in schema.get("properties", {}).items()
        ]
        if rows:
            blocks.append(table(("field", "type", "required", "meaning"), rows))
    return page("HTTP operations", *(_one_paragraph(block) for block in blocks))


def _one_paragraph(block: str) -> str:
    return block if block.startswith("|") else " ".join(block.split())


def _parameter(parameter: Mapping[str, Any]) -> tuple[str, str, str]:
    meaning = parameter.get("description") or _type(parameter["schema"])
    return f"`{parameter['name']}`", parameter["in"], " ".join(meaning.split())


def _schema(holder: Mapping[str, Any]) -> str:
    kinds = [_type(content.get("schema", {})) for content in holder.get("content", {}).values()]
    return ", ".join(kind for kind in kinds if kind) or "none"


def _type(schema: Mapping[str, Any]) -> str:
    match schema:
        case {"$ref": str(ref)}:
            name = ref.rpartition("/")[2]
            return f"[{name}](#{name.lower()})"
        case {"anyOf": options}:
            return " or ".join(_type(option) for option in options)
        case {"type": "array", "items": items}:
            return f"list of {_type(items)}"
        case {"type": str(kind)}:
            return f"{kind} ({schema['format']})" if "format" in schema else kind
        case _:
            return f"`{schema['const']}`" if "const" in schema else "any"


def event_pages() -> str:
    """The envelopes that viewers get, and the events of an in-process run."""
    payloads = dict(_payloads())
    rows = [(f"`{kind}`", ", ".join(f"`{key}`" for key in payloads[kind.name])) for kind in EnvelopeType]
    fields = [(f"`{name}`", text) for name, text in docstrings_of_fields(envelopes.Envelope).items()]
    blocks = [
        "## Envelopes",
        "An envelope is what a viewer gets over any wire, and what the table of envelopes stores. "
        "[Streaming](../streaming.md) says in which order they come.",
        table(("field", "meaning"), fields) if fields else "",
        "The keys of `payload` for each `type`; some are there only when they have a value:",
        table(("type", "payload"), rows),
        "## Events",
        "Listeners of an in-process run (`agent.on_event(kind, function)`) get these, in this order.",
    ]
    for name, kind in vars(events).items():
        if isinstance(kind, type) and issubclass(kind, events.Event) and kind.__module__ == events.__name__:
            texts = docstrings_of_fields(kind)
            names = [each for each in inspect.get_annotations(kind) if each != "keys"]
            rows = [(f"`{each}`", texts.get(each, "")) for each in names]
            blocks += [f"### {name}", inspect.getdoc(kind) or "", table(("attribute", "meaning"), rows)]
    return page("Events", *(block for block in blocks if block))


def _payloads() -> Iterator[tuple[str, list[str]]]:
    """The keys that each function of the module of envelopes writes, by the type that it makes."""
    module = ast.parse(inspect.getsource(envelopes))
    for function in module.body:
        if not isinstance(function, ast.FunctionDef):
            continue
        kinds = [
            node.attr
            for node in ast.walk(function)
            if isinstance(node, ast.Attribute) and getattr(node.value, "id", "") == "EnvelopeType"
        ]
        keys = [
            key.value
            for node in ast.walk(function)
            if isinstance(node, ast.Dict)
            for key in node.keys
            if isinstance(key, ast.Constant) and isinstance(key.value, str)
        ]
        yield from ((kind, list(dict.fromkeys(keys))) for kind in kinds)


def python() -> str:
    """Every public name, in sections, for Sphinx to fill from docstrings."""
    names: dict[str, list[str]] = {title: [] for title in GROUPS}
    for name in sorted(vars(everstep)["__all__"]):
        names[_group(name)].append(name)
    blocks = [
        "Everything that `everstep` exports. The site shows signatures and docstrings here; names that are "
        "not listed may change at any time.",
    ]
    for title, members in names.items():
        blocks.append(f"## {title}")
        directives = "\n".join(f".. {_directive(name)}:: everstep.{name}" for name in members)
        blocks.append(f"```{{eval-rst}}\n{directives}\n```")
    return page("Python names", *blocks)


def _group(name: str) -> str:
    module = vars(everstep)["_MODULE_OF"][name]
    inside = module.removeprefix("everstep.agent_domain.")
    found = [
        (len(prefix), title)
        for title, prefixes in GROUPS.items()
        for prefix in prefixes
        if inside == prefix or inside.startswith(f"{prefix}.")
    ]
    if not found:
        raise LookupError(f"name a section for {module} in GROUPS: {name}")
    return max(found)[1]


def _directive(name: str) -> str:
    value = getattr(everstep, name)
    if inspect.isclass(value):
        return "autoexception" if issubclass(value, BaseException) else "autoclass"
    return "autofunction" if inspect.isroutine(value) else "autodata"


PAGES: Final = {
    "settings.md": settings,
    "cli.md": cli,
    "http.md": http,
    "events.md": event_pages,
    "python.md": python,
}


def main() -> None:
    """Write all pages."""
    FOLDER.mkdir(exist_ok=True)
    for name, write in PAGES.items():
        (FOLDER / name).write_text(write(), encoding="utf-8")


if __name__ == "__main__":
    main()
