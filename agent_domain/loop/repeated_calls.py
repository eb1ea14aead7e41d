"""Repeated calls: the same tool with the same arguments and the same result, again and again in a row.

A model that repeats itself gets nowhere, and each round costs money. Facts have no arguments and results, so
each call with a result has a short digest of them. Two different calls have the same digest once in four
billion times, and a limit needs that several times in a row.
"""

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any, Final

from everstep.agent_domain.checks import require_integer_at_least
from everstep.agent_domain.loop.continuation import (
    ContinuationDecision,
    ContinuationEvaluation,
    class_name,
)
from everstep.agent_domain.loop.status import StopReason
from everstep.agent_domain.values import frozen_map, json_text

DIGEST_LENGTH: Final = 8
"""Hexadecimal digits; workflow history contains them."""


def call_digest(tool: str, arguments: object, result: str) -> str:
    """The digest of a call with its result.

    Args:
        tool: The name of the tool.
        arguments: The arguments as the model made them.
        result: The text that the model reads.
    """
    text = json_text([tool, arguments, result])
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:DIGEST_LENGTH]


@dataclass(frozen=True, slots=True)
class RepeatedCalls:
    """How often the last call was repeated."""

    digest: str = ""
    """The digest of the last call."""
    count: int = 0
    """How often it was made in a row, itself included; 0 after a step without calls."""
    previous: int = 0
    """The count when the step began."""

    def with_step(self, digests: Iterable[str | None]) -> "RepeatedCalls":
        """A copy after a step with these calls; None stands for a call of an older release."""
        digest, count = self.digest, 0
        for place, each in enumerate(digests):
            before = self.count if place == 0 else count
            count = before + 1 if each is not None and each == digest else 1
            digest = each or ""
        return replace(self, digest=digest if count else "", count=count)

    def step_started(self) -> "RepeatedCalls":
        """The next step begins: what was noticed before it is not noticed again."""
        return self if self.previous == self.count else replace(self, previous=self.count)


NO_REPEATED_CALLS: Final = RepeatedCalls()


@dataclass(frozen=True, slots=True)
class LoopReminder:
    """What the model reads before the limit of repeated calls is reached."""

    tool: str
    count: int
    limit: int

    @property
    def text(self) -> str:
        """The text of the message."""
        return (
            f"<loop-reminder>\n{self.tool} was called {self.count} times in a row with the same arguments, "
            "and its result was the same each time. Try something else, or answer with what you know. After "
            f"{self.limit} such calls the work ends.\n</loop-reminder>"
        )


@dataclass(frozen=True)
class RepeatedCallLimit:
    """Forbids another step after the same call with the same result was made `max_calls` times in a row.

    After two thirds of them the model is reminded.
    """

    max_calls: int

    def __post_init__(self) -> None:
        require_integer_at_least("max_calls", self.max_calls, 1)

    @property
    def reminds_at(self) -> int:
        """The number of calls after which the model is reminded."""
        return -(-2 * self.max_calls // 3)

    def decide(self, state: Any) -> ContinuationDecision:
        """Vote on another step."""
        is_reached = state.repeated_calls >= self.max_calls
        return ContinuationDecision.FORBID if is_reached else ContinuationDecision.ALLOW

    def explain(self, state: Any) -> ContinuationEvaluation:
        """The vote with its reason."""
        decision, count = self.decide(state), state.repeated_calls
        vote = ContinuationEvaluation.from_decision(class_name(self), decision)
        if decision is ContinuationDecision.ALLOW:
            return vote
        reason = f"The same call with the same result {count} times in a row, limit {self.max_calls}"
        context = frozen_map({"repeatedCalls": count, "maxCalls": self.max_calls})
        return replace(vote, reason=reason, context=context)

    def stop_reason(self, state: Any, decision: ContinuationDecision) -> StopReason | None:
        """Why the run stops."""
        return StopReason.GUARD

    def reminder(self, repeated: RepeatedCalls, tool: str) -> LoopReminder | None:
        """The reminder that is due before the next step; None if none is.

        Args:
            repeated: The repeated calls so far.
            tool: The tool of the last call.
        """
        is_due = repeated.previous < self.reminds_at <= repeated.count < self.max_calls
        return LoopReminder(tool, repeated.count, self.max_calls) if is_due else None
