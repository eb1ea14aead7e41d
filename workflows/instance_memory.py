"""What Temporal's SDK keeps of a workflow in memory without a need, released early.

The fields of a protocol buffer share the memory of the whole message: a reference to one of them, also to an
empty one, keeps all others. An instance of the SDK refers to fields of its first activation, which contains
the input, and to its last activation and completion. Together these take twice the memory of the rest of
the instance. A worker carries a thousand of them while they wait for models and people. And full searches for
garbage are rare in a worker (`runtime/garbage.py`).
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final, TypeVar

from google.protobuf.message import Message
from temporalio.api.common.v1 import Payload, Payloads
from temporalio.worker import ExecuteWorkflowInput, WorkflowInstance, WorkflowInstanceDetails

COMPLETION: Final = "_current_completion"
FLAGS: Final = "_current_internal_flags"
VERSION: Final = "_deployment_version_for_current_task"
"""Fields of the SDK's instance, which each activation sets."""
DELETING: Final = "_deleting"
"""Its field that says that it left the cache."""

_NO_PAYLOADS: Final = Payloads()

MessageT = TypeVar("MessageT", bound=Message)


def detached_details(details: WorkflowInstanceDetails) -> WorkflowInstanceDetails:
    """Return the details of an instance without references to its first activation.

    The memo is left out: Everstep's workflows do not read it, and a run that continues as new inherits it.
    """
    last = details.last_completion_result
    return replace(
        details,
        info=replace(details.info, raw_memo={}, headers=_detached_map(details.info.headers)),
        last_completion_result=_detached(last) if last.payloads else _NO_PAYLOADS,
        last_failure=details.last_failure and _detached(details.last_failure),
    )


def detach_input(given: ExecuteWorkflowInput) -> None:
    """Remove references to the first activation from the input of a workflow that runs."""
    given.headers = _detached_map(given.headers)


def release_activation(instance: WorkflowInstance) -> None:
    """Remove references to the last activation and its completion. An instance without these is unchanged."""
    state: dict[str, Any] = vars(instance)
    if COMPLETION in state:
        state[COMPLETION] = type(state[COMPLETION])()
    if FLAGS in state:
        state[FLAGS] = tuple(state[FLAGS])
    if state.get(VERSION) is not None:
        state[VERSION] = _detached(state[VERSION])


def dissolve(instance: WorkflowInstance) -> None:
    """Empty an instance that left the cache: its parts refer to each other, and would wait for a search."""
    state: dict[str, Any] = vars(instance)
    if COMPLETION in state:
        state[DELETING] = True
        # Tasks that end with these fields report that to the instance, which ignores it then.
        for name in [*state]:
            if name != DELETING:
                del state[name]


def _detached_map(payloads: Mapping[str, Payload]) -> dict[str, Payload]:
    return {name: _detached(payload) for name, payload in payloads.items()}


def _detached(message: MessageT) -> MessageT:
    copy = type(message)()
    copy.CopyFrom(message)
    return copy
