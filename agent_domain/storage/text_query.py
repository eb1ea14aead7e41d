"""Queries of full-text search, as people type them.

invoice acme              messages with both words
"unpaid invoice"          with these words in this order
invoice -paid             with the first word and without the second
refund OR chargeback      with one of them
ship*                     with a word that begins like this
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise

from everstep.agent_domain.errors import InvalidInput

MAX_QUERY = 500
"""The limit of a query in characters."""
MAX_TERMS = 20
"""The limit of words and phrases in a query."""

INVISIBLE = "\u00ad\u200b-\u200f\u202a-\u202e\u2060-\u206f\ufeff"
"""Characters without a width, such as directions of text and soft hyphens: they are no part of a word."""

PUNCTUATION = (
    "\u0080-\u00a9\u00ab-\u00b4\u00b6-\u00b9\u00bb\u00bf\u00d7\u00f7\u2010-\u2029\u202f-\u205f\u20a0-\u20cf"
    "\u2190-\u2bff\u3000-\u3004\u3008-\u3020\u3030\uff00-\uff0f\uff1a-\uff20\uff3b-\uff40\uff5b-\uff65"
)
"""Characters beyond ASCII that separate words."""

UNSPACED = (
    "\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uac00-\ud7af\uf900-\ufaff"
    "\U00020000-\U0003ffff"
)
"""Characters of scripts without spaces between words, and of Korean, which joins particles to words."""

_SEPARATORS = r"\s\x00-\x2f\x3a-\x40\x5b-\x60\x7b-\x7f" + PUNCTUATION
_WORD = re.compile(f"[{UNSPACED}]|[^{_SEPARATORS}{UNSPACED}]+")
_PARTS = re.compile(r'(-?)"([^"]*)"?|(\S+)')


@dataclass(frozen=True)
class QueryTerm:
    """A word or a phrase."""

    words: tuple[str, ...]
    """In lower case."""
    is_excluded: bool = False
    is_prefix: bool = False
    """Whether the last word may go on."""

    @cached_property
    def pattern(self) -> re.Pattern[str]:
        """Matches the term in a text."""
        words = _word_pattern(self.words[0])
        for before, word in pairwise(self.words):
            is_joined = _is_unspaced(before) or _is_unspaced(word)
            words += f"[{_SEPARATORS}{INVISIBLE}]{'*' if is_joined else '+'}{_word_pattern(word)}"
        inner = f"[^{_SEPARATORS}{UNSPACED}]"
        start = "" if _is_unspaced(self.words[0]) else f"(?<!{inner})"
        end = "" if self.is_prefix or _is_unspaced(self.words[-1]) else f"(?!{inner})"
        return re.compile(start + words + end, re.IGNORECASE)


@dataclass(frozen=True)
class TextQuery:
    """What messages have to contain."""

    alternatives: tuple[tuple[QueryTerm, ...], ...]
    """A message matches if it fits all terms of one of them."""

    @classmethod
    def parse(cls, text: str) -> "TextQuery":
        """Parse what a person typed; see the module.

        Raises:
            InvalidInput: It names no word to look for, or too many.
        """
        if len(text) > MAX_QUERY:
            raise InvalidInput(f"the search has {len(text)} characters; send at most {MAX_QUERY}")
        found: list[list[QueryTerm]] = [[]]
        for part in _PARTS.finditer(text):
            if part[3] is not None and part[3].lower() == "or":
                found.append([])
            elif term := _term(part):
                found[-1].append(term)
        alternatives = tuple(tuple(terms) for terms in found if terms)
        if not alternatives or not all(any(not term.is_excluded for term in each) for each in alternatives):
            raise InvalidInput(
                "the search names no word to look for; send at least one, such as: invoice -paid"
            )
        if sum(map(len, alternatives)) > MAX_TERMS:
            raise InvalidInput(f"the search has more than {MAX_TERMS} words or phrases; send fewer")
        return cls(alternatives)

    @classmethod
    def parse_optional(cls, text: str | None) -> "TextQuery | None":
        """Parse what a person typed, or return None for None; raises like `parse`."""
        return None if text is None else cls.parse(text)

    def matches(self, text: str) -> bool:
        """Whether a text fits the query."""
        plain = _INVISIBLE.sub("", text)
        return any(
            all(term.is_excluded is not bool(term.pattern.search(plain)) for term in terms)
            for terms in self.alternatives
        )

    def marks(self, text: str) -> Iterator[tuple[int, int]]:
        """Yield where the words that are looked for are in a text, in no order."""
        for terms in self.alternatives:
            for term in terms:
                if not term.is_excluded:
                    yield from (found.span() for found in term.pattern.finditer(text))


_INVISIBLE = re.compile(f"[{INVISIBLE}]+")


def _term(part: re.Match[str]) -> QueryTerm | None:
    """Return the term of a part of a query; None for punctuation alone."""
    is_phrase = part[3] is None
    written = part[2] if is_phrase else part[3]
    is_excluded = bool(part[1]) if is_phrase else written.startswith("-")
    is_prefix = not is_phrase and written.endswith("*")
    words = tuple(word.lower() for word in _WORD.findall(_INVISIBLE.sub("", written)))
    return QueryTerm(words, is_excluded, is_prefix) if words else None


def _is_unspaced(word: str) -> bool:
    return re.fullmatch(f"[{UNSPACED}]", word) is not None


def _word_pattern(word: str) -> str:
    """Match a word, also with invisible characters inside it."""
    return f"[{INVISIBLE}]*".join(map(re.escape, word))
