"""Response models of full-text search."""

from typing import Self
from uuid import UUID

from pydantic import Field

from everstep.agent_domain.storage.text_search import HitKind, TextHit
from everstep.http_api import samples
from everstep.http_api.samples import example
from everstep.http_api.schemas.text import Moment, ResponseModel


class Snippet(ResponseModel):
    """The part of a text around its first match."""

    text: str = Field(description="Plain text.")
    marks: list[tuple[int, int]] = Field(
        description="The matches: the first character, and the one after the last, in Unicode code points."
    )


class SearchHit(ResponseModel):
    """A message, a call or a result that matches a search."""

    model_config = example(samples.SEARCH_HIT)

    session_id: UUID | None = Field(description="Null for an execution without a session.")
    session_title: str | None
    execution_id: UUID
    agent: str
    user_id: str | None
    step_number: int = Field(description="The step; 0 for the messages with which the execution began.")
    kind: HitKind = Field(
        description="Where the match is: in a message of a user, in a text of the model, in the arguments of "
        "a call, or in its result."
    )
    tool: str | None = Field(description="The tool, for arguments and results.")
    call_id: str | None = Field(description="The call, for arguments and results.")
    snippet: Snippet
    created_at: Moment

    @classmethod
    def of(cls, hit: TextHit) -> Self:
        """Convert a hit of the store."""
        place = hit.location
        return cls(
            session_id=hit.ref.session_id,
            session_title=hit.title,
            execution_id=hit.ref.execution_id,
            agent=hit.agent,
            user_id=hit.user_id,
            step_number=hit.step,
            kind=place.kind,
            tool=place.tool,
            call_id=place.call_id,
            snippet=Snippet(text=place.excerpt.text, marks=list(place.excerpt.marks)),
            created_at=hit.created_at,
        )
