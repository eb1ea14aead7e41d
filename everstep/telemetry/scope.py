"""The execution that the current code works for: on each line of the log, and on each span."""

from collections.abc import Generator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Final

from everstep.agent_domain.ids import ExecutionRef

_current: Final[ContextVar[ExecutionRef | None]] = ContextVar("current_execution", default=None)


def current_execution() -> ExecutionRef | None:
    """Return the execution that this task works for."""
    return _current.get()


@contextmanager
def working_for(ref: ExecutionRef | None) -> Generator[None]:
    """Work for an execution within the block."""
    token = _current.set(ref)
    try:
        yield
    finally:
        _current.reset(token)


@dataclass(slots=True)
class NamedExecution:
    """The execution that a request turned out to be about."""

    ref: ExecutionRef | None = None


_named: Final[ContextVar[NamedExecution | None]] = ContextVar("named_execution", default=None)


@contextmanager
def request_scope() -> Generator[NamedExecution]:
    """Handle a request within the block; the value has the first execution that code names in it."""
    named = NamedExecution()
    token = _named.set(named)
    try:
        yield named
    finally:
        _named.reset(token)


def is_named_first(ref: ExecutionRef) -> bool:
    """Name the execution of the current request; return False if another one was named before.

    A request may start others, such as those that waited for a place.
    """
    named = _named.get()
    if named is None:
        return True
    if named.ref is None:
        named.ref = ref
    return named.ref.execution_id == ref.execution_id


def conversation_id(ref: ExecutionRef) -> str:
    """Return the id of the conversation: of its session, or its own if it has none."""
    return str(ref.session_id or ref.execution_id)
