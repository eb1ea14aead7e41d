"""The user and tenant of an execution, and what the service sent with its request."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Final, cast
from uuid import UUID

from everstep.agent_domain.errors import InvalidInput
from everstep.agent_domain.ids import DEFAULT_TENANT, ExecutionRef
from everstep.agent_domain.values import EMPTY, FrozenDict, frozen_map, valid_text


@dataclass(frozen=True, slots=True)
class RunContext:
    """The user and the request of an execution, as its service sent them; no model can change them.

    Raises:
        InvalidInput: A value has the wrong type, or `related_id` has no `related_type`.
    """

    user_id: str | None = None
    tenant_id: str = DEFAULT_TENANT
    session_id: UUID | None = None
    related_type: str | None = None
    """The type of the object that the request is about."""
    related_id: str | None = None
    request_metadata: FrozenDict = EMPTY
    """The metadata that the service sent with the request."""

    def __post_init__(self) -> None:
        for name in ("user_id", "tenant_id", "related_type", "related_id"):
            value = getattr(self, name)
            if value is None and name != "tenant_id":
                continue
            if not isinstance(value, str):
                raise InvalidInput(f"the {name} of the context is {value!r}; pass a text")
            valid_text(value, name)
        if self.related_id is not None and self.related_type is None:
            raise InvalidInput("related_id needs a related_type; pass both, or neither")
        if self.session_id is not None and not isinstance(cast("object", self.session_id), UUID):
            raise InvalidInput(f"the session_id of the context is {self.session_id!r}; pass a UUID")
        metadata = frozen_map(self.request_metadata, "request_metadata")
        object.__setattr__(self, "request_metadata", metadata)

    @property
    def ids(self) -> "RunContext":
        """A copy without the metadata, for workflow history: it contains ids and numbers only."""
        return replace(self, request_metadata=EMPTY)

    @classmethod
    def from_request(
        cls, ref: ExecutionRef, user_id: str | None, request: Mapping[str, Any] | None
    ) -> "RunContext":
        """The context of a stored execution.

        Args:
            ref: The execution.
            user_id: Its user.
            request: `request_data` as stored; None in rows of older releases.
        """
        data = request or EMPTY
        return cls(
            user_id or None,
            ref.tenant_id,
            ref.session_id,
            data.get("related_type"),
            data.get("related_id"),
            frozen_map(data.get("metadata") or EMPTY, "request_metadata"),
        )


NO_RUN_CONTEXT: Final = RunContext()
"""No user, no request: what nothing was said about."""


def request_data(
    metadata: Mapping[str, Any], related_type: str | None = None, related_id: str | None = None
) -> FrozenDict:
    """What a service sent with a request, as it is stored with the execution; without what it left out."""
    data = {"metadata": metadata or None, "related_type": related_type, "related_id": related_id}
    return frozen_map({key: value for key, value in data.items() if value is not None}, "metadata")
