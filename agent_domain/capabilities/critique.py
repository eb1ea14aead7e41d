"""Self-critique: the review of the final answer, the message that requests a revision, and the criterion.

It uses what every capability can use: the review is metadata, its verdict is a mark, and a registered
criterion reads the mark.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any, ClassVar, TypeAlias

from pydantic import BaseModel, ConfigDict, ValidationError, field_validator

from everstep.agent_domain.checks import faults, require_integer_at_least
from everstep.agent_domain.errors import InvalidInput
from everstep.agent_domain.loop.continuation import ContinuationDecision, ContinuationEvaluation
from everstep.agent_domain.loop.status import StopReason
from everstep.agent_domain.loop.views import ExecutionView
from everstep.agent_domain.values import EMPTY, FrozenDict, frozen_map, json_text, parse_json

RESULT_KEY = "self_critic_result"
ITERATION_KEY = "self_critic_iteration"
MARK = "critique"

CRITIC_RETRIES = 2
MAX_EVIDENCE = 6000
EVIDENCE_END = 3000

Call: TypeAlias = tuple[str, Mapping[str, Any], str]
"""A tool call as evidence: its name, its arguments and the text of its result."""


@dataclass(frozen=True, slots=True)
class CritiquePolicy:
    """How often an answer is reviewed, the critic's model, and whether reviews are logged."""

    max_iterations: int = 2
    verbose: bool = True
    llm_preset: str | None = None

    def __post_init__(self) -> None:
        require_integer_at_least("max_iterations", self.max_iterations, 0)

    def due(self, step_type: str, text: str, iteration: int) -> bool:
        """Whether to review a completed step.

        Args:
            step_type: The type of the step; only final ones are reviewed.
            text: The answer.
            iteration: The number of earlier reviews.
        """
        return step_type == "final" and bool(text.strip()) and iteration < self.max_iterations


class CritiqueVerdict(StrEnum):
    """A critic's verdict on the answer."""

    APPROVED = "approved"
    REJECTED = "rejected"


@dataclass(frozen=True, slots=True)
class CritiqueFacts:
    """The latest critique, without its text."""

    verdict: CritiqueVerdict
    iteration: int

    @classmethod
    def from_marks(cls, marks: Mapping[str, Any]) -> "CritiqueFacts | None":
        """The critique among the marks of an execution, if there is one."""
        mark = marks.get(MARK)
        return cls(CritiqueVerdict(mark["verdict"]), int(mark["iteration"])) if mark else None

    def to_mark(self) -> dict[str, Any]:
        """The value of the mark."""
        return {"verdict": self.verdict, "iteration": self.iteration}


@dataclass(frozen=True)
class SelfCriticContinuationCheck:
    """Requests another step while a critic rejects the answer, up to `max_iterations` critiques."""

    criterion_class: ClassVar[str] = "agent_domain.criteria.SelfCriticContinuationCheck"
    """The original path, as qualified names are sent to clients and stored."""

    max_iterations: int = 2

    def decide(self, state: ExecutionView) -> ContinuationDecision:
        """Vote on another step."""
        critique = CritiqueFacts.from_marks(state.marks)
        if critique is None or critique.verdict is CritiqueVerdict.APPROVED:
            return ContinuationDecision.STOP
        is_last = critique.iteration >= self.max_iterations
        return ContinuationDecision.FORBID if is_last else ContinuationDecision.REQUEST

    def explain(self, state: ExecutionView) -> ContinuationEvaluation:
        """The vote with its reasons."""
        critique = CritiqueFacts.from_marks(state.marks)
        vote = ContinuationEvaluation.from_decision(self.criterion_class, self.decide(state))
        if critique is None or critique.verdict is CritiqueVerdict.APPROVED:
            return vote
        numbers = frozen_map({"critiques": critique.iteration, "maxCritiques": self.max_iterations})
        if vote.decision is not ContinuationDecision.FORBID:
            return replace(vote, numbers=numbers)
        reason = f"Answer still rejected after {critique.iteration} of {self.max_iterations} critiques"
        return replace(vote, reason=reason, numbers=numbers, stop_reason=StopReason.RETRY_LIMIT)


class Critique(BaseModel):
    """The critic's verdict."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    approved: bool
    summary: str = ""
    strengths: tuple[str, ...] = ()
    weaknesses: tuple[str, ...] = ()
    suggestions: tuple[str, ...] = ()

    @field_validator("strengths", "weaknesses", "suggestions", mode="before")
    @classmethod
    def _as_points(cls, value: object) -> object:
        # Some models send a single point or null instead of a list.
        return () if value is None else (value,) if isinstance(value, str) else value

    def to_metadata(self, iteration: int) -> dict[str, Any]:
        """The metadata that stores this review and its number."""
        return {RESULT_KEY: self.model_dump(mode="json"), ITERATION_KEY: iteration}

    def facts(self, iteration: int) -> CritiqueFacts:
        """The verdict, for the mark that the criterion reads."""
        verdict = CritiqueVerdict.APPROVED if self.approved else CritiqueVerdict.REJECTED
        return CritiqueFacts(verdict, iteration)

    def revision(self, iteration: int, policy: CritiquePolicy) -> str | None:
        """The user message that requests a revision; None if the answer stays."""
        if self.approved or iteration >= policy.max_iterations:
            return None
        parts = [
            f"[Critique {iteration}: revise your answer]",
            f"Problem: {self.summary.strip() or 'the answer was not approved'}",
            *_points("Weaknesses", self.weaknesses),
            *_points("Suggestions", self.suggestions),
            "Act on this now: do what is missing, then give the complete revised answer.",
        ]
        return "\n\n".join(parts)


def _points(title: str, points: Iterable[str]) -> list[str]:
    lines = [f"- {point.strip()}" for point in points if point.strip()]
    return ["\n".join([f"{title}:", *lines])] if lines else []


def approval(reason: str) -> Critique:
    """The verdict when the critic failed: it approves."""
    return Critique(approved=True, summary=f"Approved without critique: {reason}")


def parse_critique(answer: str) -> Critique:
    """Parse the critic's verdict from a JSON object; text around the object is ignored.

    Raises:
        InvalidInput: There is no such object, or it is malformed.
    """
    data = parse_json(answer[answer.find("{") : answer.rfind("}") + 1], "the critic's answer")
    try:
        return Critique.model_validate(data)
    except ValidationError as error:
        problem = f"the critic's answer does not fit: {faults(error)}"
        raise InvalidInput(problem) from None


def iteration_of(metadata: Mapping[str, Any]) -> int:
    """The number of reviews that this execution has had."""
    value = metadata.get(ITERATION_KEY)
    return value if isinstance(value, int) and value > 0 else 0


def former_marks_of(metadata: Mapping[str, Any]) -> FrozenDict:
    """The mark of a state that was stored before marks existed; its verdict is in the metadata only."""
    result = metadata.get(RESULT_KEY)
    if not isinstance(result, FrozenDict):
        return EMPTY
    verdict = CritiqueVerdict.APPROVED if result.get("approved") else CritiqueVerdict.REJECTED
    return frozen_map({MARK: CritiqueFacts(verdict, iteration_of(metadata)).to_mark()})


# --- The critic's prompt ---

CRITIC_PROMPT = """\
You review the answer of an agent before its user reads it. Judge only whether it does what the task \
asks for and whether the evidence supports it. Claims without evidence, unfinished work and failed tool \
calls that the answer hides are reasons to reject; matters of taste are not.

Answer with one JSON object: "approved" (true or false), "summary" (one sentence), "strengths", \
"weaknesses" and "suggestions" (lists of short sentences)."""


def evidence(calls: Iterable[Call]) -> str:
    """The tool calls as text for the critic; a long text is shortened in the middle."""
    text = "\n\n".join(_exchange(*call) for call in calls) or "(no tool calls)"
    omitted = len(text) - 2 * EVIDENCE_END
    if len(text) <= MAX_EVIDENCE:
        return text
    return f"{text[:EVIDENCE_END]}\n... ({omitted} characters omitted) ...\n{text[-EVIDENCE_END:]}"


def _exchange(name: str, args: Mapping[str, Any], result: str) -> str:
    return f"Tool: {name}\nArguments: {json_text(args)}\nResult: {result}"


def review_text(task: str, calls: Iterable[Call], response: str) -> str:
    """The user message to the critic."""
    return f"# Task\n\n{task}\n\n# Evidence\n\n{evidence(calls)}\n\n# Answer to review\n\n{response}"
