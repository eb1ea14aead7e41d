"""Tools that a model may call, its calls, and their results."""

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from enum import Enum, StrEnum
from types import NoneType
from typing import Any, Final, Protocol, Self, cast, runtime_checkable
from uuid import UUID

from pydantic import BaseModel
from pydantic_core import to_jsonable_python

from everstep.agent_domain.attachments import Attachment
from everstep.agent_domain.errors import InvalidInput, UnknownName, unknown_name_text
from everstep.agent_domain.ids import artifact_id
from everstep.agent_domain.loop.run_context import RunContext
from everstep.agent_domain.loop.step_error import StepError
from everstep.agent_domain.loop.step_facts import CallNeed
from everstep.agent_domain.nearest import did_you_mean
from everstep.agent_domain.tools.artifacts import Artifacts
from everstep.agent_domain.tools.cancellation import Cancellation
from everstep.agent_domain.tools.inquiry import AskModel, refuse_model_call
from everstep.agent_domain.tools.progress import Progress, ReportProgress, ignore_progress
from everstep.agent_domain.tools.resources import NO_RESOURCES, Resources
from everstep.agent_domain.tools.tool_logger import SilentLogger, ToolLogger
from everstep.agent_domain.values import (
    DOCUMENT_DEPTH,
    EMPTY,
    FrozenDict,
    FrozenList,
    format_optional_moment,
    freeze,
    frozen_map,
    json_text,
    parse_json,
    parse_optional_moment,
    read_each,
    read_key,
    read_optional,
)


class Effect(StrEnum):
    """How to treat a call when it is unknown if an attempt had its effect."""

    IDEMPOTENT = "idempotent"
    """Run it again, with the same idempotency key."""
    AT_MOST_ONCE = "at_most_once"
    """Never run it again; the model reads that the effect is unknown."""


@dataclass(frozen=True, slots=True)
class ToolContext:
    """The context of a tool call; `execution_id` and `tool_call_id` form its idempotency key."""

    execution_id: UUID
    tool_call_id: str
    step_number: int
    metadata: FrozenDict = EMPTY
    """The agent's metadata at the beginning of the step."""
    tenant_id: str = "default"
    earlier: tuple["ToolCall", ...] = ()
    """The calls before this one in the same response, unchanged."""
    ask: AskModel = field(default=refuse_model_call, compare=False)
    """Calls a model; the usage is added to the execution."""
    user_id: str | None = None
    """The user of the execution; None if its service named none."""
    session_id: UUID | None = None
    related_type: str | None = None
    """The type of the object that the request is about: the message's, or else its session's."""
    related_id: str | None = None
    request_metadata: FrozenDict = EMPTY
    """The metadata that the service sent with the request; neither models nor tools can change them."""
    attempt: int = 1
    """The number of this attempt of the call, from 1."""
    logger: ToolLogger = field(default_factory=SilentLogger, compare=False, repr=False)
    """Logs with the ids of the call; silent in a context that a program makes itself."""
    cancellation: Cancellation = field(default_factory=Cancellation, compare=False, repr=False)
    resources: Resources = field(default=NO_RESOURCES, compare=False, repr=False)
    """The objects that `@resource` functions made for the worker or the run: `context.resources[orders]`."""
    artifacts: Artifacts = field(default_factory=Artifacts, compare=False, repr=False)
    """The files that the call has attached so far."""
    report: ReportProgress = field(default=ignore_progress, compare=False, repr=False)
    """Receives what `progress` says."""

    def progress(self, text: str = "", fraction: float | None = None) -> None:
        """Say how far the call is; viewers see it about once a second. `fraction` goes from 0 to 1."""
        self.report(Progress(text, fraction))

    @property
    def is_cancelled(self) -> bool:
        """Whether the result is no longer awaited: the execution was cancelled, or the time limit is over.

        A coroutine is cancelled itself. A plain function runs in a thread, which cannot be stopped: one that
        takes long should look here and return.
        """
        return self.cancellation.is_requested

    def attach(self, name: str, data: bytes | str, media_type: str | None = None) -> Attachment:
        """Return a file to the user, together with the result of the call; a failed call returns none.

        A second file with the same name replaces the first one.

        Args:
            name: The name of the file, without a path.
            data: The content; a text is written as UTF-8.
            media_type: The type; found in the content by default.

        Raises:
            InvalidInput: The file cannot be attached; the message says why.
        """
        new_id = artifact_id(self.execution_id, self.tool_call_id, name)
        return self.artifacts.add(new_id, name, data, media_type)

    def for_run(self, run: RunContext) -> Self:
        """A copy with the user and the request of the execution."""
        return replace(
            self,
            tenant_id=run.tenant_id,
            user_id=run.user_id,
            session_id=run.session_id,
            related_type=run.related_type,
            related_id=run.related_id,
            request_metadata=run.request_metadata,
        )


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A call as the model made it; `malformed` holds its arguments if they were not a JSON object."""

    id: str
    name: str
    args: FrozenDict = EMPTY
    malformed: str | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "args", frozen_map(self.args, f"the arguments of {self.name}"))

    @classmethod
    def from_text(cls, call_id: str, name: str, arguments: str) -> "ToolCall":
        """Read the arguments as the provider sent them; empty text means none."""
        try:
            args = parse_json(arguments or "{}")
        except InvalidInput:
            return cls(call_id, name, malformed=arguments)
        return (
            cls(call_id, name, args)
            if isinstance(args, FrozenDict)
            else cls(call_id, name, malformed=arguments)
        )

    @property
    def arguments(self) -> FrozenDict | str:
        """The arguments for the conversation: the object, or the malformed text."""
        return self.args if self.malformed is None else self.malformed

    def to_dict(self) -> dict[str, Any]:
        """Convert to JSON data."""
        return {"id": self.id, "name": self.name, "args": self.args, "malformed": self.malformed}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> "ToolCall":
        """Read the JSON form; unknown keys are ignored."""
        args = read_optional(data, "args", frozen_map) or EMPTY
        return cls(read_key(data, "id", str), read_key(data, "name", str), args, data.get("malformed"))


@dataclass(frozen=True, slots=True)
class ToolResult:
    """A tool's return value that also changes the agent's metadata, after the step."""

    value: Any
    metadata: FrozenDict = EMPTY
    text: str = ""
    """The text that the model reads instead of the value, if not empty."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "metadata", frozen_map(self.metadata, "metadata"))


@dataclass(frozen=True, slots=True)
class ToolExecution:
    """A call with its one result: a value, or an error."""

    call: ToolCall
    result: Any = None
    error: StepError | None = None
    started_at: datetime | None = None
    completed_at: datetime | None = None
    note: str = ""
    """A text that the model reads before the result, such as that a person changed the arguments."""
    told: str = ""
    """The text that the model reads instead of the result or the error message, if not empty."""
    metadata: FrozenDict = EMPTY
    """Changes to the agent's metadata, made after the step."""
    decision: FrozenDict = EMPTY
    """What people decided about the call: `decision` and `decided_by`; empty if they were not asked."""
    attachments: tuple[Attachment, ...] = ()
    """The files that the tool returned; with their content in-process."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "result", _frozen_result(self.result))

    def to_dict(self) -> dict[str, Any]:
        """Convert to JSON data."""
        return {
            "call": self.call.to_dict(),
            "result": result_value(self.result, self.call.name),
            "error": self.error.to_dict() if self.error else None,
            "startedAt": format_optional_moment(self.started_at),
            "completedAt": format_optional_moment(self.completed_at),
            "note": self.note,
            "told": self.told,
            **({"decision": self.decision} if self.decision else {}),
            **({"attachments": [each.to_dict() for each in self.attachments]} if self.attachments else {}),
        }

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> "ToolExecution":
        """Read the JSON form; unknown keys are ignored."""
        return cls(
            read_key(data, "call", ToolCall.from_dict),
            data.get("result"),
            read_optional(data, "error", StepError.from_dict),
            parse_optional_moment(data.get("startedAt"), "startedAt"),
            parse_optional_moment(data.get("completedAt"), "completedAt"),
            str(data.get("note") or ""),
            str(data.get("told") or ""),
            decision=frozen_map(data.get("decision") or EMPTY, "decision"),
            attachments=read_each(data, "attachments", Attachment.from_dict),
        )

    @property
    def has_error(self) -> bool:
        """Whether the call failed."""
        return self.error is not None

    @property
    def text(self) -> str:
        """The text that the model reads."""
        if self.error:
            return f"{self.note}Error: {self.told or self.error.message}"
        return self.note + (self.told or result_text(self.result))

    @property
    def seconds(self) -> float:
        """The duration of the call in seconds."""
        if self.started_at is None or self.completed_at is None:
            return 0.0
        return (self.completed_at - self.started_at).total_seconds()


def _frozen_result(result: object) -> object:
    """Freeze lists and maps; those that are not plain JSON are kept unchanged."""
    if not isinstance(result, list | dict) or isinstance(result, FrozenList | FrozenDict):
        return cast("object", result)
    try:
        return freeze(cast("object", result), depth=-DOCUMENT_DEPTH)
    except InvalidInput:
        return cast("object", result)


def result_value(result: object, tool: str = "the tool") -> Any:
    """Convert a result to JSON that can be stored; an object with a `__str__` of its class becomes that text.

    Raises:
        InvalidInput: The result has no JSON form.
    """
    where = f"the result of {tool}"
    if _has_text_form(result):
        return freeze(str(result), where)
    try:
        plain = to_jsonable_python(result)
    except ValueError:  # no JSON form, bytes that are not text, or a value inside itself
        raise InvalidInput(
            f"{where} is of type {type(result).__name__}, which cannot be stored as JSON; "
            "return text, numbers, lists, maps, a dataclass or a pydantic model"
        ) from None
    return freeze(plain, where)


def _has_text_form(result: object) -> bool:
    """Whether the class defines a text form; plain JSON and pydantic models do not count."""
    if isinstance(
        result,
        NoneType
        | bool
        | int
        | float
        | bytes
        | bytearray
        | list
        | tuple
        | Mapping
        | set
        | frozenset
        | BaseModel
        | Enum,
    ):
        return False
    return type(result).__str__ is not object.__str__


def result_text(result: object) -> str:
    """A tool's result as the model reads it."""
    value = result_value(result)
    return value if isinstance(value, str) else json_text(value)


@runtime_checkable
class Tool(Protocol):
    """A tool that an agent can call. `call` may be a coroutine function; its exceptions fail the call."""

    @property
    def name(self) -> str:
        """The name under which models call it."""
        ...

    @property
    def description(self) -> str:
        """The description that the model reads."""
        ...

    @property
    def schema(self) -> Mapping[str, Any]:
        """The JSON schema of the arguments, an object."""
        ...

    def call(self, args: dict[str, Any], context: ToolContext) -> Any:
        """Run the tool."""
        ...


@runtime_checkable
class CanRefuse(Protocol):
    """A tool that can refuse a call by its arguments, before the call runs."""

    def refusal(self, args: Mapping[str, Any]) -> str | None:
        """The reason to refuse these arguments, as the model reads it, or None."""
        ...


@runtime_checkable
class HandlesUnstorableText(Protocol):
    """A tool with its own result for arguments that contain text which cannot be stored."""

    def unstorable(self, args: Mapping[str, Any]) -> str | None:
        """The result of such a call, which does not run; None for the default."""
        ...


MAX_SECONDS: Final = 100 * 365 * 24 * 3600
"""A hundred years: some libraries fail on durations beyond three hundred years, in the middle of a run."""


QUICK_SECONDS: Final = 5.0
"""A tool that is declared quick fails if it takes longer."""


@dataclass(frozen=True, slots=True)
class ToolOptions:
    """How the runtime treats a tool; a tool declares them in an attribute `options`."""

    quick: bool = False
    """Returns at once and needs no heartbeat: it runs as a local activity."""
    effect: Effect = Effect.IDEMPOTENT
    timeout_seconds: float | None = None
    need: CallNeed = CallNeed.RUN
    """The action that a call waits for, such as an approval."""
    wait_seconds: float | None = None
    """How long to wait for a person's answer; None for no limit."""

    def __post_init__(self) -> None:
        for name in ("timeout_seconds", "wait_seconds"):
            seconds = getattr(self, name)
            if seconds is not None and not (isinstance(seconds, int | float) and seconds > 0):
                raise InvalidInput(f"{name} must be a number greater than zero; leave it out for no limit")
            if seconds is not None and seconds > MAX_SECONDS:
                raise InvalidInput(f"{name} must be at most {MAX_SECONDS}; leave it out for no limit")
        if self.effect not in frozenset(Effect):
            hint = did_you_mean(str(self.effect), Effect)
            raise InvalidInput(f"{self.effect!r} is not an effect; use one of: {', '.join(Effect)}{hint}")


def as_options(given: object) -> ToolOptions:
    """Return the options; None means the defaults."""
    if given is None:
        return ToolOptions()
    if not isinstance(given, ToolOptions):
        raise InvalidInput(f"the options of a tool are {given!r}; pass ToolOptions(...)")
    return given


def options_of(tool: Tool) -> ToolOptions:
    """The options that the tool declares, or the defaults."""
    options = getattr(tool, "options", None)
    return options if isinstance(options, ToolOptions) else ToolOptions()


def tool_schema(tool: Tool) -> dict[str, Any]:
    """The tool's description for models, with the schema of its arguments."""
    own = getattr(tool, "to_tool_schema", None)
    if own is not None:
        return own()
    function = {"name": tool.name, "description": tool.description, "parameters": tool.schema}
    return {"type": "function", "function": function}


@dataclass(frozen=True, slots=True)
class Toolbox:
    """Tools by name, in the order of addition; a tool replaces an earlier one with its name."""

    tools: FrozenDict = EMPTY

    @classmethod
    def of(cls, tools: Iterable[Tool]) -> "Toolbox":
        """Make a toolbox of these tools."""
        return cls().merged(tools)

    def merged(self, tools: Iterable[Tool]) -> "Toolbox":
        """A copy with these tools added.

        Raises:
            InvalidInput: Two of the added tools have the same name.
        """
        added: dict[str, Tool] = {}
        for tool in tools:
            if tool.name in added:
                raise InvalidInput(f"two tools are named '{tool.name}'; rename one of them")
            added[tool.name] = tool
        return Toolbox(FrozenDict({**self.tools, **added}))

    def __iter__(self) -> Iterator[Tool]:
        return iter(self.tools.values())

    def __len__(self) -> int:
        return len(self.tools)

    @property
    def names(self) -> tuple[str, ...]:
        """The names, in order."""
        return tuple(self.tools)

    def get(self, name: str) -> Tool:
        """The tool with that name; raises `UnknownName` if there is none."""
        if name not in self.tools:
            raise UnknownName("tool", name, self.names)
        return self.tools[name]

    def refusal(self, call: ToolCall) -> str | None:
        """The reason why the call cannot run, as the model reads it, or None."""
        if call.name not in self.tools:
            return unknown_name_text("tool", call.name, self.names)
        if call.malformed is not None:
            return "Pass the arguments as a JSON object"
        tool = self.get(call.name)
        missing = missing_arguments(tool.schema, call.args)
        if missing is not None:
            return missing
        # Not `isinstance`, which takes longer than all the rest: each call is examined several times.
        refuse: Callable[[Mapping[str, Any]], str | None] | None = getattr(tool, "refusal", None)
        return None if refuse is None else refuse(call.args)

    def explained(self, call: ToolCall) -> str | None:
        """The result that the tool itself gives to a call that cannot run, or None.

        A JSON object that contains a NUL character, or half of a surrogate pair, counts as malformed.
        """
        if call.malformed is None or call.name not in self.tools:
            return None
        tool = self.get(call.name)
        if not isinstance(tool, HandlesUnstorableText):
            return None
        try:
            args: object = json.loads(call.malformed)
        except (ValueError, RecursionError):
            return None
        return tool.unstorable(cast("dict[str, Any]", args)) if isinstance(args, dict) else None

    @property
    def schemas(self) -> tuple[dict[str, Any], ...]:
        """The descriptions of all tools for models."""
        return tuple(tool_schema(tool) for tool in self)


def missing_arguments(schema: Mapping[str, Any], args: Mapping[str, Any]) -> str | None:
    """The error text about missing required arguments, or None; null counts as given."""
    missing = [name for name in schema.get("required") or () if name not in args]
    return f"Required arguments are missing: {', '.join(missing)}" if missing else None
