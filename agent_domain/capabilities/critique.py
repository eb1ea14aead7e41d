"""Self-critique: the review of the final answer, and the message that requests a revision."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

from pydantic import BaseModel, ConfigDict, ValidationError, field_validator

from everstep.agent_domain.checks import faults, require_integer_at_least
from everstep.agent_domain.errors import InvalidInput
from everstep.agent_domain.values import json_text, parse_json

RESULT_KEY = "self_critic_result"
ITERATION_KEY = "self_critic_iteration"

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
