"""Ids that follow from what they name, so that writing the same thing twice finds the first.

Only agents and executions get ids from outside; everything below an execution is derived.
"""

from uuid import UUID, uuid5

_FOREIGN = UUID("6f1f4a0e-8f0c-5c62-9d0b-1f2e6f3b7a55")
"""The namespace of ids that applications chose and that are no UUIDs."""


def step_id(execution_id: UUID, number: int) -> UUID:
    """The id of a step, whoever computes it and however often."""
    return uuid5(execution_id, f"step/{number}")


def call_id(execution_id: UUID, step_number: int, index: int) -> str:
    """An id for a tool call whose model gave none."""
    return f"call_{uuid5(execution_id, f'call/{step_number}/{index}').hex[:12]}"


def subagent_id(execution_id: UUID, call_id: str) -> UUID:
    """The id of the execution that a call starts."""
    return uuid5(execution_id, f"subagent/{call_id}")


def envelope_id(execution_id: UUID | str, key: str) -> UUID:
    """The id of the envelope for `key` (such as `step/3/completed`)."""
    name = execution_id if isinstance(execution_id, UUID) else uuid5(_FOREIGN, execution_id)
    return uuid5(name, f"envelope/{key}")
