"""Response models of ledgers."""

from collections.abc import Mapping
from typing import Any, Self
from uuid import UUID

from pydantic import Field

from everstep.agent_domain.storage.ledger import LEDGER_VERSION, LedgerPage
from everstep.http_api.schemas.text import ResponseModel


class LedgerResponse(ResponseModel):
    """Entries of the ledger of an execution."""

    version: int = Field(description="The version of the form of entries.")
    execution_id: UUID
    sealed: bool = Field(
        description="Whether the entries were written with what they record; false for executions that an "
        "older release accepted, whose entries are built from their rows."
    )
    entries: list[Mapping[str, Any]] = Field(
        description="Each with `position`, `at`, `kind`, `facts`, `digests`, `previous` and `hash`: the "
        "SHA-256 of the entry without `hash`, as JSON with sorted keys and without spaces."
    )
    next_cursor: str | None = Field(description="The `cursor` of the next page; null on the last one.")

    @classmethod
    def of(cls, execution_id: UUID, page: LedgerPage) -> Self:
        """Convert a page."""
        return cls(
            version=LEDGER_VERSION,
            execution_id=execution_id,
            sealed=page.is_sealed,
            entries=[entry.to_dict() for entry in page.entries],
            next_cursor=str(page.entries[-1].position) if page.has_more else None,
        )
