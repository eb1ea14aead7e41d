"""Steps with their bodies: one exchange with the model, and the tool calls that resulted from it."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from decimal import Decimal
from functools import partial
from typing import Any, cast
from uuid import UUID

from everstep.agent_domain.loop.continuation import ContinuationOutcome
from everstep.agent_domain.loop.repeated_calls import call_digest
from everstep.agent_domain.loop.step_error import StepError
from everstep.agent_domain.loop.step_facts import CallFacts, CallNeed, StepFacts, StepType, type_of_step
from everstep.agent_domain.loop.stop_signal import StopSignal
from everstep.agent_domain.loop.usage import Usage
from everstep.agent_domain.messages.messages import MessageList, Messages, as_messages
from everstep.agent_domain.tools.tools import ToolCall, ToolExecution
from everstep.agent_domain.values import (
    EMPTY,
    FrozenDict,
    FrozenList,
    as_list,
    format_moment,
    freeze,
    frozen_map,
    parse_moment,
    parse_uuid,
    read_each,
    read_key,
    read_optional,
    require_map,
)


@dataclass(frozen=True, slots=True)
class InferenceResponse:
    """The response of a model."""

    text: str = ""
    tool_calls: tuple[ToolCall, ...] = ()
    finish_reason: str | None = None
    usage: Usage = Usage()
    items: FrozenList = FrozenList()
    """Items that the provider requires back unchanged with the next request, such as its reasoning."""
    model: str = ""
    """The name of the model that answered; empty if it is not known."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "tool_calls", tuple(as_list(self.tool_calls, "the tool calls")))
        if not isinstance(cast("object", self.items), FrozenList):
            object.__setattr__(self, "items", freeze(as_list(self.items, "the items"), "the items"))

    def charged(self, usage: Usage) -> "InferenceResponse":
        """A copy that also counts what earlier attempts at the call used."""
        return replace(self, usage=self.usage + usage)

    def to_dict(self) -> dict[str, Any]:
        """Convert to JSON data."""
        return {
            "text": self.text,
            "toolCalls": [call.to_dict() for call in self.tool_calls],
            "finishReason": self.finish_reason,
            "usage": self.usage.to_dict(),
            "items": self.items,
            **({"model": self.model} if self.model else {}),
        }

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> "InferenceResponse":
        """Read the JSON form; unknown keys are ignored."""
        require_map(data, "the response")
        return cls(
            str(data.get("text", "")),
            read_each(data, "toolCalls", ToolCall.from_dict),
            data.get("finishReason"),
            Usage.from_dict(data.get("usage")),
            FrozenList(read_each(data, "items", freeze)),
            str(data.get("model") or ""),
        )


@dataclass(frozen=True, slots=True)
class AgentStep:
    """One step with its messages, response, tool calls and results."""

    id: UUID
    created_at: datetime
    input_messages: Messages = ()
    output_messages: MessageList = MessageList()
    inference_response: InferenceResponse | None = None
    tool_executions: tuple[ToolExecution, ...] = ()
    own_errors: tuple[StepError, ...] = ()
    own_type: StepType | None = None
    own_usage: Usage | None = None
    is_failure: bool = False
    runs_tools: bool = True
    """False for scripted steps whose calls are reported but not executed."""
    seconds: float = 0.0
    needs: FrozenDict = EMPTY
    """The `CallNeed` of each call, by call id."""
    inner_usage: Usage = Usage()
    """Tokens used by model calls of its tools, hooks and processors."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "output_messages", MessageList(self.output_messages))

    @property
    def usage(self) -> Usage:
        """Tokens used by the step."""
        if self.own_usage is not None:
            return self.own_usage
        return self.inference_response.usage if self.inference_response else Usage()

    @property
    def cost_usd(self) -> Decimal | None:
        """What all model calls of the step cost, in US dollars; None if it is unknown."""
        if self.inference_response is not None and not self.usage.total:
            return None
        return (self.usage + self.inner_usage).cost_usd

    @property
    def finish_reason(self) -> str | None:
        """The reason why the model stopped."""
        return self.inference_response.finish_reason if self.inference_response else None

    @property
    def tool_calls(self) -> tuple[ToolCall, ...]:
        """The calls that the model made."""
        return self.inference_response.tool_calls if self.inference_response else ()

    @property
    def has_tool_calls(self) -> bool:
        """Whether the response called tools, successfully or not."""
        return bool(self.tool_calls)

    @property
    def tool_errors(self) -> tuple[StepError, ...]:
        """The errors of failing executions, each with its tool's name."""
        return tuple(replace(e.error, tool_name=e.call.name) for e in self.tool_executions if e.error)

    @property
    def errors(self) -> tuple[StepError, ...]:
        """The step's own errors, or those of its failing calls if it has none."""
        return self.own_errors or self.tool_errors

    @property
    def has_errors(self) -> bool:
        """Whether anything failed."""
        return bool(self.errors)

    @property
    def errors_as_text(self) -> str:
        """All error messages, one per line."""
        return "\n".join(error.message for error in self.errors)

    @property
    def step_type(self) -> StepType:
        """The step's own type, or the type that follows from its calls."""
        return self.own_type or type_of_step(failed=bool(self.tool_errors), called=self.has_tool_calls)

    @property
    def display_text(self) -> str:
        """The text of the step's messages, for people."""
        return self.output_messages.to_string() or "(no response)"

    @property
    def pending_calls(self) -> tuple[ToolCall, ...]:
        """The calls that have no result yet, in response order."""
        if not self.runs_tools:
            return ()
        answered = {execution.call.id for execution in self.tool_executions}
        return tuple(call for call in self.tool_calls if call.id not in answered)

    @property
    def is_complete(self) -> bool:
        """Whether every call has its result."""
        return not self.pending_calls

    def observed(self, executions: Iterable[ToolExecution], seconds: float = 0.0) -> "AgentStep":
        """A copy with these results, in response order; a call keeps its first result."""
        results = {e.call.id: e for e in (*executions, *self.tool_executions)}
        known = [call.id for call in self.tool_calls]
        others = [e for e in self.tool_executions if e.call.id not in known]
        ordered = (*others, *(results[call_id] for call_id in known if call_id in results))
        return replace(self, tool_executions=ordered, seconds=self.seconds + seconds)

    def without_errors(self) -> "AgentStep":
        """A copy in which error texts are results: the step did not fail, but the model reads them."""
        executions = (replace(e, result=e.text, error=None) if e.error else e for e in self.tool_executions)
        return replace(self, tool_executions=tuple(executions), own_errors=())

    @property
    def call_digests(self) -> dict[str, str]:
        """The digest of each call that has a result, by its id; see `repeated_calls`."""
        results = {execution.call.id: execution.text for execution in self.tool_executions}
        return {
            call.id: call_digest(call.name, call.arguments, results[call.id])
            for call in self.tool_calls
            if call.id in results
        }

    def facts(self, number: int) -> StepFacts:
        """The facts of this step, without bodies and without the messages of errors."""
        failed = {e.call.id: _fact(e.error, e.call.name) for e in self.tool_executions if e.error}
        pending = {call.id for call in self.pending_calls}
        digests = self.call_digests
        calls = tuple(
            CallFacts(
                c.id,
                c.name,
                CallNeed(self.needs.get(c.id, CallNeed.RUN)),
                c.id not in pending,
                failed.pop(c.id, None),
                digests.get(c.id),
            )
            for c in self.tool_calls
        )
        return StepFacts(
            number=number,
            calls=calls,
            finish_reason=self.finish_reason,
            usage=self.usage,
            pseudo_errors=tuple(failed.values()),
            own_errors=tuple(_fact(error, error.tool_name) for error in self.own_errors),
            own_type=self.own_type,
            is_failure=self.is_failure,
            seconds=self.seconds,
        )

    def to_dict(self) -> dict[str, Any]:
        """Convert to JSON data."""
        response = self.inference_response
        return {
            "id": str(self.id),
            "createdAt": format_moment(self.created_at, 6),
            "inputMessages": [m.to_dict() for m in self.input_messages],
            "outputMessages": [m.to_dict() for m in self.output_messages],
            "inferenceResponse": response.to_dict() if response else None,
            "toolExecutions": [execution.to_dict() for execution in self.tool_executions],
            "errors": [error.to_dict() for error in self.own_errors],
            "stepType": self.own_type,
            "usage": self.own_usage.to_dict() if self.own_usage else None,
            "isFailure": self.is_failure,
            "runsTools": self.runs_tools,
            "seconds": self.seconds,
            "needs": self.needs,
            **({"innerUsage": self.inner_usage.to_dict()} if self.inner_usage.total else {}),
        }

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> "AgentStep":
        """Read the JSON form; unknown keys are ignored."""
        return cls(
            read_key(data, "id", partial(parse_uuid, where="it")),
            read_key(data, "createdAt", partial(parse_moment, where="it")),
            read_optional(data, "inputMessages", as_messages) or (),
            MessageList(read_optional(data, "outputMessages", as_messages) or ()),
            read_optional(data, "inferenceResponse", InferenceResponse.from_dict),
            read_each(data, "toolExecutions", ToolExecution.from_dict),
            read_each(data, "errors", StepError.from_dict),
            read_optional(data, "stepType", StepType.parse),
            read_optional(data, "usage", Usage.from_dict),
            bool(data.get("isFailure")),
            bool(data.get("runsTools", True)),
            read_optional(data, "seconds", float) or 0.0,
            read_optional(data, "needs", frozen_map) or EMPTY,
            read_optional(data, "innerUsage", Usage.from_dict) or Usage(),
        )


def _fact(error: StepError, tool_name: str | None) -> StepError:
    return replace(error, message="", tool_name=tool_name)


@dataclass(frozen=True, slots=True)
class StepExecution:
    """A recorded step: its number, its times, and the outcome of the evaluation after it."""

    number: int
    step: AgentStep
    outcome: ContinuationOutcome | None
    started_at: datetime
    completed_at: datetime
    stop_signal: StopSignal | None = None

    @property
    def id(self) -> UUID:
        """The id of the step."""
        return self.step.id

    @property
    def cost_usd(self) -> Decimal | None:
        """What all model calls of the step cost, in US dollars; None if it is unknown."""
        return self.step.cost_usd

    @property
    def duration(self) -> float:
        """Seconds from start to end, including waiting, to the microsecond."""
        return (self.completed_at - self.started_at).total_seconds()

    @property
    def processing_seconds(self) -> float:
        """The working time in seconds."""
        return self.step.seconds

    def to_dict(self) -> dict[str, Any]:
        """Convert to JSON data."""
        return {
            "number": self.number,
            "step": self.step.to_dict(),
            "outcome": self.outcome.to_record() if self.outcome else None,
            "stopSignal": self.stop_signal.to_dict() if self.stop_signal else None,
            "startedAt": format_moment(self.started_at, 6),
            "completedAt": format_moment(self.completed_at, 6),
        }

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> "StepExecution":
        """Read the JSON form; unknown keys are ignored."""
        return cls(
            read_key(data, "number", int),
            read_key(data, "step", AgentStep.from_dict),
            read_optional(data, "outcome", ContinuationOutcome.from_dict),
            read_key(data, "startedAt", partial(parse_moment, where="it")),
            read_key(data, "completedAt", partial(parse_moment, where="it")),
            read_optional(data, "stopSignal", StopSignal.from_dict),
        )
