"""Parsed documents that many executions have alike, such as the definition and the plan of their agent.

A process that runs a thousand executions of an agent with many tools holds one copy of it instead of a
thousand. A copy is shared only if it is equal in every part.
"""

from collections.abc import Hashable, Mapping
from typing import Any, Final

MAX_DOCUMENTS: Final = 200
"""The number of documents that are kept, each for a definition of an agent."""


class SharedDocuments:
    """The last document for each key; the ones that were added first are evicted."""

    def __init__(self, limit: int = MAX_DOCUMENTS) -> None:
        self._limit = limit
        self._documents: dict[Hashable, Mapping[str, Any]] = {}

    def share(self, key: Hashable, document: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return an equal document that was passed before with this key, or else this one.

        Args:
            key: Under which equal documents are likely.
            document: Nothing may change it.
        """
        known = self._documents.get(key)
        if known is not None and known == document:
            return known
        self._documents.pop(key, None)
        if len(self._documents) >= self._limit:
            del self._documents[next(iter(self._documents))]
        self._documents[key] = document
        return document
