"""The UI message stream of Vercel's AI SDK, version 1: an execution as the parts of one assistant message.

The message has the id of the execution, so a run that continues after people have answered adds to it, and a
stream that is read again from its begin replaces it. The protocol has no subagents: each is a part of type
`data-subagent`, with what it said last.
"""

from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

from everstep.agent_domain.values import thaw
from everstep.wires.projections import Projection
from everstep.wires.run_events import (
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
)

Chunk: TypeAlias = dict[str, Any]

DONE = b"data: [DONE]\n\n"
"""The last frame of a complete stream."""

_FINISH_REASONS: Mapping[str | None, str] = {
    None: "stop",
    "completed": "stop",
    "token_limit": "length",
    "steps_limit": "length",
    "finish_reason": "content-filter",
}


class UiMessages(Projection):
    """The chunks of the UI message stream for one reader.

    Args:
        chat_id: The client's name of the conversation.
        root_id: The execution.
        is_whole: Whether the stream has the whole execution, in which runs follow one another.
        message_id: The message, if it is a new one in the middle of an execution. The calls that have their
            results in it are repeated then, as the client knows them in another message.
    """

    last_frame = DONE

    def __init__(
        self, chat_id: str, root_id: str, *, is_whole: bool = False, message_id: str | None = None
    ) -> None:
        self.chat_id = chat_id
        self.root_id = root_id
        self._message_id = message_id
        self._is_whole = is_whole

    def fail(self, message: str, code: str) -> list[Chunk]:
        """The last chunk of a stream that ends before the execution does."""
        return [{"type": "error", "errorText": f"{message} ({code})"}]

    def encode(self, event: RunEvent) -> list[Chunk]:
        """The chunks of one event."""
        match event:
            case RunStarted() | RunPaused() | RunEnded():
                return self._encode_run(event)
            case _ if event.execution_id != self.root_id:
                return _subagent_chunks(event)
            case TextStarted() | TextAdded() | TextEnded() | TextDropped() | Reasoned():
                return _text_chunks(event)
            case CallRequested() | CallEnded() | RequestOpened() | RequestResolved():
                return self._encode_call(event)
            case StepStarted() | StepEnded():
                return _step_chunks(event)
            case _:
                return _other_chunks(event)

    def _encode_call(self, event: CallRequested | CallEnded | RequestOpened | RequestResolved) -> list[Chunk]:
        chunks = _call_chunks(event)
        if self._message_id is None:
            return chunks
        match event:
            case CallEnded():
                return [_input_chunk(event.call, is_question=False), *chunks]
            case RequestResolved():
                return []
            case _:
                return chunks

    def _encode_run(self, event: RunStarted | RunPaused | RunEnded) -> list[Chunk]:
        match event:
            case RunStarted():
                if self._is_whole and event.segment:
                    return []
                metadata = {"executionId": self.root_id, "chatId": self.chat_id}
                state = _state_chunk(event.state)
                id_ = self._message_id or self.root_id
                return [{"type": "start", "messageId": id_, "messageMetadata": metadata}, state]
            case RunPaused():
                metadata = {"seq": event.seq, "because": event.because}
                return [{"type": "finish", "finishReason": "tool-calls", "messageMetadata": metadata}]
            case RunEnded():
                return _end_chunks(event)


def _subagent_chunks(event: RunEvent) -> list[Chunk]:
    """A subagent is one part, which is replaced; of its calls those are shown that people are asked about."""
    part: Chunk = {"type": "data-subagent", "id": event.execution_id}
    match event:
        case SubagentStarted():
            data = {"name": event.name, "status": "running", "toolCallId": event.call_id}
            return [part | {"data": data}]
        case SubagentEnded():
            data = {"name": event.name, "status": event.status, "text": event.text, "error": event.error}
            return [part | {"data": data}]
        case RequestOpened(request=request):
            call = [] if request.is_budget else [_input_chunk(request.call, is_question=request.is_question)]
            return [*call, _request_chunk(request)]
        case RequestResolved():
            return _call_chunks(event)
        case CallEnded() if event.has_request:
            return _call_chunks(event)
        case _:
            return []


def _end_chunks(event: RunEnded) -> list[Chunk]:
    metadata = {
        name: value
        for name, value in {
            "seq": event.seq,
            "because": event.because,
            "status": event.status,
            "stopReason": event.stop_reason,
            "costUsd": event.cost_usd,
            "usage": thaw(event.usage) or None,
            "output": None if event.output is None else thaw(event.output),
        }.items()
        if value is not None
    }
    finish = {"type": "finish", "messageMetadata": metadata}
    match event.status:
        case "failed":
            message = event.error or event.because or "the execution failed"
            return [{"type": "error", "errorText": message}, finish | {"finishReason": "error"}]
        case "cancelled":
            aborted = {"type": "abort", "reason": event.because or "the execution was cancelled"}
            return [{"type": "message-metadata", "messageMetadata": metadata}, aborted]
        case _:
            return [finish | {"finishReason": _FINISH_REASONS.get(event.stop_reason, "other")}]


def _text_chunks(event: TextStarted | TextAdded | TextEnded | TextDropped | Reasoned) -> list[Chunk]:
    part = {"id": event.message_id}
    match event:
        case TextStarted():
            return [{"type": "text-start", **part}]
        case TextAdded():
            return [{"type": "text-delta", **part, "delta": event.text}]
        case TextEnded():
            return [{"type": "text-end", **part}]
        case TextDropped():
            # The step so far has only this text, and data that are sent again.
            return [{"type": "reset-step"}]
        case Reasoned():
            return [
                {"type": "reasoning-start", **part},
                {"type": "reasoning-delta", **part, "delta": event.text},
                {"type": "reasoning-end", **part},
            ]


def _call_chunks(event: CallRequested | CallEnded | RequestOpened | RequestResolved) -> list[Chunk]:
    match event:
        case CallRequested():
            return [_input_chunk(event.call, is_question=event.is_question)]
        case CallEnded():
            return [_result_chunk(event)]
        case RequestOpened():
            return [_request_chunk(event.request)]
        case RequestResolved(request=request):
            if request.is_question or request.is_budget:
                return []
            response: Chunk = {"approvalId": request.id, "approved": event.decision != "deny"}
            reason = {"reason": event.reason} if event.reason else {}
            return [{"type": "tool-approval-response", **response, **reason}]


def _input_chunk(call: CallView, *, is_question: bool) -> Chunk:
    return {
        "type": "tool-input-available",
        "toolCallId": call.id,
        "toolName": call.name,
        "input": thaw(call.args),
        # What a worker runs is not run by the page; the answer to a question comes from there.
        **({} if is_question else {"providerExecuted": True}),
    }


def _result_chunk(event: CallEnded) -> Chunk:
    call = {"toolCallId": event.call.id}
    if event.is_denied:
        return {"type": "tool-output-denied", **call}
    if event.error is not None:
        return {"type": "tool-output-error", **call, "errorText": event.error}
    output = event.text if event.result is None else thaw(event.result)
    return {"type": "tool-output-available", **call, "output": output}


def _request_chunk(request: RequestView) -> Chunk:
    if request.budget is not None:
        data = {"executionId": request.execution_id, "prompt": request.prompt, **thaw(request.budget)}
        return {"type": "data-budget", "id": request.id, "data": data}
    if not request.is_question:
        return {"type": "tool-approval-request", "approvalId": request.id, "toolCallId": request.call.id}
    data = {
        "toolCallId": request.call.id,
        "prompt": request.prompt,
        "choices": list(request.choices),
        "schema": None if request.schema is None else thaw(request.schema),
        "expiresAt": request.expires_at,
    }
    return {"type": "data-question", "id": request.id, "data": data}


def _step_chunks(event: StepStarted | StepEnded) -> list[Chunk]:
    if isinstance(event, StepStarted):
        # A step that continues is in the message already.
        return [] if event.is_continued else [{"type": "start-step"}]
    return [] if event.is_suspended else [{"type": "finish-step"}]


def _other_chunks(event: RunEvent) -> list[Chunk]:
    match event:
        case StateChanged():
            return [_state_chunk(event.state)]
        case MessageReceived(message=message):
            files = [_file_part(file) for file in message.files]
            parts: Sequence[Chunk] = [{"type": "text", "text": message.text}, *files]
            return [{"type": "steering-message", "id": message.id, "parts": parts}]
        case Progressed():
            data = {"detail": event.detail, "toolCallId": event.call_id, "fraction": event.fraction}
            return [{"type": "data-progress", "id": "progress", "data": data, "transient": True}]
        case _:
            return []


def _state_chunk(state: Mapping[str, Any]) -> Chunk:
    return {"type": "data-state", "id": "state", "data": thaw(state)}


def _file_part(file: Mapping[str, Any]) -> Chunk:
    return {
        "type": "file",
        "mediaType": str(file.get("media_type") or "application/octet-stream"),
        "url": f"/agent/attachments/{file.get('id')}",
        "filename": str(file.get("name") or ""),
    }
