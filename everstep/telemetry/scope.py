"""The execution that the current code works for: on each line of the log, and on each span."""

from collections.abc import Generator
from contextlib import contextmanager
from contextvars import ContextVar
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


def conversation_id(ref: ExecutionRef) -> str:
    """Return the id of the conversation: of its session, or its own if it has none."""
    return str(ref.session_id or ref.execution_id)
