"""Deterministic ids: writing the same thing twice finds the first record.

Only agents and executions receive ids from outside; every id below an execution is derived.
"""

from dataclasses import dataclass
from uuid import UUID, uuid5

_APPLICATION_IDS = UUID("6f1f4a0e-8f0c-5c62-9d0b-1f2e6f3b7a55")
"""The namespace of ids that applications chose and that are not UUIDs."""


def step_id(execution_id: UUID, number: int) -> UUID:
    """The id of a step, the same each time it is computed."""
    return uuid5(execution_id, f"step/{number}")


def call_id(execution_id: UUID, step_number: int, index: int) -> str:
    """The id of a tool call to which the model gave none."""
    return f"call_{uuid5(execution_id, f'call/{step_number}/{index}').hex[:12]}"


def subagent_id(execution_id: UUID, call_id: str) -> UUID:
    """The id of the execution that a call starts."""
    return uuid5(execution_id, f"subagent/{call_id}")


def artifact_id(execution_id: UUID, call_id: str, name: str) -> UUID:
    """The id of a file that a tool call returns: the same in each attempt of the call."""
    return uuid5(execution_id, f"artifact/{call_id}/{name}")


def envelope_id(execution_id: UUID | str, key: str) -> UUID:
    """The id of the envelope for `key` (such as `step/3/completed`)."""
    name = execution_id if isinstance(execution_id, UUID) else uuid5(_APPLICATION_IDS, execution_id)
    return uuid5(name, f"envelope/{key}")


DEFAULT_TENANT = "default"


@dataclass(frozen=True, slots=True)
class ExecutionRef:
    """Identifies an execution, its tenant and its session."""

    execution_id: UUID
    tenant_id: str = DEFAULT_TENANT
    session_id: UUID | None = None

    @property
    def stream_id(self) -> UUID:
        """The stream of its envelopes: the session's, or the execution's own outside a session."""
        return self.session_id or self.execution_id


def request_id(execution_id: UUID, call_id: str) -> UUID:
    """The id of the question that a call asks."""
    return uuid5(execution_id, f"request/{call_id}")


def budget_request_id(execution_id: UUID, key: str) -> UUID:
    """The id of the request to raise a budget that the settlement with this key opens."""
    return uuid5(execution_id, f"budget/{key}")


def question_id(execution_id: UUID, call_id: str) -> UUID:
    """The id of the question that a call asks after it was approved."""
    return uuid5(execution_id, f"question/{call_id}")


def follow_up_id(execution_id: UUID, key: str | None = None) -> UUID:
    """The id of the execution that starts with a message which arrived too late for the one it was sent to.

    In a session each such message starts its own execution, named by the message's key. Outside a session
    there is no queue, so all of them start one execution together.
    """
    return uuid5(execution_id, "steered" if key is None else f"steered/{key}")


@dataclass(frozen=True, slots=True)
class Scope:
    """What a caller may see: everything of a tenant, or only the items of one user."""

    tenant_id: str = DEFAULT_TENANT
    user_id: str | None = None

    def covers(self, user_id: str | None) -> bool:
        """Whether an item of that user may be seen."""
        return self.user_id is None or self.user_id == user_id
