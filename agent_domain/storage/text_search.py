"""Full-text search: queries of people, what they match, and the excerpts that show it.

A word is a run of letters and digits: punctuation separates words, so that parts of paths, addresses and
identifiers are found. In scripts without spaces between words, each character is a word, and a run of them in
a query is a phrase, which matches any part of a sentence. There is no stemming: texts are in any language.
PostgreSQL cuts texts in the same way, in the function of the index (`agent_search_vector`).
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Protocol

from everstep.agent_domain.errors import InvalidInput
from everstep.agent_domain.ids import ExecutionRef, Scope
from everstep.agent_domain.messages.disclosure import PUBLIC_CONTENT
from everstep.agent_domain.messages.messages import Message, Role
from everstep.agent_domain.storage.executions import Page
from everstep.agent_domain.storage.sessions import ExecutionFilter
from everstep.agent_domain.storage.text_query import TextQuery

SEARCHED_ROLES = (Role.USER, Role.ASSISTANT, Role.TOOL)
"""The roles of messages that are searched: instructions belong to the agent."""

SEARCHED_CHARACTERS = 50_000
"""How much of a message is searched, from its beginning."""

_EXCERPT = 240
"""The length of an excerpt, in characters."""
_BEFORE_MATCH = 60
"""How much of an excerpt precedes the first match, if it is not the beginning of the text."""
_WORD = 20
"""How much shorter an excerpt may be, to end after a word."""
_CUT = "…"


class HitKind(StrEnum):
    """Where a match is."""

    MESSAGE = "message"
    """In a message of a user."""
    REPLY = "reply"
    """In a text of the model."""
    ARGUMENTS = "arguments"
    """In the name or the arguments of a call."""
    RESULT = "result"
    """In the result of a call."""


@dataclass(frozen=True, slots=True)
class Excerpt:
    """The part of a text around its first match."""

    text: str
    marks: tuple[tuple[int, int], ...]
    """The matches in this text: the first character, and the one after the last."""


@dataclass(frozen=True, slots=True)
class SearchedCall:
    """A call as search sees it."""

    id: str
    tool: str
    arguments: str
    """As JSON."""

    @property
    def text(self) -> str:
        """The text in which words are looked for."""
        return f"{self.tool}\n{_unescaped(self.arguments)}"

    def excerpt(self, query: TextQuery) -> Excerpt:
        """Return an excerpt of the arguments, or of the name as well if it matches."""
        own, whole = excerpt(_unescaped(self.arguments), query), excerpt(self.text, query)
        return own if len(own.marks) == len(whole.marks) else whole


@dataclass(frozen=True, slots=True)
class SearchedMessage:
    """A message as search sees it, with what every viewer may read."""

    role: Role
    said: str
    calls: Sequence[SearchedCall] = ()
    tool: str | None = None
    """Of the call whose result it is."""
    call_id: str | None = None

    @classmethod
    def of(cls, message: Message) -> "SearchedMessage":
        """Convert a message of a conversation."""
        told = message.metadata.get(PUBLIC_CONTENT)
        calls = (call.get("function", {}) | {"id": call.get("id")} for call in message.calls)
        return cls(
            message.role,
            (message.text if told is None else told)[:SEARCHED_CHARACTERS],
            tuple(
                SearchedCall(str(call["id"]), str(call.get("name", "")), str(call.get("arguments", "")))
                for call in calls
            ),
            message.metadata.get("tool_name"),
            message.answers,
        )

    @property
    def text(self) -> str:
        """The text in which words are looked for."""
        parts = (self.said, *(call.text for call in self.calls))
        return "\n".join(parts)[:SEARCHED_CHARACTERS]

    def locate(self, query: TextQuery) -> "HitLocation":
        """Return where the message shows most of a query that it matches."""
        if self.role is Role.TOOL:
            return HitLocation(HitKind.RESULT, excerpt(self.said, query), self.tool, self.call_id)
        own = HitKind.MESSAGE if self.role is Role.USER else HitKind.REPLY
        found = [HitLocation(own, excerpt(self.said, query))]
        found += [
            HitLocation(HitKind.ARGUMENTS, call.excerpt(query), call.tool, call.id) for call in self.calls
        ]
        return max(found, key=lambda each: len(each.excerpt.marks))


@dataclass(frozen=True, slots=True)
class HitLocation:
    """The part of a message that matches."""

    kind: HitKind
    excerpt: Excerpt
    tool: str | None = None
    """The tool of the call, for arguments and results."""
    call_id: str | None = None


@dataclass(frozen=True, slots=True)
class TextHit:
    """A message that matches a query."""

    ref: ExecutionRef
    agent: str
    user_id: str | None
    title: str | None
    """The title of the session."""
    step: int
    """0 for the messages with which the execution began."""
    created_at: datetime
    location: HitLocation


class TextSearch(Protocol):
    """Searches what was said in executions."""

    async def search_text(
        self,
        scope: Scope,
        query: TextQuery,
        wanted: ExecutionFilter,
        *,
        cursor: str | None = None,
        limit: int = 50,
    ) -> Page[TextHit]:
        """Return a page of messages that match: those of the newest execution first, its latest first.

        Raises:
            SearchTooSlow: It takes too long.
        """
        ...


class SearchTooSlow(InvalidInput):
    """A search was given up."""

    def __init__(self, seconds: float) -> None:
        super().__init__(
            f"the search was given up after {seconds:g} seconds; name a rarer word, or search a shorter "
            "time, one agent or one user"
        )


def excerpt(text: str, query: TextQuery) -> Excerpt:
    """Return the part of a text around its first match, or its beginning if nothing matches."""
    found = sorted(_merged(sorted(query.marks(text))))
    start = max(0, found[0][0] - _BEFORE_MATCH) if found and found[0][1] > _EXCERPT else 0
    if start:
        # Begin at a word, if there is one before the match.
        start = text.find(" ", start, found[0][0]) + 1 or start
    end = min(start + _EXCERPT, len(text))
    if end < len(text):
        # End after a word, if one ends soon before.
        space = text.rfind(" ", end - _WORD, end)
        end = space if space >= 0 else end
    before, after = _CUT if start else "", _CUT if end < len(text) else ""
    moved = len(before) - start
    marks = ((first + moved, min(last, end) + moved) for first, last in found if first < end)
    return Excerpt(before + text[start:end] + after, tuple(marks))


def _merged(marks: Sequence[tuple[int, int]]) -> Iterator[tuple[int, int]]:
    """Join matches that overlap."""
    start = end = -1
    for first, last in marks:
        if first > end:
            if end > start:
                yield start, end
            start = first
        end = max(end, last)
    if end > start:
        yield start, end


_ESCAPES = re.compile(r'\\(["\\/ntr])')
_UNESCAPED = {"n": "\n", "t": "\t", "r": "\r"}


def _unescaped(arguments: str) -> str:
    """Return JSON without the escapes that would be letters of words."""
    return _ESCAPES.sub(lambda found: _UNESCAPED.get(found[1], found[1]), arguments)
