"""What the activity of the current task works on, for the parts that stand in for models and the store."""

from contextvars import ContextVar
from typing import Final
from uuid import UUID

from everstep.agent_domain.ids import ExecutionRef

STEP: Final[ContextVar[tuple[UUID, int] | None]] = ContextVar("STEP", default=None)
"""The execution, and the number of the step whose model is asked."""

INNER_KEY: Final[ContextVar[str]] = ContextVar("INNER_KEY", default="")
"""The key of the question that a processor asks a model."""


def enter_step(ref: ExecutionRef, number: int) -> None:
    """Note that the model is asked for a step."""
    STEP.set((ref.execution_id, number))


def enter_question(ref: ExecutionRef, key: str) -> None:
    """Note that a processor asks a model."""
    STEP.set((ref.execution_id, 0))
    INNER_KEY.set(key)
