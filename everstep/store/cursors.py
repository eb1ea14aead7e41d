"""Pagination cursors: the last row of a page, as opaque text."""

import base64
import binascii
import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from uuid import UUID

from everstep.agent_domain.errors import InvalidInput
from everstep.agent_domain.storage.ledger import LedgerEntry
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
        at, _, last = _decode(text).partition(" ")
        try:
            return cls(parse_moment(at), UUID(last))
        except ValueError:
            raise InvalidInput(_UNREADABLE) from None


_UNREADABLE = "the cursor cannot be read; pass one that a page came with, unchanged"


def _decode(text: str) -> str:
    try:
        return base64.urlsafe_b64decode(text + "=" * (-len(text) % 4)).decode()
    except (ValueError, binascii.Error):
        raise InvalidInput(_UNREADABLE) from None


@dataclass(frozen=True, slots=True)
class LedgerCursor:
    """The last entry of a page of many ledgers."""

    at: datetime
    execution_id: UUID
    position: int

    @classmethod
    def first(cls) -> "LedgerCursor":
        """Return a cursor before every entry."""
        return cls(datetime.min.replace(tzinfo=UTC), UUID(int=0), 0)

    @classmethod
    def after(cls, entries: Sequence[LedgerEntry], cursor: str | None) -> str | None:
        """Return the cursor after these entries, or the given one if there are none."""
        if not entries:
            return cursor
        last = entries[-1]
        written = f"{last.at.isoformat()} {last.execution_id} {last.position}"
        return base64.urlsafe_b64encode(written.encode()).decode().rstrip("=")

    @classmethod
    def parse(cls, text: str) -> "LedgerCursor":
        """Parse a cursor that a client sent.

        Raises:
            InvalidInput: The text is no cursor of a period.
        """
        parts = _decode(text).split(" ")
        if len(parts) != _LEDGER_PARTS or not re.fullmatch(r"[0-9]{1,9}", parts[-1]):
            raise InvalidInput(_UNREADABLE)
        try:
            return cls(parse_moment(parts[0]), UUID(parts[1]), int(parts[2]))
        except ValueError:
            raise InvalidInput(_UNREADABLE) from None


_LEDGER_PARTS = 3


@dataclass(frozen=True, slots=True, order=True)
class TextCursor:
    """The last message of a page of search results."""

    created_at: datetime
    id: UUID
    step: int
    idx: int

    @property
    def text(self) -> str:
        """The cursor as clients send it."""
        written = f"{self.created_at.isoformat()} {self.id} {self.step} {self.idx}"
        return base64.urlsafe_b64encode(written.encode()).decode().rstrip("=")

    @classmethod
    def parse(cls, text: str) -> "TextCursor":
        """Parse a cursor that a client sent.

        Raises:
            InvalidInput: The text is no cursor of search results.
        """
        found = _TEXT_PLACE.fullmatch(_decode(text))
        try:
            if found is not None:
                return cls(parse_moment(found[1]), UUID(found[2]), int(found[3]), int(found[4]))
        except ValueError:
            pass
        raise InvalidInput(_UNREADABLE)


_TEXT_PLACE = re.compile(r"(\S+) (\S+) (\d{1,9}) (-?\d{1,9}|[12]\d{9})")


def place_text(step: int, index: int, kind: str) -> str:
    """Return a cursor after a request of an execution: its step, its call's index, and its kind."""
    return base64.urlsafe_b64encode(f"{step} {index} {kind}".encode()).decode().rstrip("=")


_PLACE = re.compile(r"(\d{1,9}) (\d{1,9}) ([a-z]{1,20})")


def parse_place(text: str) -> tuple[int, int, str]:
    """Return the place that a cursor of `place_text` names.

    Raises:
        InvalidInput: The text is no such cursor.
    """
    found = _PLACE.fullmatch(_decode(text))
    if found is None:
        raise InvalidInput(_UNREADABLE)
    return int(found[1]), int(found[2]), found[3]


def page_size(limit: int) -> int:
    """Return the limit if it is within bounds.

    Raises:
        InvalidInput: The limit is not a whole number between 1 and `MAX_PAGE`.
    """
    if isinstance(limit, bool) or not 1 <= limit <= MAX_PAGE:
        raise InvalidInput(f"limit is {limit!r}; pass a whole number from 1 to {MAX_PAGE}")
    return limit
