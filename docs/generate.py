"""Writes the pages of `docs/reference/` that follow from the code: `make reference`.

A test compares them with what this would write, so that they cannot go stale.
"""

import ast
import hashlib
import inspect
import json
import textwrap
from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import UTC, datetime
from decimal import Decimal
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final, cast
from uuid import UUID

import click

import everstep
from everstep.agent_domain.attachments import Attachment
from everstep.agent_domain.capabilities.approvals import ApprovalDecision, Verdict, args_digest
from everstep.agent_domain.capabilities.questions import Question
from everstep.agent_domain.capabilities.rights import Decider, DecisionPolicy
from everstep.agent_domain.loop.continuation import (
    ContinuationDecision,
    ContinuationEvaluation,
    ContinuationOutcome,
)
from everstep.agent_domain.loop.status import StopReason, WireStatus
from everstep.agent_domain.loop.usage import Usage
from everstep.agent_domain.state import events
from everstep.agent_domain.stream import envelopes
from everstep.agent_domain.stream.envelopes import Attempt, EnvelopeType
from everstep.agent_domain.stream.records import EventRecord
from everstep.agent_domain.values import thaw
from everstep.cli.main import commands
from everstep.http_api.app import create_app
from everstep.http_api.metrics import Metrics
from everstep.runtime.settings import Settings

ROOT: Final = Path(__file__).parent
FOLDER: Final = ROOT / "reference"
NOTE: Final = "<!-- Written by `make reference`. Change the code, not this page. -->"

GROUPS: Final = {
    "Agents": ("agents", "everstep.agents", "everstep.inference.models"),
    "Running in-process": ("everstep.local", "everstep.runtime.builder"),
    "Tools": ("tools", "everstep.steps", "loop.run_context"),
    "Models": ("messages", "pricing", "everstep.inference"),
    "Files in messages": ("attachments", "media_types", "everstep.steps.attachments", "storage.attachments"),
    "Continuation, errors and the loop": ("loop",),
    "State, steps, snapshots and events": ("state",),
    "Capabilities": ("capabilities", "everstep.capabilities"),
    "Services: client, executions and sessions": (
        *("storage", "everstep.client", "everstep.workflows", "ids"),
        "everstep.runtime.service_client",
    ),
    "Explanations": ("explanation", "what_if"),
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
        "Each process reads its settings once, when it starts. A setting is taken from the first of these "
        "that has it: the command's arguments, the environment, `everstep.toml` in the current folder, the "
        "default. An empty variable counts as not set. The headings are the keys of `everstep.toml`. "
        "A list is written with commas in a variable, "
        "and as a list in `everstep.toml`:",
        '```toml\nagents = ["agents:agents"]\npreset = "mini"\n\n[presets.mini]\ndriver = "openai"\n'
        'model = "gpt-5.4-mini"\n```',
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
    """The envelopes that viewers receive, and the events of an in-process run."""
    fields = docstrings_of_fields(envelopes.Envelope)
    blocks = [
        "## Envelopes",
        "An envelope is an event in the form in which viewers receive it, over every protocol, and in which "
        "it is stored. [Streaming](../streaming.md) explains their order. For example:",
        _json(_envelope(_sample(envelopes.step_started_record)).to_dict()),
        table(("field", "meaning"), ((f"`{name}`", fields[name]) for name in _envelope_fields())),
        "## Payloads",
        "The `payload` of each type with all possible keys. Ignore types and keys that you do not know.",
        *(block for kind in EnvelopeType for block in _payload_blocks(kind)),
        "### Keys of payloads",
        table(("key", "meaning"), ((f"`{key}`", text) for key, text in _meanings_of_keys())),
        "## Events",
        "Listeners of an in-process run (`agent.on_event(kind, function)`) receive these. All of "
        "them have these attributes:",
        _attributes(events.Event),
    ]
    for name, kind in vars(events).items():
        if isinstance(kind, type) and issubclass(kind, events.Event) and kind is not events.Event:
            blocks += [f"### {name}", inspect.getdoc(kind) or "", _attributes(kind)]
    return page("Events", *blocks)


def _attributes(kind: type) -> str:
    texts = docstrings_of_fields(kind)
    names = [each for each in inspect.get_annotations(kind) if each != "keys"]
    if missing := [name for name in names if name not in texts]:
        raise LookupError(f"give these attributes of {kind.__name__} a docstring: {missing}")
    return table(("attribute", "meaning"), ((f"`{each}`", texts[each]) for each in names))


def _json(value: object) -> str:
    return f"```json\n{json.dumps(thaw(value), indent=2, ensure_ascii=False)}\n```"


EXECUTION: Final = UUID("0192f3a1-7c44-7e10-9d2b-5d7c0e9b1a34")
REQUEST: Final = UUID("0192f3a1-9b02-7a6f-8c1e-2f44d1c7a590")
MOMENT: Final = datetime(2026, 11, 18, 9, 30, 12, 345000, tzinfo=UTC)
BOOKING: Final = {"train": "8:25"}
OUTCOME: Final = ContinuationOutcome(
    ContinuationDecision.REQUEST,
    should_continue=True,
    resolved_by="ToolCallPresenceCheck",
    stop_reason=StopReason.COMPLETED,
    evaluations=(
        ContinuationEvaluation(
            "ToolCallPresenceCheck",
            ContinuationDecision.REQUEST,
            "ToolCallPresenceCheck has work for another step",
        ),
    ),
)
ARGUMENTS: Final[Mapping[str, Any]] = {
    "status": WireStatus.COMPLETED,
    "previous": WireStatus.PROCESSING,
    "change": 1,
    "step_count": 2,
    "error_message": None,
    "last_response": "Your train is booked.",
    "assistant_name": "travel-desk",
    "output": {"response": '{"train":"8:25"}', "stop_reason": "completed", "data": {"train": "8:25"}},
    "step_number": 1,
    "message_count": 2,
    "available_tools": ("book_train",),
    "has_tool_calls": True,
    "errors": 0,
    "finish_reason": "tool_calls",
    "usage": Usage(120, 18),
    "duration_ms": 812.4,
    "outcome": OUTCOME,
    "because": "went on: the model called 1 tool: book_train",
    "trace": True,
    "tool_call_id": "call_1",
    "tool": "book_train",
    "args": BOOKING,
    "max_arg_length": 500,
    "success": True,
    "error": None,
    "result": "Seat 42 is yours",
    "attempt": Attempt(2, 1),
    "index": 0,
    "content": "Your train",
    "is_complete": False,
    "after_seq": 9,
    "next_index": 3,
    "next_attempt": 2,
    "request_id": REQUEST,
    "question": Question("Which day suits you?", ("Thursday", "Friday")),
    "expires_at": None,
    "source": envelopes.InputSource.USER,
    "message_id": REQUEST,
    "decision": ApprovalDecision(
        decision=Verdict.APPROVE, args_digest=args_digest("book_train", BOOKING), remember=True
    ),
    "by": Decider("ben", MOMENT, ("approve",)),
    "policy": DecisionPolicy(),
    "detail": "provider unavailable, next attempt in 2 s",
    "next_attempt_at": MOMENT,
    "attachments": (
        Attachment(REQUEST, "ticket.pdf", "application/pdf", 48213, hashlib.sha256().hexdigest()),
    ),
    "cost_usd": Decimal("0.00114"),
}
"""An example of each argument of the functions that build the records of envelopes."""

MEANINGS: Final[Mapping[str, str]] = {
    "after_seq": "the stored envelope that the text follows",
    "approver": "who may decide, any of these: `owner`, `scope:NAME`, `role:NAME`",
    "args": "the arguments of the call; `agent.tool.started` has them with `BroadcastConfig.debug()` only",
    "args_digest": "the digest of tool and arguments, which a decision has to repeat",
    "args_summary": "the arguments as one short text",
    "attachments": "the files that the call returned, if there are any",
    "assistant_name": "the name of the agent",
    "attempt": "the attempt of the model call that wrote the text, from 1",
    "available_tools": "the names of the tools that the model may call",
    "available_tools_count": "their number",
    "because": "why another step follows or none does, in [one sentence](../because.md)",
    "choices": "the allowed answers; empty: any text, or an answer that fits `schema`",
    "chunk_index": "the position of the chunk in its attempt, from 0",
    "content": "the text of the chunk; in a snapshot, all text so far",
    "continuation": "the decision after the step, only with `BroadcastConfig.debug()`",
    "cost_usd": "what the step cost, or in the last `agent.status` the execution, in dollars; if it is known",
    "decision": "`approve`, `deny` or `edit`",
    "decided_by": "who decided or answered, with the rights that this used; only if a caller did",
    "detail": "why the model call is delayed, or what a compaction did; only then",
    "duration_ms": "the duration in milliseconds",
    "error": "the error, as viewers may read it; null on success",
    "error_message": "the error that ended the execution, as viewers may read it",
    "errors": "the number of errors in the step",
    "evaluations": "the vote of every criterion: its name, its decision, its reason",
    "expires_at": "when the question stops waiting, or the call is denied; null: never",
    "four_eyes": "whether the user of the execution may not decide",
    "finish_reason": "why the model stopped writing",
    "has_tool_calls": "whether the model called tools",
    "is_complete": "true in the last chunk of an attempt, whose `content` is empty",
    "last_response": "the last text of the agent",
    "message_count": "the number of messages that the model reads",
    "message_id": "the message of the session that contains the answer",
    "next_attempt": "the attempt that replaces this one",
    "next_attempt_at": "when the delayed model call is tried again",
    "next_index": "the `chunk_index` of the next chunk",
    "output": "`response`, `stop_reason` and the structured result as `data`, only if the execution has one",
    "previous_status": "the status before",
    "prompt": "the question",
    "reason": "the reason that the person gave",
    "remember": "which later calls are approved too: `true` for all of the tool, or globs for its arguments",
    "request_id": "the id of the question or approval",
    "resolved_by": "the criterion that decided",
    "result_summary": "the result as one short text",
    "schema": "the JSON schema of the answer, or null",
    "should_continue": "whether another step follows",
    "source": "`user`, or `default` if the default answer was used",
    "status": "`idle`, `processing`, `paused`, `completed`, `stopped`, `failed` or `cancelled`",
    "step_count": "the number of completed steps",
    "step_number": "the number of the step, from 1",
    "stop_reason": "why the execution stops, if it does",
    "success": "whether the call succeeded",
    "tool_call_id": "the id of the call",
    "tool_name": "the name of the tool",
    "usage": "the tokens of the step",
}
"""The meaning of each key of a payload."""


def _builders() -> Iterator[Callable[..., EventRecord]]:
    """The functions that build the records of envelopes."""
    for name, function in vars(envelopes).items():
        if name.endswith("_record") and not name.startswith("_"):
            yield function


def _sample(function: Callable[..., EventRecord]) -> EventRecord:
    """The record that a function builds of the examples, with all of its optional keys."""
    names = inspect.signature(function).parameters
    if missing := names.keys() - ARGUMENTS.keys():
        raise LookupError(f"give these arguments of {function.__name__} an example in ARGUMENTS: {missing}")
    return function(**{name: ARGUMENTS[name] for name in names})


def _envelope(record: EventRecord) -> envelopes.Envelope:
    envelope = envelopes.Envelope.of(record, None, EXECUTION, MOMENT)
    return envelope if envelope.is_ephemeral else envelope.numbered(2)


def _envelope_fields() -> Iterable[str]:
    return _envelope(_sample(envelopes.step_started_record)).to_dict()


def _payload_blocks(kind: EnvelopeType) -> Iterator[str]:
    """The payload of a type: an example from each function that builds one."""
    yield f"### {kind}"
    samples = [(function, _sample(function)) for function in _builders()]
    found = [(function, record) for function, record in samples if record.type == kind]
    if not found:
        raise LookupError(f"no function of {envelopes.__name__} builds {kind}")
    for function, record in found:
        # The first sentence; further ones explain arguments.
        yield (inspect.getdoc(function) or "").partition("\n")[0].partition(". ")[0].rstrip(".") + "."
        yield _json(record.payload)


def _meanings_of_keys() -> list[tuple[str, str]]:
    keys = {key for function in _builders() for key in _sample(function).payload}
    if keys != MEANINGS.keys():
        raise LookupError(f"bring MEANINGS up to date: {sorted(keys ^ MEANINGS.keys())}")
    return sorted(MEANINGS.items())


def python() -> str:
    """Every public name, in sections, for Sphinx to fill from docstrings."""
    names: dict[str, list[str]] = {title: [] for title in GROUPS}
    for name in sorted(vars(everstep)["__all__"]):
        names[_group(name)].append(name)
    blocks = [
        "Everything that `everstep` exports; other names may change at any time. To begin, you need "
        "`AgentBuilder`, `tool` and `ToolContext`, `ToolCallingDriver` with a `ScriptedModel` for tests, "
        "`ErrorPolicy`, and `Client` in a service. The site shows signatures and docstrings here.",
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
