"""Response models about the steps of an execution."""

from collections.abc import Mapping
from typing import Any, Self

from pydantic import Field

from everstep.agent_domain.explanation.because import ExecutionBecause, HeardMessage, StepBecause
from everstep.agent_domain.loop.continuation import ContinuationDecision, ContinuationEvaluation
from everstep.agent_domain.loop.step_error import StepError
from everstep.agent_domain.messages.compaction import Compaction
from everstep.agent_domain.messages.disclosure import public_document
from everstep.agent_domain.storage.calls import CallRecord, CallRow
from everstep.agent_domain.storage.steps import RetryWait, StepRow
from everstep.http_api.schemas.attachment_responses import AttachmentResponse
from everstep.http_api.schemas.text import Moment, ResponseModel, Usd

BECAUSE = "One sentence that says what decided, with its numbers."


class ErrorInfo(ResponseModel):
    """An error in a step."""

    message: str
    type: str | None
    tool: str | None

    @classmethod
    def of(cls, error: StepError, *, in_full: bool = False) -> Self:
        """Convert an error of a step; `in_full` includes its text."""
        message = error.message if in_full else error.told
        return cls(message=message, type=error.type, tool=error.tool_name)


class CallProgress(ResponseModel):
    """How far a running call is."""

    text: str
    fraction: float | None = Field(description="The part that is done, from 0 to 1; null if it is unknown.")


class Call(ResponseModel):
    """A tool call, and its result once it has one."""

    id: str
    tool: str
    args: Mapping[str, Any] = Field(description="The arguments that the call runs with.")
    requested_args: Mapping[str, Any] | None = Field(
        default=None, description="The arguments of the model, if a person edited them."
    )
    state: str
    attempts: int
    result: Any = None
    text: str | None = Field(default=None, description="The text that the model reads.")
    success: bool | None = None
    error: ErrorInfo | None = None
    started_at: Moment | None = None
    completed_at: Moment | None = None
    attachments: list[AttachmentResponse] = Field(
        default_factory=list[AttachmentResponse], description="The files that the tool returned."
    )
    progress: CallProgress | None = Field(
        default=None,
        description="What the tool reported last; null without a report and after the end.",
    )

    @classmethod
    def of(cls, row: CallRow, *, in_full: bool = False) -> Self:
        """Convert a stored row; `in_full` includes the texts of errors."""
        call = cls(
            id=row.call.id,
            tool=row.call.name,
            args=row.allowed.args,
            requested_args=None if row.edited_args is None else row.call.args,
            state=row.state,
            progress=CallProgress(**row.progress.to_dict()) if row.progress else None,
            attempts=row.attempts,
        )
        record = row.record
        if record is None:
            return call
        outcome = {
            "result": record.result,
            "text": record.text if in_full else _public_text(record),
            "success": record.success,
            "error": ErrorInfo.of(record.error, in_full=in_full) if record.error else None,
            "started_at": record.started_at,
            "completed_at": record.completed_at,
            "attachments": [AttachmentResponse.of(each) for each in record.attachments],
        }
        return call.model_copy(update=outcome)


def _public_text(record: CallRecord) -> str:
    error = record.error
    return record.text.replace(error.message, error.told) if error and error.message else record.text


class RetryDelay(ResponseModel):
    """The delay of a model call, and the time of the next attempt."""

    detail: str
    since: Moment
    next_attempt_at: Moment

    @classmethod
    def of(cls, wait: RetryWait) -> Self:
        """Convert a wait, without the text of the provider."""
        return cls(detail=wait.told, since=wait.since, next_attempt_at=wait.until)


class CompactionDone(ResponseModel):
    """A compaction: from then on, requests contain less of the conversation, which itself stays whole."""

    step_number: int = Field(description="The step before which it was made; it is no step itself.")
    messages: int = Field(description="How many messages were newly replaced by a summary.")
    results: int = Field(description="How many results of tools were newly cut.")
    replaced: int = Field(description="How many messages, from the beginning, summaries stand for.")
    summary: str | None = Field(description="The new summary; null if only results were cut.")
    tokens_before: int
    tokens_after: int
    usage: Mapping[str, int]
    cost_usd: Usd | None = Field(default=None, description="What it cost; null if that is unknown.")
    seconds: float

    @classmethod
    def of(cls, compaction: Compaction) -> Self:
        """Convert a stored compaction."""
        has_summary = bool(compaction.summaries) and compaction.messages > 0
        return cls(
            step_number=compaction.step,
            messages=compaction.messages,
            results=compaction.results,
            replaced=compaction.replaced,
            summary=compaction.summaries[-1] if has_summary else None,
            tokens_before=compaction.tokens_before,
            tokens_after=compaction.tokens_after,
            usage=compaction.usage.to_wire(),
            cost_usd=compaction.usage.cost_usd,
            seconds=compaction.seconds,
        )


class Step(ResponseModel):
    """One exchange with the model, and its tool calls."""

    number: int
    attempt: int
    type: str | None = Field(description="Null until the model has answered.")
    finish_reason: str | None
    usage: Mapping[str, int] | None
    cost_usd: Usd | None = Field(
        default=None,
        description="What all model calls of the step cost, those of its tools and hooks included; null if "
        "that is unknown.",
    )
    errors: list[ErrorInfo]
    messages: list[dict[str, Any]]
    calls: list[Call]
    partial_text: str = Field(description="The text of an unfinished answer so far.")
    compactions: list[CompactionDone] = Field(
        default_factory=list[CompactionDone], description="The compactions before its model call."
    )
    waits: RetryDelay | None = Field(
        default=None, description="Set while the model call is delayed because the provider is unavailable."
    )
    started_at: Moment
    completed_at: Moment | None
    duration_ms: float | None
    first_text_ms: float | None = Field(
        default=None, description="From the request to the model until its first text; null without text."
    )
    because: str = Field(description=BECAUSE)

    @classmethod
    def of(cls, row: StepRow, because: str, *, in_full: bool = False) -> Self:
        """Convert a stored row; `in_full` includes the texts of errors."""
        facts = row.facts
        messages = [message.to_dict() for message in row.messages]
        return cls(
            number=row.number,
            attempt=row.attempt,
            type=facts.step_type if facts else None,
            finish_reason=facts.finish_reason if facts else None,
            usage=facts.usage.to_wire() if facts else None,
            cost_usd=row.cost_usd,
            errors=[ErrorInfo.of(error, in_full=in_full) for error in row.errors],
            messages=messages if in_full else public_document(messages),
            calls=[Call.of(call, in_full=in_full) for call in row.calls],
            partial_text=row.partial_text,
            compactions=list(map(CompactionDone.of, row.compactions)),
            waits=RetryDelay.of(row.waits) if row.waits else None,
            started_at=row.started_at,
            completed_at=row.completed_at,
            duration_ms=row.duration_ms,
            first_text_ms=None if row.first_text_seconds is None else row.first_text_seconds * 1000,
            because=because,
        )


class Decision(ResponseModel):
    """The decision after a step: all votes, and the outcome."""

    number: int
    cost_usd: Usd | None = Field(
        default=None, description="What all model calls of the step cost; null if that is unknown."
    )
    outcome: Mapping[str, Any] | None = Field(description="Null until the step is complete.")
    compactions: list[CompactionDone] = Field(
        default_factory=list[CompactionDone], description="The compactions before its model call."
    )
    because: str = Field(description=BECAUSE)

    @classmethod
    def of(cls, row: StepRow, because: str, *, in_full: bool = False) -> Self:
        """Convert a stored row; `in_full` includes the texts of errors."""
        return cls(
            number=row.number,
            cost_usd=row.cost_usd,
            outcome=row.outcome if in_full else public_document(row.outcome),
            compactions=list(map(CompactionDone.of, row.compactions)),
            because=because,
        )


class Vote(ResponseModel):
    """The vote of a criterion about another step."""

    criterion: str
    decision: ContinuationDecision
    reason: str
    source: str | None = Field(default=None, description="Who requested the stop, in a stop signal's vote.")

    @classmethod
    def of(cls, vote: ContinuationEvaluation) -> Self:
        """Convert a vote."""
        return cls(
            criterion=vote.name, decision=vote.decision, reason=vote.reason, source=vote.source or None
        )


class Heard(ResponseModel):
    """A message or a decision of a person that a step received."""

    kind: str = Field(
        description="`message`, or the decision: `answer`, `default`, `approve`, `deny`, `edit` or `expired`."
    )
    id: str = Field(description="The key of the message, or the id of the request.")
    by: str | None = Field(description="Who sent it, if that is recorded.")

    @classmethod
    def of(cls, message: HeardMessage) -> Self:
        """Convert what a step received."""
        return cls(kind=message.kind, id=message.id, by=message.by)


class StepExplained(ResponseModel):
    """Why a step was followed by another one, or by none, or what it waits for."""

    number: int
    because: str = Field(description=BECAUSE)
    votes: list[Vote] = Field(description="The votes behind it that say something.")
    folded_votes: int = Field(description="How many other votes had no objection.")
    superseded: list[str] = Field(description="The attempts that were given up, and why.")
    messages: list[Heard] = Field(description="What the step received from people.")
    compactions: list[str] = Field(description="How the conversation was shortened before it.")
    usage: Mapping[str, int] = Field(description="The tokens of all its model calls.")
    cost_usd: Usd | None = Field(description="What they cost; null if that is unknown.")

    @classmethod
    def of(cls, step: StepBecause) -> Self:
        """Convert the because of a step."""
        return cls(
            number=step.number,
            because=step.sentence,
            votes=list(map(Vote.of, step.votes)),
            folded_votes=step.folded_votes,
            superseded=list(step.superseded),
            messages=list(map(Heard.of, step.messages)),
            compactions=list(step.compactions),
            usage=step.usage.to_wire(),
            cost_usd=step.cost_usd,
        )


class BecauseResponse(ResponseModel):
    """Why an execution ended, or what it waits for, and why each step was followed by another one."""

    because: str = Field(description=BECAUSE)
    steps: list[StepExplained]
    next_cursor: str | None = Field(description="The `after` of the next page; null on the last one.")

    @classmethod
    def of(cls, because: ExecutionBecause, next_cursor: str | None) -> Self:
        """Convert the because of an execution, with a page of its steps."""
        return cls(
            because=because.sentence,
            steps=list(map(StepExplained.of, because.steps)),
            next_cursor=next_cursor,
        )
