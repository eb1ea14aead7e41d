"""Python functions as tools: the schema comes from the signature, the description from the docstring."""

import functools
import inspect
import re
import typing
from collections.abc import Callable, Mapping
from typing import Any, ClassVar, cast, overload

from pydantic import PydanticUserError, TypeAdapter, ValidationError
from pydantic_core import ArgsKwargs

from everstep.agent_domain.checks import faults
from everstep.agent_domain.errors import InvalidInput, ToolFailed
from everstep.agent_domain.tools.resources import Resource, resource_of_hint
from everstep.agent_domain.tools.tools import ToolContext, ToolOptions, as_options
from everstep.agent_domain.values import FrozenDict, frozen_map, reading, valid_text

_NAME = re.compile(r"[a-zA-Z0-9_-]{1,64}")
_SECTION = re.compile(
    r"^(Args|Arguments|Parameters|Returns|Raises|Yields|Example|Examples|Note):\s*$", re.MULTILINE
)
_ARGUMENTS = re.compile(r"^(?:Args|Arguments|Parameters):[ \t]*\n", re.MULTILINE)
_PARAMETER = re.compile(r"^\s{2,}\*{0,2}(\w+)\s*(?:\([^)]*\))?:\s*(.*(?:\n\s{6,}.*)*)", re.MULTILINE)


class FunctionTool:
    """A function that models can call. Calling the tool object calls the function."""

    def __init__(self, fn: Callable[..., Any], name: str, description: str, options: ToolOptions) -> None:
        self.fn = fn
        self.name = valid_tool_name(name)
        self.options = options
        text = inspect.cleandoc(description or inspect.getdoc(fn) or "")
        summary = _SECTION.split(text, maxsplit=1)[0].strip()
        if not summary:
            raise InvalidInput(
                f"the tool '{name}' has no description; write a docstring, models choose by it"
            )
        self.description = summary
        hints = _hints(fn, name)
        self._injected = _injected(hints)
        self._adapter = _adapter(fn, name, hints, tuple(self._injected))
        self.schema: FrozenDict = _schema(self._adapter, name, _descriptions(text))

    @classmethod
    def from_function(
        cls,
        fn: Callable[..., Any],
        *,
        name: str | None = None,
        description: str | None = None,
        options: ToolOptions | None = None,
    ) -> "FunctionTool":
        """Make a tool from a function.

        Args:
            fn: The function; each parameter needs a type hint.
            name: The tool's name, by default the function's.
            description: The tool's description, by default the function's docstring.
            options: How the runtime treats the tool.

        Raises:
            InvalidInput: The function cannot be a tool, for example because a type hint is missing.
        """
        if not callable(fn):
            raise InvalidInput(f"{fn!r} is not callable; pass a function")
        text = valid_text(description or "", "the tool's description")
        return cls(fn, name or getattr(fn, "__name__", ""), text, as_options(options))

    def call(self, args: dict[str, Any], context: ToolContext) -> Any:
        """Check the arguments against the type hints and call the function."""
        try:
            bound = self._adapter.validate_python(ArgsKwargs((), args))
        except ValidationError as error:
            raise ToolFailed(f"The arguments do not fit: {faults(error)}") from None
        return bound(**_injected_values(self._injected, context))

    @property
    def resources(self) -> tuple[Resource[Any], ...]:
        """The resources that parameters receive."""
        return _resources_of(self._injected)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call the function itself."""
        return self.fn(*args, **kwargs)


class BaseTool:
    """A tool as a class: define `__call__`, and optionally `name`, which is otherwise the class's name.

    Args:
        name: Replaces the class's name for this object.
        description: Replaces the class's description, which is otherwise its docstring.
    """

    name: str
    description: str = ""
    options: ToolOptions = ToolOptions()
    _is_named: ClassVar[bool] = False
    """Whether the class or one of its bases defines a name."""

    def __init__(self, name: str | None = None, description: str | None = None) -> None:
        if name is not None:
            self.name = valid_tool_name(name)
        if description is not None:
            self.description = valid_text(description, "the tool's description")

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if "name" in vars(cls):
            cls._is_named = True
        elif not cls._is_named and any("__call__" in vars(kind) for kind in cls.__mro__):
            cls.name = cls.__name__

    @functools.cached_property
    def _call(self) -> Callable[..., Any]:
        call: Callable[..., Any] | None = getattr(self, "__call__", None)  # noqa: B004 -- to wrap it, not to test it
        if call is None:
            raise InvalidInput(f"{type(self).__name__} has no __call__; define what the tool does")
        return call

    @functools.cached_property
    def _function(self) -> FunctionTool:
        description = self.description or inspect.getdoc(self)
        return FunctionTool.from_function(
            self._call, name=self.name, description=description, options=self.options
        )

    @property
    def schema(self) -> Mapping[str, Any]:
        """The JSON schema of the arguments."""
        with reading(f"the schema of {type(self).__name__}"):
            return frozen_map(self.to_tool_schema()["function"]["parameters"], "'parameters'")

    def call(self, args: dict[str, Any], context: ToolContext) -> Any:
        """Check the arguments and call; with a `**arguments` parameter they are passed unchecked.

        Such a parameter serves classes that override `to_tool_schema`.
        """
        parameters = inspect.signature(self._call).parameters.values()
        named = [parameter.name for parameter in parameters if parameter.kind is not parameter.VAR_KEYWORD]
        if len(named) < len(parameters):
            # What is injected wins over an argument of that name, which the model made up.
            return self._call(**{**args, **_injected_values(_injected(self._hints), context)})
        return self._function.call(args, context)

    @property
    def resources(self) -> tuple[Resource[Any], ...]:
        """The resources that parameters of `__call__` receive."""
        return _resources_of(_injected(self._hints))

    @functools.cached_property
    def _hints(self) -> dict[str, Any]:
        has_names = any(kind.kind is not kind.VAR_KEYWORD for kind in _parameters(self._call, self.name))
        return _hints(self._call, self.name) if has_names else {}

    def to_tool_schema(self) -> dict[str, Any]:
        """Describe the tool to models, from the signature of `__call__`; override it for a custom schema."""
        function_tool = self._function
        function = {
            "name": self.name,
            "description": function_tool.description,
            "parameters": function_tool.schema,
        }
        return {"type": "function", "function": function}


@overload
def tool(fn: Callable[..., Any], /) -> FunctionTool: ...
@overload
def tool(
    *, name: str | None = None, description: str | None = None, options: ToolOptions | None = None
) -> Callable[[Callable[..., Any]], FunctionTool]: ...
def tool(
    fn: Callable[..., Any] | None = None,
    /,
    *,
    name: str | None = None,
    description: str | None = None,
    options: ToolOptions | None = None,
) -> FunctionTool | Callable[[Callable[..., Any]], FunctionTool]:
    """Make a tool from a function: `@tool`, or `@tool(name=..., options=ToolOptions(quick=True))`."""
    make = functools.partial(FunctionTool.from_function, name=name, description=description, options=options)
    return make if fn is None else make(fn)


def valid_tool_name(name: object) -> str:
    """Return the name; raise `InvalidInput` unless every provider accepts it."""
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise InvalidInput(f"{name!r} is not a tool name; use 1 to 64 letters, digits, _ or -")
    return name


def _hints(fn: Callable[..., Any], name: str) -> dict[str, Any]:
    while isinstance(fn, functools.partial):
        fn = fn.func
    target = fn if inspect.isroutine(fn) else type(fn).__call__
    try:
        return typing.get_type_hints(target, include_extras=True)
    except (NameError, AttributeError, SyntaxError, TypeError) as error:
        raise InvalidInput(
            f"a type hint of the tool '{name}' cannot be resolved: {error}; "
            "write it as code and import what it names at run time"
        ) from None


def _injected(hints: Mapping[str, Any]) -> dict[str, Resource[Any] | None]:
    """The parameters that models do not pass: the resource that each receives, None for the context."""
    found = {name: resource_of_hint(hint) for name, hint in hints.items() if name != "return"}
    return {name: found[name] for name in found if found[name] or _is_context(hints[name])}


def _injected_values(injected: Mapping[str, Resource[Any] | None], context: ToolContext) -> dict[str, Any]:
    return {name: context.resources[key] if key else context for name, key in injected.items()}


def _resources_of(injected: Mapping[str, Resource[Any] | None]) -> tuple[Resource[Any], ...]:
    return tuple(key for key in injected.values() if key)


def _is_context(hint: object) -> bool:
    """Whether a parameter with that hint receives the `ToolContext`."""
    return hint is ToolContext or ToolContext in typing.get_args(hint)


def _adapter(
    fn: Callable[..., Any], name: str, hints: Mapping[str, Any], context: tuple[str, ...]
) -> TypeAdapter[Any]:
    """An adapter that checks arguments and returns the function with these arguments bound."""
    parameters = [p for p in _parameters(fn, name) if p.name not in context]
    for parameter in parameters:
        _require_usable(parameter, name, hints)

    def bind(**arguments: Any) -> Callable[..., Any]:
        return functools.partial(fn, **arguments)

    keyword = [p.replace(kind=inspect.Parameter.KEYWORD_ONLY) for p in parameters]
    bind.__signature__ = inspect.Signature(keyword)  # type: ignore[attr-defined]
    bind.__annotations__ = {p.name: hints[p.name] for p in parameters}
    try:
        return TypeAdapter[Any](cast("Any", bind))
    except PydanticUserError as error:
        raise InvalidInput(
            f"a parameter of the tool '{name}' cannot be described: {_problem(error)}"
        ) from None


def _parameters(fn: Callable[..., Any], name: str) -> list[inspect.Parameter]:
    try:
        return list(inspect.signature(fn).parameters.values())
    except ValueError:
        raise InvalidInput(
            f"the parameters of the tool '{name}' are unknown to Python; wrap it in a function"
        ) from None


def _problem(error: PydanticUserError) -> str:
    """The first sentence; the rest is advice for direct users of pydantic."""
    return error.message.partition(". ")[0]


def _require_usable(parameter: inspect.Parameter, tool_name: str, hints: Mapping[str, Any]) -> None:
    if parameter.kind in {parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD, parameter.POSITIONAL_ONLY}:
        raise InvalidInput(
            f"the tool '{tool_name}' takes {parameter}; models pass arguments by name, so name each one"
        )
    if parameter.name not in hints:
        raise InvalidInput(
            f"the parameter '{parameter.name}' of the tool '{tool_name}' has no type hint; "
            f"add one, such as {parameter.name}: str"
        )


def _schema(adapter: TypeAdapter[Any], name: str, descriptions: Mapping[str, str]) -> FrozenDict:
    try:
        schema: dict[str, Any] = _without_titles(adapter.json_schema())
    except PydanticUserError as error:
        raise InvalidInput(f"a parameter of the tool '{name}' has no JSON form: {_problem(error)}") from None
    for parameter, properties in schema.get("properties", {}).items():
        if parameter in descriptions:
            properties.setdefault("description", descriptions[parameter])
    return frozen_map({"type": "object", "properties": {}, **schema}, f"the schema of '{name}'")


_VALUES = frozenset({"const", "default", "enum", "examples"})
"""Keywords of JSON schema that hold values; a `title` inside them was not generated."""


def _without_titles(schema: Any) -> Any:
    """Remove generated titles, which only repeat names."""
    if isinstance(schema, list):
        return [_without_titles(each) for each in cast("list[Any]", schema)]
    if not isinstance(schema, dict):
        return schema
    entries = cast("dict[str, Any]", schema)
    return {
        key: value if key in _VALUES else _without_titles(value)
        for key, value in entries.items()
        if not (key == "title" and isinstance(value, str))
    }


def _descriptions(docstring: str) -> dict[str, str]:
    """The descriptions of parameters, from the `Args:` section under any of its names."""
    _, *rest = _ARGUMENTS.split(docstring, maxsplit=1)
    section = _SECTION.split("".join(rest), maxsplit=1)[0]
    return {name: " ".join(text.split()) for name, text in _PARAMETER.findall(section)}
