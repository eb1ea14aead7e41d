"""AG-UI 1.0: a run as its events, in the order that the protocol's clients verify.

A text that is void is closed, and the conversation is restated without it, since no event takes text back.
What the protocol has no field for is in the `metadata` of an event: `seq`, `attempt`, `because` and others.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from everstep.agent_domain.values import json_text, thaw
from everstep.wires.projections import Projection, WireEvent
from everstep.wires.run_events import (
    AttemptSuperseded,
    CallEnded,
    CallRequested,
    CallView,
    MessageReceived,
    Progressed,
    Reasoned,
    RequestOpened,
    RequestResolved,
    RequestView,
    RunEnded,
    RunEvent,
    RunPaused,
    RunStarted,
    StateChanged,
    StepEnded,
    StepStarted,
    SubagentEnded,
    SubagentStarted,
    TextAdded,
    TextDropped,
    TextEnded,
    TextStarted,
    Thread,
    ThreadMessage,
)

PROTOCOL_VERSION = "1.0"

FAILED = "failed"


class AgUi(Projection):
    """The events of AG-UI for one reader.

    Args:
        thread_id: The client's name of the conversation.
        run_id: The client's name of the run that it began.
        root_id: The execution.
        restates: Whether the begin of the execution restates the conversation, for a client without it.
    """

    def __init__(self, thread_id: str, run_id: str | None, root_id: str, *, restates: bool = False) -> None:
        self.root_id = root_id
        self._restates = restates
        self._run_id = run_id
        self._ids = {"threadId": thread_id, "runId": run_id or root_id}

    def needs_history(self, event: RunEvent) -> bool:
        """Whether the event restates the conversation."""
        has_thread = isinstance(event, RunPaused | TextDropped | MessageReceived)
        return has_thread or (isinstance(event, RunStarted) and self._is_restated(event))

    def encode(self, event: RunEvent) -> list[WireEvent]:
        """The protocol's events for one event."""
        match event:
            case RunStarted() | RunPaused() | RunEnded():
                return self._encode_run(event)
            case TextStarted() | TextAdded() | TextEnded() | TextDropped() | Reasoned():
                return self._encode_text(event)
            case CallRequested() | CallEnded():
                return self._encode_call(event)
            case StepStarted() | StepEnded() | SubagentStarted() | SubagentEnded():
                return self._encode_progress(event)
            case _:
                return self._encode_rest(event)

    def _encode_rest(
        self,
        event: AttemptSuperseded
        | StateChanged
        | MessageReceived
        | Progressed
        | RequestOpened
        | RequestResolved,
    ) -> list[WireEvent]:
        match event:
            case StateChanged():
                return [{"type": "STATE_DELTA", "delta": _state_patch(event), "metadata": {"seq": event.seq}}]
            case MessageReceived():
                return [self._messages(event.thread, event.seq)]
            case Progressed():
                return [self._detail(event)]
            case AttemptSuperseded() | RequestOpened() | RequestResolved():
                # What is open then is closed by other events; open requests are the interrupts of the end.
                return []

    def fail(self, message: str, code: str) -> list[WireEvent]:
        """The last event of a stream that ends before the execution does."""
        return [run_error(message, code)]

    def _subagent(self, event: RunEvent) -> dict[str, str]:
        return {} if event.execution_id == self.root_id else {"subagentRunId": event.execution_id}

    # Runs.

    def _encode_run(self, event: RunStarted | RunPaused | RunEnded) -> list[WireEvent]:
        state = {"type": "STATE_SNAPSHOT", "snapshot": thaw(event.state), "metadata": {"seq": event.seq}}
        match event:
            case RunStarted():
                messages = [self._messages(event.thread, event.seq)] if self._is_restated(event) else []
                return [self._run_start(event), state, *messages]
            case RunPaused():
                return [state, self._messages(event.thread, event.seq), self._interrupt_end(event)]
            case RunEnded():
                return [state, self._run_end(event)]

    def _run_start(self, event: RunStarted) -> WireEvent:
        if self._run_id is None:
            # The client that began this run is another one.
            self._ids["runId"] = f"{self.root_id}.{event.segment}"
        metadata = {"seq": event.seq, "executionId": self.root_id}
        return {
            "type": "RUN_STARTED",
            **self._ids,
            "protocolVersion": PROTOCOL_VERSION,
            "metadata": metadata,
        }

    def _is_restated(self, event: RunStarted) -> bool:
        return event.has_news or (self._restates and event.segment == 0)

    def _interrupt_end(self, event: RunPaused) -> WireEvent:
        interrupts = [self._interrupt(request) for request in event.requests]
        return {
            "type": "RUN_FINISHED",
            **self._ids,
            "outcome": {"type": "interrupt", "interrupts": interrupts},
            "metadata": _fields(seq=event.seq, because=event.because, executionId=self.root_id),
        }

    def _interrupt(self, request: RequestView) -> WireEvent:
        subagent = None if request.execution_id == self.root_id else request.execution_id
        reason = "input_required" if request.is_question else "tool_call"
        return _fields(
            id=request.id,
            reason="confirmation" if request.is_budget else reason,
            message=request.prompt or f"{request.call.name} waits for approval",
            toolCallId=request.call.id or None,
            responseSchema=answer_schema(request),
            expiresAt=request.expires_at,
            subagentRunId=subagent,
            metadata=_interrupt_metadata(request),
        )

    def _run_end(self, event: RunEnded) -> WireEvent:
        metadata = _fields(
            seq=event.seq,
            because=event.because,
            executionId=self.root_id,
            stopReason=event.stop_reason,
            costUsd=event.cost_usd,
        )
        usage = {"usage": [counts]} if (counts := _token_usage(event.usage)) else {}
        if event.status == FAILED:
            message = event.error or event.because or "the execution failed"
            return {"type": "RUN_ERROR", "message": message, "code": FAILED, **usage, "metadata": metadata}
        finished = {"type": "RUN_FINISHED", **self._ids, **usage, "metadata": metadata}
        if event.status == "cancelled":
            return finished | {"outcome": {"type": "cancelled"}}
        result = _fields(
            response=event.response,
            status=event.status,
            stopReason=event.stop_reason,
            output=None if event.output is None else thaw(event.output),
        )
        return finished | {"outcome": {"type": "success"}, "result": result}

    # The conversation.

    def _messages(self, thread: Thread, seq: int) -> WireEvent:
        messages = [message_of(each) for each in (*self.history, *thread)]
        return {"type": "MESSAGES_SNAPSHOT", "messages": messages, "metadata": {"seq": seq}}

    def _encode_text(
        self, event: TextStarted | TextAdded | TextEnded | TextDropped | Reasoned
    ) -> list[WireEvent]:
        named = {"messageId": event.message_id}
        match event:
            case TextStarted():
                metadata = {"seq": event.seq, "attempt": event.attempt}
                start = {"type": "TEXT_MESSAGE_START", **named, "role": "assistant", "metadata": metadata}
                return [start | self._subagent(event)]
            case TextAdded():
                return [{"type": "TEXT_MESSAGE_CONTENT", **named, "delta": event.text}]
            case TextEnded():
                return [{"type": "TEXT_MESSAGE_END", **named}]
            case TextDropped():
                return [{"type": "TEXT_MESSAGE_END", **named}, self._messages(event.thread, event.seq)]
            case Reasoned():
                of = named | self._subagent(event)
                return [
                    {"type": "REASONING_START", **of, "metadata": {"seq": event.seq}},
                    {"type": "REASONING_MESSAGE_START", **of, "role": "reasoning"},
                    {"type": "REASONING_MESSAGE_CONTENT", **named, "delta": event.text},
                    {"type": "REASONING_MESSAGE_END", **named},
                    {"type": "REASONING_END", **named},
                ]

    def _encode_call(self, event: CallRequested | CallEnded) -> list[WireEvent]:
        call = {"toolCallId": event.call.id}
        subagent = self._subagent(event)
        if isinstance(event, CallRequested):
            start = {
                "type": "TOOL_CALL_START",
                **call,
                "toolCallName": event.call.name,
                "parentMessageId": event.message_id,
                "metadata": {"seq": event.seq},
                **subagent,
            }
            args = {"type": "TOOL_CALL_ARGS", **call, "delta": json_text(event.call.args)}
            return [start, args, {"type": "TOOL_CALL_END", **call}]
        metadata = _fields(seq=event.seq, error=event.error, isDenied=event.is_denied or None)
        return [
            {
                "type": "TOOL_CALL_RESULT",
                "messageId": event.message_id,
                **call,
                "content": event.text,
                "role": "tool",
                "metadata": metadata,
                **subagent,
            }
        ]

    # Steps and subagents.

    def _encode_progress(
        self, event: StepStarted | StepEnded | SubagentStarted | SubagentEnded
    ) -> list[WireEvent]:
        metadata: dict[str, Any] = {"seq": event.seq}
        match event:
            case StepStarted():
                name = {"stepName": f"step {event.number}"}
                return [{"type": "STEP_STARTED", **name, "metadata": metadata, **self._subagent(event)}]
            case StepEnded():
                name = {"stepName": f"step {event.number}"}
                metadata |= _fields(because=event.because, finishReason=event.finish_reason)
                return [{"type": "STEP_FINISHED", **name, "metadata": metadata, **self._subagent(event)}]
            case SubagentStarted():
                parent = event.parent_id if event.is_nested else None
                named = _fields(
                    name=event.name,
                    parentSubagentRunId=parent,
                    parentToolCallId=event.call_id,
                    parentMessageId=event.message_id,
                )
                return [
                    {
                        "type": "SUBAGENT_STARTED",
                        "subagentRunId": event.execution_id,
                        **named,
                        "metadata": metadata,
                    }
                ]
            case SubagentEnded():
                return [_subagent_end(event) | {"metadata": metadata}]

    def _detail(self, event: Progressed) -> WireEvent:
        value = _fields(detail=event.detail, toolCallId=event.call_id, fraction=event.fraction)
        return {
            "type": "CUSTOM",
            "name": "everstep.progress",
            "value": value,
            "metadata": {"seq": event.seq},
            **self._subagent(event),
        }


def run_error(message: str, code: str) -> WireEvent:
    """A failure outside of the execution, as the protocol reports it."""
    return {"type": "RUN_ERROR", "message": message, "code": code}


def message_of(message: ThreadMessage) -> WireEvent:
    """A message of the conversation in the protocol's form."""
    base = {"id": message.id, "role": message.role}
    subagent = {} if message.subagent_id is None else {"subagentRunId": message.subagent_id}
    match message.role:
        case "tool":
            error = {} if message.error is None else {"error": message.error}
            return {**base, "content": message.text, "toolCallId": message.call_id, **error, **subagent}
        case "assistant":
            content = {"content": message.text} if message.text or not message.calls else {}
            calls = {"toolCalls": [_tool_call(call) for call in message.calls]} if message.calls else {}
            return {**base, **content, **calls, **subagent}
        case "user" if message.files:
            return {**base, "content": [*_text_parts(message.text), *map(_file_part, message.files)]}
        case _:
            return {**base, "content": message.text, **subagent}


def _tool_call(call: CallView) -> WireEvent:
    function = {"name": call.name, "arguments": json_text(call.args)}
    return {"id": call.id, "type": "function", "function": function}


def _text_parts(text: str) -> list[WireEvent]:
    return [{"type": "text", "text": text}] if text else []


def _file_part(file: Mapping[str, Any]) -> WireEvent:
    media_type = str(file.get("media_type") or "application/octet-stream")
    kind = media_type.partition("/")[0]
    source = {"type": "url", "value": f"/agent/attachments/{file.get('id')}", "mimeType": media_type}
    return {"type": kind if kind in {"image", "audio", "video"} else "document", "source": source}


def answer_schema(request: RequestView) -> dict[str, Any]:
    """The JSON schema of the payload that answers a request."""
    if request.budget is not None:
        unit = str(request.budget.get("unit", "usd"))
        total = {
            "type": "number" if unit == "usd" else "integer",
            "exclusiveMinimum": request.budget.get("limit", 0),
            "description": f"The new total of the budget, in {unit}.",
        }
        return {"type": "object", "properties": {unit: total}, "required": [unit]}
    if not request.is_question:
        return {
            "type": "object",
            "properties": {
                "approved": {"type": "boolean"},
                "reason": {"type": "string", "description": "Why the call is denied, for the model."},
                "editedArgs": {
                    "type": "object",
                    "description": "Arguments in place of those that the model chose: all of them.",
                },
            },
            "required": ["approved"],
        }
    if request.choices:
        return {"type": "string", "enum": list(request.choices)}
    return thaw(request.schema) if request.schema else {"type": "string"}


def _interrupt_metadata(request: RequestView) -> WireEvent:
    if request.is_question:
        return {"kind": "question", "executionId": request.execution_id}
    if request.budget is not None:
        return {"kind": "budget", "executionId": request.execution_id, "budget": thaw(request.budget)}
    return {
        "kind": "approval",
        "executionId": request.execution_id,
        "toolName": request.call.name,
        "args": thaw(request.call.args),
        "argsDigest": request.args_digest,
    }


def _subagent_end(event: SubagentEnded) -> WireEvent:
    of = {"subagentRunId": event.execution_id}
    if event.status == FAILED:
        return {"type": "SUBAGENT_ERROR", **of, "message": event.error or "the subagent failed"}
    if event.status != "paused":
        return {"type": "SUBAGENT_FINISHED", **of, "outcome": {"type": "success"}}
    ids = {"interruptIds": list(event.request_ids)} if event.request_ids else {}
    return {"type": "SUBAGENT_FINISHED", **of, "outcome": {"type": "suspended", **ids}}


def _state_patch(event: StateChanged) -> Sequence[WireEvent]:
    set_: Iterable[WireEvent] = (
        {"op": "add", "path": _pointer(key), "value": thaw(value)}
        for key, value in event.changes.values.items()
    )
    removed: Iterable[WireEvent] = ({"op": "remove", "path": _pointer(key)} for key in event.changes.removed)
    return [*removed, *set_]


def _pointer(key: str) -> str:
    return "/" + key.replace("~", "~0").replace("/", "~1")


def _token_usage(usage: Mapping[str, int]) -> WireEvent:
    """The token counts, of which the protocol's own totals contain the parts."""
    counts = {
        "inputTokens": usage.get("input", 0) + usage.get("cached", 0),
        "outputTokens": usage.get("output", 0) + usage.get("reasoning", 0),
        "totalTokens": usage.get("total", 0),
        "reasoningTokens": usage.get("reasoning", 0),
    }
    return {name: count for name, count in counts.items() if count}


def _fields(**fields: Any) -> dict[str, Any]:
    """The fields that are known: the protocol has no null."""
    return {name: value for name, value in fields.items() if value is not None}
