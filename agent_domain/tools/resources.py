"""Objects that a worker makes once and shares among its tools: database pools, HTTP clients.

`@resource` turns a factory into a key. The same key declares that a tool needs the object, starts and stops
it, and finds it in `ToolContext.resources`, with its type.
"""

import inspect
import typing
from collections.abc import (
    AsyncGenerator,
    AsyncIterator,
    Awaitable,
    Callable,
    ItemsView,
    Iterable,
    Iterator,
    Mapping,
)
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import (
    Annotated,
    Any,
    Final,
    Generic,
    TypeAlias,
    TypeGuard,
    TypeVar,
    cast,
    get_args,
    get_origin,
    overload,
)

from everstep.agent_domain.errors import InvalidInput
from everstep.agent_domain.values import valid_text

T = TypeVar("T")

Factory: TypeAlias = (
    Callable[[], AsyncIterator[T]] | Callable[[], AbstractAsyncContextManager[T]] | Callable[[], Awaitable[T]]
)
"""Makes an object: an async generator function that yields it once, a function that returns an async context
manager, or a coroutine function that returns an object which needs no stop."""

START_SECONDS: Final = 60.0
"""How long a factory may take, unless it says otherwise."""


class Resource(Generic[T]):
    """A key of an object that is made once per worker; `@resource` makes one of a factory."""

    def __init__(self, factory: Factory[T], name: str, start_seconds: float = START_SECONDS) -> None:
        self.factory = factory
        self.name = name
        self.start_seconds = start_seconds
        self.kind = _result_type(factory)
        """The type of the object as the factory declares it; None if it declares none."""

    def __repr__(self) -> str:
        return f"<Resource '{self.name}'>"

    def open(self) -> AbstractAsyncContextManager[T]:
        """A context manager that makes the object, and stops it at the end."""
        if inspect.isasyncgenfunction(self.factory):
            return asynccontextmanager(cast("Callable[[], AsyncGenerator[T]]", self.factory))()
        return _context_manager(self.name, self.factory)


@asynccontextmanager
async def _context_manager(name: str, factory: Callable[[], Any]) -> AsyncGenerator[Any]:
    made = factory()
    if isinstance(made, AbstractAsyncContextManager):
        async with cast("AbstractAsyncContextManager[Any]", made) as value:
            yield value
    elif inspect.isawaitable(made):
        yield await made
    else:
        raise InvalidInput(
            f"the factory of the resource '{name}' returned {type(made).__name__}; write an async function "
            "that yields the object"
        )


@overload
def resource(factory: Callable[[], AsyncIterator[T]], /) -> Resource[T]: ...
@overload
def resource(factory: Callable[[], AbstractAsyncContextManager[T]], /) -> Resource[T]: ...
@overload
def resource(factory: Callable[[], Awaitable[T]], /) -> Resource[T]: ...
@overload
def resource(
    *, name: str | None = None, start_seconds: float = START_SECONDS
) -> Callable[[Factory[T]], Resource[T]]: ...
def resource(
    factory: Factory[Any] | None = None,
    /,
    *,
    name: str | None = None,
    start_seconds: float = START_SECONDS,
) -> Resource[Any] | Callable[[Factory[Any]], Resource[Any]]:
    """Declare an object that is made once per worker: `@resource`, or `@resource(start_seconds=300)`.

    Args:
        factory: An async function without parameters that yields the object once: what comes before the
            `yield` starts it, what comes after stops it. Or a function that returns an async context manager.
        name: The name in error messages, by default the function's.
        start_seconds: How long the start may take.

    Raises:
        InvalidInput: It is no such function.
    """

    def make(factory: Factory[Any]) -> Resource[Any]:
        own = getattr(factory, "__name__", "")
        if not callable(cast("object", factory)):
            raise InvalidInput(
                f"{factory!r} is no factory of a resource; put @resource before an async function"
            )
        label = valid_text(name or own or type(factory).__name__, "the resource's name")
        if not isinstance(cast("object", start_seconds), int | float) or start_seconds <= 0:
            raise InvalidInput(f"start_seconds of the resource '{label}' must be a number greater than zero")
        if needed := _needed_parameters(factory):
            raise InvalidInput(
                f"the factory of the resource '{label}' needs {', '.join(needed)}; it is called without "
                "arguments, so read settings inside it"
            )
        return Resource(factory, label, start_seconds)

    return make if factory is None else make(factory)


def _needed_parameters(factory: Callable[..., Any]) -> list[str]:
    try:
        parameters = inspect.signature(factory).parameters.values()
    except (TypeError, ValueError):
        return []
    optional = {inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD}
    return [each.name for each in parameters if each.default is each.empty and each.kind not in optional]


def _result_type(factory: Callable[..., Any]) -> type | None:
    """The type that a factory declares to make; None if that cannot be found out."""
    if inspect.isclass(factory):
        return factory
    try:
        hint: Any = typing.get_type_hints(factory).get("return")
    except (NameError, AttributeError, SyntaxError, TypeError):
        # A type that is imported for type checkers only; the key itself still finds the object.
        return None
    if not inspect.iscoroutinefunction(factory):
        hint = next(iter(get_args(hint)), None)
    found = get_origin(hint) or hint
    return found if inspect.isclass(found) else None


ResourceKey: TypeAlias = Resource[Any] | type[Any]
"""What finds a resource: the decorated factory, or the type of the object."""


class Resources:
    """The objects of a worker or of a run, by key or by type: `resources[orders]`, `resources[Orders]`."""

    def __init__(self, values: Mapping[Any, object] | None = None) -> None:
        self._values = {_require_key(key): value for key, value in (values or {}).items()}

    def __repr__(self) -> str:
        return f"<Resources {', '.join(self.names) or 'none'}>"

    def __iter__(self) -> Iterator[ResourceKey]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    def items(self) -> ItemsView[ResourceKey, object]:
        """The keys with their objects."""
        return self._values.items()

    def __contains__(self, key: object) -> bool:
        return bool(self._matching(key))

    @property
    def names(self) -> tuple[str, ...]:
        """The names, in the order of their start."""
        return tuple(_name(key) for key in self._values)

    def merged(self, more: "Resources") -> "Resources":
        """A copy with more objects; they win over objects of the same key."""
        return Resources({**self._values, **dict(more.items())})

    def covers(self, wanted: Resource[Any]) -> bool:
        """Whether the object of that key is here already, under the key or under exactly its type."""
        return wanted in self._values or (wanted.kind is not None and wanted.kind in self._values)

    @overload
    def __getitem__(self, key: Resource[T]) -> T: ...
    @overload
    def __getitem__(self, key: type[T]) -> T: ...
    def __getitem__(self, key: Resource[T] | type[T]) -> T:
        """The object.

        Raises:
            InvalidInput: There is none, or there are several of that type.
        """
        found = self._matching(key)
        if not found:
            known = ", ".join(self.names) or "none"
            raise InvalidInput(
                f"there is no resource {_name(_require_key(key))}, only {known}; "
                "add it by with_resources(...) of the agent's builder"
            )
        if len(found) > 1:
            names = ", ".join(_name(each) for each in found)
            raise InvalidInput(
                f"{len(found)} resources are a {_name(_require_key(key))}: {names}; name one by its key"
            )
        return cast("T", self._values[found[0]])

    def _matching(self, key: object) -> "list[ResourceKey]":
        """The keys whose objects answer to this one; several only where a type fits several."""
        if key in self._values:
            return [cast("ResourceKey", key)]
        if isinstance(key, Resource):
            wanted = cast("Resource[Any]", key).kind
            return [wanted] if wanted is not None and wanted in self._values else []
        if not inspect.isclass(key):
            return []
        return [each for each in self._values if isinstance(each, Resource) and each.kind is key] or [
            each for each, value in self._values.items() if isinstance(value, key)
        ]


NO_RESOURCES: Final = Resources()
"""None: what a context has that no worker and no run made."""


def as_resources(given: Resources | Mapping[Any, object] | None) -> Resources:
    """Return resources; a map has objects by key or by type.

    Raises:
        InvalidInput: It is neither, or a key is neither.
    """
    if given is None:
        return NO_RESOURCES
    if isinstance(given, Resources):
        return given
    if not isinstance(cast("object", given), Mapping):
        raise InvalidInput(f"the resources are {given!r}; pass a map such as {{orders: Orders(...)}}")
    return Resources(given)


def is_resource(value: object) -> TypeGuard[Resource[Any]]:
    """Whether the value is a resource."""
    return isinstance(value, Resource)


def require_resources(given: Iterable[object], where: str) -> tuple[Resource[Any], ...]:
    """Return the resources of a list, each once.

    Raises:
        InvalidInput: An entry is no resource.
    """
    found: dict[Resource[Any], None] = {}
    for each in given:
        if not is_resource(each):
            raise InvalidInput(
                f"{where} holds {each!r}, which is no resource; put @resource before its factory"
            )
        found[each] = None
    return tuple(found)


def resource_of_hint(hint: object) -> Resource[Any] | None:
    """The resource that a parameter with this type hint receives, or None.

    The hint is `Annotated[Orders, orders]`, also as a part of a union.
    """
    if is_resource(hint):
        return hint
    if get_origin(hint) is Annotated:
        return next(filter(is_resource, get_args(hint)[1:]), None)
    return next((found for each in get_args(hint) if (found := resource_of_hint(each))), None)


def _require_key(key: object) -> ResourceKey:
    if isinstance(key, Resource) or inspect.isclass(key):
        return cast("ResourceKey", key)
    raise InvalidInput(f"{key!r} is no key of a resource; use the factory with @resource, or a class")


def _name(key: ResourceKey) -> str:
    return f"'{key.name}'" if isinstance(key, Resource) else key.__name__
