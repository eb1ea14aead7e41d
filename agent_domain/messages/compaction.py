"""Compactions: what of a long conversation models read no longer, and the summaries that stand for it.

A compaction changes requests only. The conversation stays whole: in the state, in the store, and for people.
Each compaction is complete in itself: the latest one says everything about the requests after it. Positions
count the messages of the conversation from 0.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from everstep.agent_domain.loop.usage import Usage
from everstep.agent_domain.values import frozen_map, reading


@dataclass(frozen=True, slots=True)
class Compaction:
    """What requests contain instead of the beginning of the conversation."""

    replaced: int = 0
    """How many messages, from the beginning, the summaries stand for."""
    summaries: tuple[str, ...] = ()
    """The summaries, oldest first; a further compaction usually keeps them as they are, for caches."""
    results_before: int = 0
    """Results of tools before this position are sent without their texts."""
    shortened: tuple[tuple[int, int], ...] = ()
    """Positions of results that are too long for any request, and how many characters of them are sent."""
    added: tuple[int, ...] = ()
    """Positions before `replaced` of messages that are sent: instructions at the beginning of the
    conversation, and messages that hooks have since put before it.
    """
    step: int = 0
    """The number of the step before which it was made."""
    messages: int = 0
    """How many messages it newly replaced."""
    results: int = 0
    """How many results it newly cut or shortened."""
    tokens_before: int = 0
    """The input tokens of the request without it, as far as they were known."""
    tokens_after: int = 0
    """The estimated input tokens of the request with it."""
    usage: Usage = Usage()
    """The tokens that its summary cost."""
    seconds: float = 0.0
    """How long it took."""

    @property
    def text(self) -> str:
        """What it did, for people."""
        summarized = _number(self.messages, "message was", "messages were")
        cut = _number(self.results, "result of a tool was", "results of tools were")
        parts = [f"{summarized} summarized" if summarized else "", f"{cut} cut" if cut else ""]
        # Neither: the earlier summaries alone were summarized again.
        done = " and ".join(part for part in parts if part) or "its summaries were joined"
        return f"The conversation was compacted: {done}, {self.tokens_before} -> {self.tokens_after} tokens"

    def to_wire(self) -> dict[str, Any]:
        """What it did, without texts, as viewers receive it."""
        return {
            "messages": self.messages,
            "results": self.results,
            "summarized": self.usage != Usage() or self.messages > 0,
            "tokens_before": self.tokens_before,
            "tokens_after": self.tokens_after,
            "usage": self.usage.to_wire(),
        }

    def rebased(self, before: Sequence[object], after: Sequence[object]) -> "Compaction | None":
        """The same compaction for a changed conversation.

        Args:
            before: The messages for which it was made.
            after: The messages now.

        Returns:
            None if the replaced messages are not in the conversation any more.
        """
        old = tuple(before[: self.replaced])
        counts = range(max(0, len(after) - len(before)) + 1)
        found = (count for count in counts if tuple(after[count : count + self.replaced]) == old)
        count = next(found, None)
        return None if count is None else self.shifted(count)

    def shifted(self, count: int, start: int = 0) -> "Compaction":
        """The same compaction after `count` messages were put before the message at `start`."""
        if not count:
            return self

        def moved(position: int) -> int:
            return position + count if position >= start else position

        fresh = range(start, start + count) if self.replaced > start else ()
        return replace(
            self,
            replaced=self.replaced + len(fresh),
            results_before=self.results_before + (count if self.results_before > start else 0),
            shortened=tuple((moved(position), kept) for position, kept in self.shortened),
            added=tuple(sorted([*map(moved, self.added), *fresh])),
        )

    def within(self, count: int) -> "Compaction | None":
        """The same compaction for the first `count` messages; None if it replaces more of them."""
        if self.replaced > count:
            return None
        shortened = tuple(pair for pair in self.shortened if pair[0] < count)
        return replace(self, results_before=min(self.results_before, count), shortened=shortened)

    def without(self, positions: Collection[int]) -> "Compaction":
        """The same compaction for the conversation without the messages at these positions."""
        if not positions:
            return self

        def moved(position: int) -> int:
            return position - sum(each < position for each in positions)

        return replace(
            self,
            replaced=moved(self.replaced),
            results_before=moved(self.results_before),
            shortened=tuple((moved(at), kept) for at, kept in self.shortened if at not in positions),
            added=tuple(moved(at) for at in self.added if at not in positions),
        )

    def to_dict(self) -> dict[str, Any]:
        """Convert to JSON data."""
        return {
            "replaced": self.replaced,
            "summaries": list(self.summaries),
            "resultsBefore": self.results_before,
            "shortened": [list(pair) for pair in self.shortened],
            "added": list(self.added),
            "step": self.step,
            "messages": self.messages,
            "results": self.results,
            "tokensBefore": self.tokens_before,
            "tokensAfter": self.tokens_after,
            "usage": self.usage.to_dict(),
            "seconds": self.seconds,
        }

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> "Compaction":
        """Read the JSON form; unknown keys are ignored."""
        with reading("the compaction"):
            data = frozen_map(data, "the compaction")
            return cls(
                int(data["replaced"]),
                tuple(map(str, data["summaries"])),
                int(data["resultsBefore"]),
                tuple((int(position), int(kept)) for position, kept in data.get("shortened") or ()),
                tuple(map(int, data.get("added") or ())),
                int(data.get("step") or 0),
                int(data.get("messages") or 0),
                int(data.get("results") or 0),
                int(data.get("tokensBefore") or 0),
                int(data.get("tokensAfter") or 0),
                Usage.from_dict(data.get("usage")),
                float(data.get("seconds") or 0.0),
            )


def _number(count: int, one: str, more: str) -> str:
    return f"{count} {one if count == 1 else more}" if count else ""
