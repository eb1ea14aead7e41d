"""Pagination cursors: the last row of a page, as opaque text."""

import base64
import binascii
from dataclasses import dataclass
from datetime import UTC, datetime
from uuid import UUID

from everstep.agent_domain.errors import InvalidInput
from everstep.agent_domain.values import parse_moment

MAX_PAGE = 1000


@dataclass(frozen=True, slots=True, order=True)
class Cursor:
    """The last row of a page; the id orders rows with equal timestamps."""

    created_at: datetime
    id: UUID

    @classmethod
    def first(cls) -> "Cursor":
        """Return a cursor before every row."""
        return cls(datetime.min.replace(tzinfo=UTC), UUID(int=0))

    @property
    def text(self) -> str:
        """The cursor as clients send it."""
        written = f"{self.created_at.isoformat()} {self.id}"
        return base64.urlsafe_b64encode(written.encode()).decode().rstrip("=")

    @classmethod
    def parse(cls, text: str) -> "Cursor":
        """Parse a cursor that a client sent.

        Raises:
            InvalidInput: The text is not a cursor of this API.
        """
        try:
            written = base64.urlsafe_b64decode(text + "=" * (-len(text) % 4)).decode()
            at, _, last = written.partition(" ")
            return cls(parse_moment(at), UUID(last))
        except (ValueError, binascii.Error):
            raise InvalidInput(
                "the cursor cannot be read; pass one that a page came with, unchanged"
            ) from None


def page_size(limit: int) -> int:
    """Return the limit if it is within bounds.

    Raises:
        InvalidInput: The limit is not a whole number between 1 and `MAX_PAGE`.
    """
    if isinstance(limit, bool) or not 1 <= limit <= MAX_PAGE:
        raise InvalidInput(f"limit is {limit!r}; pass a whole number from 1 to {MAX_PAGE}")
    return limit
