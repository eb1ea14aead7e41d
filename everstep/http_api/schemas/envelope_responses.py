"""Response models of stored envelopes."""

from collections.abc import Mapping
from typing import Any, Self
from uuid import UUID

from pydantic import Field

from everstep.agent_domain.stream.envelopes import Envelope
from everstep.http_api.schemas.text import ResponseModel


class EnvelopeResponse(ResponseModel):
    """An event of an execution, as viewers receive it."""

    type: str = Field(examples=["agent.step.started"])
    session_id: UUID | None
    execution_id: UUID
    timestamp: str = Field(examples=["2026-11-18T09:30:12.345Z"])
    payload: Mapping[str, Any]
    id: UUID
    seq: int | None

    @classmethod
    def of(cls, envelope: Envelope) -> Self:
        """Convert an envelope."""
        return cls.model_validate(envelope.to_dict())


class EnvelopesResponse(ResponseModel):
    """A part of a stream."""

    items: list[EnvelopeResponse]
    first_seq: int = Field(description="The first `seq` that is still stored; 0 if there are none.")
    last_seq: int = Field(description="The last `seq`; 0 if there are none.")
