"""Ids that follow from what they name, so that writing the same thing twice finds the first.

Only agents and executions get ids from outside; everything below an execution is derived.
"""

from dataclasses import dataclass
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


DEFAULT_TENANT = "default"


@dataclass(frozen=True, slots=True)
class ExecutionRef:
    """Which execution, and whose."""

    execution_id: UUID
    tenant_id: str = DEFAULT_TENANT
    session_id: UUID | None = None

    @property
    def stream_id(self) -> UUID:
        """The stream that its envelopes go to: its session's, or one of its own."""
        return self.session_id or self.execution_id


def request_id(execution_id: UUID, call_id: str) -> UUID:
    """The id of the question that a call asks."""
    return uuid5(execution_id, f"request/{call_id}")


def question_id(execution_id: UUID, call_id: str) -> UUID:
    """The id of the question that a call asks once people have allowed it."""
    return uuid5(execution_id, f"question/{call_id}")


def follow_up_id(execution_id: UUID, key: str | None = None) -> UUID:
    """The id of the execution that begins with a message which the one that it was sent to did not hear.

    In a session each such message begins one, named by the message's key. Elsewhere there is no queue, so all
    of them begin one together.
    """
    return uuid5(execution_id, "steered" if key is None else f"steered/{key}")


@dataclass(frozen=True, slots=True)
class Scope:
    """Whose things somebody may see: a tenant's, and if a user is named only that user's."""

    tenant_id: str = DEFAULT_TENANT
    user_id: str | None = None

    def covers(self, user_id: str | None) -> bool:
        """Whether something of that user may be seen."""
        return self.user_id is None or self.user_id == user_id
