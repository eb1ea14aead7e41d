"""The record of a run: what a replay of it needs, and what the replay is compared with.

Its JSON form is the data file of an exported test. It is versioned: readers refuse a newer version, and a
field that a later version adds has a default.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Final
from uuid import UUID

from pydantic import TypeAdapter

from everstep.agent_domain.attachments import Attachment
from everstep.agent_domain.capabilities.approvals import ApprovalRule
from everstep.agent_domain.capabilities.rights import Decider
from everstep.agent_domain.errors import InvalidInput
from everstep.agent_domain.ids import ExecutionRef, subagent_id
from everstep.agent_domain.loop.facts import StateInfo
from everstep.agent_domain.loop.status import ExecutionStatus, StopReason
from everstep.agent_domain.loop.step_error import StepError
from everstep.agent_domain.loop.step_facts import NOTHING_BESIDES, Besides, StepFacts
from everstep.agent_domain.loop.usage import Usage
from everstep.agent_domain.messages.compaction import Compaction
from everstep.agent_domain.messages.messages import Message, Messages
from everstep.agent_domain.storage.calls import CallRecord
from everstep.agent_domain.storage.commands import CommandKind, SentCommand
from everstep.agent_domain.storage.compactions import ContinuedInput
from everstep.agent_domain.storage.metadata_changes import NO_METADATA_CHANGES, MetadataChanges
from everstep.agent_domain.storage.requests import AnyRequestKind, Resolution, parse_request_kind
from everstep.agent_domain.tools.tools import ToolCall
from everstep.agent_domain.values import (
    EMPTY,
    FrozenDict,
    format_optional_moment,
    freeze,
    frozen_map,
    parse_optional_moment,
    read_each,
    reading,
)

FORMAT: Final = "everstep.run"
VERSION: Final = 1

_FACTS = TypeAdapter(StepFacts)
_BESIDES = TypeAdapter(Besides)
_CLOCKS = TypeAdapter(StateInfo)


@dataclass(frozen=True, slots=True)
class RunCall:
    """A tool call of a run, with its result."""

    call: ToolCall
    record: CallRecord | None = None
    """None: the run ended, or was exported, before the call had a result."""
    changes: MetadataChanges = NO_METADATA_CHANGES
    """What it changed in the agent's metadata."""

    @property
    def is_abandoned(self) -> bool:
        """Whether the call was closed without a result of its own."""
        # Release 0.1 recorded neither part of a text.
        return self.record is None or (self.record.own_text is None and self.record.note is not None)

    def to_dict(self) -> dict[str, Any]:
        """Convert to JSON data."""
        record = self.record and _record_to_dict(self.record)
        changes = {"changes": self.changes.to_dict()} if self.changes else {}
        return {**self.call.to_dict(), "record": record, **changes}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> "RunCall":
        """Read the JSON form."""
        record, changes = data.get("record"), data.get("changes")
        return cls(
            ToolCall.from_dict(data),
            _record_from_dict(str(data["id"]), record) if record else None,
            MetadataChanges.from_dict(changes) if changes else NO_METADATA_CHANGES,
        )


@dataclass(frozen=True, slots=True)
class RunStep:
    """A step of a run."""

    number: int
    started_at: datetime
    completed_at: datetime | None = None
    facts: StepFacts | None = None
    """The facts of the model's reply; None: the run ended, or was exported, before the reply."""
    response: FrozenDict | None = None
    """`InferenceResponse.to_dict()`."""
    errors: tuple[StepError, ...] = ()
    outcome: FrozenDict | None = None
    """`ContinuationOutcome.to_dict()` of the evaluation after the step."""
    steering: Messages = ()
    """The messages from people that entered the conversation before this step."""
    messages: Messages = ()
    """All messages of the step, in order."""
    calls: tuple[RunCall, ...] = ()
    compactions: tuple[Compaction, ...] = ()
    is_processed: bool = False
    """Whether its processors have run."""
    processing_seconds: float = 0.0
    """How long they ran."""
    asked_again_at: datetime | None = None
    """When the last attempt of the model call began, if the provider had failed before."""

    @property
    def replied_at(self) -> datetime | None:
        """When the model's reply was complete; None without one."""
        if self.facts is None:
            return None
        began = max(self.started_at, self.asked_again_at or self.started_at)
        return began + timedelta(seconds=self.facts.seconds)

    def to_dict(self) -> dict[str, Any]:
        """Convert to JSON data."""
        return {
            "number": self.number,
            "started_at": self.started_at.isoformat(),
            "completed_at": format_optional_moment(self.completed_at),
            "facts": None if self.facts is None else _FACTS.dump_python(self.facts, mode="json"),
            "response": self.response,
            "errors": [error.to_dict() for error in self.errors],
            "outcome": self.outcome,
            "steering": [message.to_dict() for message in self.steering],
            "messages": [message.to_dict() for message in self.messages],
            "calls": [call.to_dict() for call in self.calls],
            "compactions": [compaction.to_dict() for compaction in self.compactions],
            "is_processed": self.is_processed,
            "processing_seconds": self.processing_seconds,
            "asked_again_at": format_optional_moment(self.asked_again_at),
        }

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> "RunStep":
        """Read the JSON form."""
        facts = data.get("facts")
        return cls(
            int(data["number"]),
            _moment(data["started_at"]),
            parse_optional_moment(data.get("completed_at"), "completed_at"),
            None if facts is None else _FACTS.validate_python(facts),
            _optional_map(data.get("response")),
            read_each(data, "errors", StepError.from_dict),
            _optional_map(data.get("outcome")),
            read_each(data, "steering", Message.from_dict),
            read_each(data, "messages", Message.from_dict),
            read_each(data, "calls", RunCall.from_dict),
            read_each(data, "compactions", Compaction.from_dict),
            bool(data.get("is_processed")),
            float(data.get("processing_seconds") or 0.0),
            parse_optional_moment(data.get("asked_again_at"), "asked_again_at"),
        )


@dataclass(frozen=True, slots=True)
class RunRequest:
    """A question, an approval or an exhausted budget, with what a person did about it."""

    call_id: str
    kind: AnyRequestKind
    request: FrozenDict
    resolution: Resolution | None = None

    def to_dict(self) -> dict[str, Any]:
        """Convert to JSON data."""
        resolution = self.resolution and _resolution_to_dict(self.resolution)
        return {
            "call_id": self.call_id,
            "kind": str(self.kind.value),
            "request": self.request,
            "resolution": resolution,
        }

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> "RunRequest":
        """Read the JSON form."""
        resolution = data.get("resolution")
        return cls(
            str(data["call_id"]),
            parse_request_kind(str(data["kind"])),
            frozen_map(data.get("request") or {}, "the request"),
            _resolution_from_dict(resolution) if resolution else None,
        )


@dataclass(frozen=True, slots=True)
class InnerAnswer:
    """A model's answer to a question of a processor."""

    key: str
    digest: str
    response: FrozenDict

    def to_dict(self) -> dict[str, Any]:
        """Convert to JSON data."""
        return {"key": self.key, "digest": self.digest, "response": self.response}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> "InnerAnswer":
        """Read the JSON form."""
        return cls(str(data["key"]), str(data["digest"]), frozen_map(data["response"], "the response"))


@dataclass(frozen=True, slots=True)
class RunRecord:
    """A run, with the runs of its subagents."""

    ref: ExecutionRef
    agent: str
    status: ExecutionStatus
    spec: FrozenDict
    """`ExecutionSpec` as data: prompts, tool schemas, response format."""
    plan: FrozenDict
    """`ExecutionPlan` as data: limits and policies."""
    started_at: datetime
    stop_reason: StopReason | None = None
    output: FrozenDict | None = None
    error: str | None = None
    user_id: str | None = None
    earlier: Messages = ()
    """The conversation of the executions that it continues."""
    earlier_compaction: Compaction | None = None
    """What requests contained instead of the beginning of that conversation."""
    continued_input: ContinuedInput | None = None
    messages: Messages = ()
    """The messages with which it began."""
    metadata: FrozenDict = EMPTY
    """The agent's metadata with which it began."""
    request: FrozenDict = EMPTY
    """`request_data` of the request that started it."""
    clocks: StateInfo = StateInfo()
    """The clocks of its session at its start."""
    budgets: tuple[FrozenDict, ...] = ()
    """Budgets of the request, beside those of the agent."""
    output_format: FrozenDict | None = None
    """The response format of the request, instead of the agent's."""
    steps: tuple[RunStep, ...] = ()
    requests: tuple[RunRequest, ...] = ()
    commands: tuple[SentCommand, ...] = ()
    inner_answers: tuple[InnerAnswer, ...] = ()
    children: tuple["RunRecord", ...] = ()
    redacted: int = 0
    """How many secrets were replaced in this record."""
    missing: tuple[str, ...] = ()
    """What the store had no longer when the record was read."""

    @property
    def last_outcome(self) -> FrozenDict | None:
        """The decision after its last step."""
        return self.steps[-1].outcome if self.steps else None

    def step(self, number: int) -> RunStep | None:
        """The step with this number."""
        return next((step for step in self.steps if step.number == number), None)

    def call(self, call_id: str) -> RunCall | None:
        """The call with this id."""
        return next((call for step in self.steps for call in step.calls if call.call.id == call_id), None)

    def child(self, call_id: str) -> "RunRecord | None":
        """The run that this call started."""
        identity = subagent_id(self.ref.execution_id, call_id)
        return next((child for child in self.children if child.ref.execution_id == identity), None)

    def each_run(self) -> Iterator["RunRecord"]:
        """Yield this run and those of its subagents, parents first."""
        yield self
        for child in self.children:
            yield from child.each_run()

    def to_dict(self) -> dict[str, Any]:
        """Convert to JSON data."""
        ref, continued = self.ref, self.continued_input
        return {
            "format": FORMAT,
            "version": VERSION,
            "agent": self.agent,
            "execution": {
                "id": str(ref.execution_id),
                "tenant_id": ref.tenant_id,
                "session_id": ref.session_id and str(ref.session_id),
                "user_id": self.user_id,
                "status": str(self.status),
                "stop_reason": self.stop_reason and str(self.stop_reason),
                "started_at": self.started_at.isoformat(),
                "output": self.output,
                "error": self.error,
            },
            "start": {
                "earlier": [message.to_dict() for message in self.earlier],
                "earlier_compaction": self.earlier_compaction and self.earlier_compaction.to_dict(),
                "continued_input": continued
                and {"usage": continued.usage.to_dict(), "later_messages": continued.later_messages},
                "messages": [message.to_dict() for message in self.messages],
                "metadata": self.metadata,
                "request": self.request,
                "clocks": _CLOCKS.dump_python(self.clocks, mode="json"),
                "budgets": list(self.budgets),
                "output_format": self.output_format,
            },
            "spec": self.spec,
            "plan": self.plan,
            "steps": [step.to_dict() for step in self.steps],
            "requests": [request.to_dict() for request in self.requests],
            "commands": [
                {"kind": str(each.kind), "sent_at": each.sent_at.isoformat()} for each in self.commands
            ],
            "inner_answers": [answer.to_dict() for answer in self.inner_answers],
            "children": [child.to_dict() for child in self.children],
            "redacted": self.redacted,
            "missing": list(self.missing),
        }

    @classmethod
    def from_dict(cls, data: Mapping[str, Any], where: str = "the file") -> "RunRecord":
        """Read the JSON form.

        Raises:
            InvalidInput: It is not a record of a run, or one of a newer version.
        """
        if data.get("format") != FORMAT:
            raise InvalidInput(f"{where} is not an exported run; `everstep export ID --as test` writes one")
        version = data.get("version")
        if not isinstance(version, int) or version > VERSION:
            raise InvalidInput(
                f"{where} has version {version} of the format, and this release reads up to {VERSION}; "
                "upgrade everstep, or export the run again"
            )
        with reading(where):
            return cls._from_dict(data)

    @classmethod
    def _from_dict(cls, data: Mapping[str, Any]) -> "RunRecord":
        execution, start = data["execution"], data["start"]
        session, compaction, continued = (
            execution.get("session_id"),
            start.get("earlier_compaction"),
            start.get("continued_input"),
        )
        reason = execution.get("stop_reason")
        return cls(
            ExecutionRef(
                UUID(execution["id"]), str(execution["tenant_id"]), UUID(session) if session else None
            ),
            str(data["agent"]),
            ExecutionStatus(execution["status"]),
            frozen_map(data["spec"], "the spec"),
            frozen_map(data["plan"], "the plan"),
            _moment(execution["started_at"]),
            StopReason(reason) if reason else None,
            _optional_map(execution.get("output")),
            execution.get("error"),
            execution.get("user_id"),
            read_each(start, "earlier", Message.from_dict),
            Compaction.from_dict(compaction) if compaction else None,
            ContinuedInput(Usage.from_dict(continued["usage"]), int(continued["later_messages"]))
            if continued
            else None,
            read_each(start, "messages", Message.from_dict),
            frozen_map(start.get("metadata") or {}, "the metadata"),
            frozen_map(start.get("request") or {}, "the request"),
            _CLOCKS.validate_python(start.get("clocks") or {}),
            read_each(start, "budgets", frozen_map),
            _optional_map(start.get("output_format")),
            read_each(data, "steps", RunStep.from_dict),
            read_each(data, "requests", RunRequest.from_dict),
            read_each(data, "commands", _command_from_dict),
            read_each(data, "inner_answers", InnerAnswer.from_dict),
            read_each(data, "children", cls._from_dict),
            int(data.get("redacted") or 0),
            tuple(map(str, data.get("missing") or ())),
        )


def _moment(text: Any) -> datetime:
    return datetime.fromisoformat(str(text))


def _optional_map(data: Any) -> FrozenDict | None:
    return None if data is None else frozen_map(data)


def _command_from_dict(data: Mapping[str, Any]) -> SentCommand:
    return SentCommand(CommandKind(data["kind"]), _moment(data["sent_at"]))


def _record_to_dict(record: CallRecord) -> dict[str, Any]:
    return {
        "result": record.result,
        "error": record.error and record.error.to_dict(),
        "text": record.text,
        "note": record.note,
        "own_text": record.own_text,
        "success": record.success,
        "started_at": record.started_at.isoformat(),
        "completed_at": record.completed_at.isoformat(),
        "seconds": record.seconds,
        **(
            {}
            if record.besides == NOTHING_BESIDES
            else {"besides": _BESIDES.dump_python(record.besides, mode="json")}
        ),
        **({"attachments": [each.to_dict() for each in record.attachments]} if record.attachments else {}),
    }


def _record_from_dict(call_id: str, data: Mapping[str, Any]) -> CallRecord:
    error, besides = data.get("error"), data.get("besides")
    return CallRecord(
        call_id,
        freeze(data.get("result")),
        StepError.from_dict(error) if error else None,
        str(data["text"]),
        _moment(data["started_at"]),
        _moment(data["completed_at"]),
        float(data["seconds"]),
        bool(data.get("success")),
        NOTHING_BESIDES if besides is None else _BESIDES.validate_python(besides),
        data.get("note"),
        data.get("own_text"),
        read_each(data, "attachments", Attachment.from_dict),
    )


def _resolution_to_dict(resolution: Resolution) -> dict[str, Any]:
    remember, by = resolution.remember, resolution.by
    return {
        "kind": resolution.kind,
        "value": resolution.value,
        "reason": resolution.reason,
        "remember": remember and remember.model_dump(mode="json"),
        "by": by and by.to_dict(),
        "is_expired": resolution.is_expired,
    }


def _resolution_from_dict(data: Mapping[str, Any]) -> Resolution:
    remember, by = data.get("remember"), data.get("by")
    return Resolution(
        str(data["kind"]),
        freeze(data.get("value")),
        data.get("reason"),
        None,
        ApprovalRule.model_validate(remember) if remember else None,
        Decider.from_dict(by) if by else None,
        bool(data.get("is_expired")),
    )
