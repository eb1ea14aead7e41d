"""OpenAI's Responses API: one run of an execution as the items and events of one response.

A reader resumes with the number of its last event, so the number of an event depends on the log alone,
however the text of a model arrives: texts are cut at fixed places (`text_pieces`), and numbers have gaps.
Each attempt of a model call has three blocks of numbers, for the pieces of its text, for the end of the text,
and for what follows, and the stream is read from its begin and sent from the reader's number on.

A text that was sent is not taken back, as the protocol has no means. An attempt that is given up ends its
item as `incomplete` and without content, and the next one has an item of its own.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from everstep.agent_domain.values import EMPTY, json_text, thaw
from everstep.wires.projections import Projection, WireEvent
from everstep.wires.response_items import (
    SERVER_LABEL,
    approval_item_id,
    item_id,
    request_kind,
    request_summary,
    request_text,
    response_id,
    response_usage,
    text_pieces,
)
from everstep.wires.run_cursors import RunCursor
from everstep.wires.run_events import (
    AttemptSuperseded,
    CallEnded,
    CallRequested,
    Reasoned,
    RequestView,
    RunEnded,
    RunEvent,
    RunPaused,
    RunStarted,
    StepEnded,
    StepStarted,
    TextAdded,
    TextDropped,
    TextEnded,
    TextStarted,
)

BLOCK = 1_000_000
"""How many numbers a block has. A text has fewer pieces; those beyond are only in its end."""

_STATUS: Mapping[str, tuple[str, str]] = {
    "completed": ("completed", "response.completed"),
    "stopped": ("incomplete", "response.incomplete"),
    "cancelled": ("cancelled", "response.incomplete"),
    "failed": ("failed", "response.failed"),
}
"""The status and the last event of a response, by the status of its execution."""

_INCOMPLETE = {"token_limit": "max_output_tokens", "finish_reason": "content_filter"}


@dataclass(frozen=True, slots=True)
class ResponseHead:
    """What is known of a response before its log is read."""

    execution_id: str
    segment: int
    """Which run of the execution it is."""
    model: str
    created_at: float
    session_id: str | None = None
    previous_response_id: str | None = None
    conversation_id: str | None = None
    is_background: bool = False
    is_structured: bool = False
    """Whether the answer is data, and nothing else is text."""
    metadata: Mapping[str, Any] = field(default=EMPTY)

    @property
    def id(self) -> str:
        """The id of the response."""
        return response_id(self.execution_id, self.segment)


@dataclass(slots=True)
class _TextItem:
    """The message that a model writes."""

    index: int
    id: str
    text: str = ""
    sent: int = 0
    """How many characters were sent."""
    is_void: bool = False
    """Whether its text was given up."""
    following: str | None = None
    """The text that comes instead of a void one."""


class ResponseEvents(Projection):
    """The events of one response, for one reader.

    Args:
        head: The response.
        after: The number of the last event that the reader has received.
    """

    def __init__(self, head: ResponseHead, after: int = -1) -> None:
        self.head = head
        self.failure: tuple[str, str] | None = None
        """The message and the code of a stream that ended before its execution."""
        self._after = after
        self._number = -1
        self._block = 0
        self._awaits_text = False
        """Whether the text of an attempt may come."""
        self._is_open = False
        self._text: _TextItem | None = None
        self._output: list[dict[str, Any]] = []
        self._calls: dict[str, int] = {}
        self._status = "queued"
        self._more: dict[str, Any] = {}
        self._everstep: dict[str, Any] = {"execution_id": head.execution_id, "session_id": head.session_id}
        self._events: list[WireEvent] = []

    @property
    def is_terminal(self) -> bool:
        """Whether the response has ended."""
        return self._status not in {"queued", "in_progress"}

    @property
    def answer(self) -> dict[str, Any]:
        """The response as it is now."""
        head = self.head
        conversation = None if head.conversation_id is None else {"id": head.conversation_id}
        return {
            "id": head.id,
            "object": "response",
            "created_at": head.created_at,
            "status": self._status,
            "background": head.is_background,
            "error": None,
            "incomplete_details": None,
            "instructions": None,
            "max_output_tokens": None,
            "model": head.model,
            "output": [dict(item) for item in self._output],
            "parallel_tool_calls": True,
            "previous_response_id": head.previous_response_id,
            "conversation": conversation,
            "reasoning": {"effort": None, "summary": None},
            "store": True,
            "temperature": None,
            "text": {"format": {"type": "text"}},
            "tool_choice": "auto",
            "tools": [],
            "top_p": None,
            "truncation": "disabled",
            "usage": None,
            "metadata": thaw(head.metadata),
            **self._more,
            "everstep": self._everstep,
        }

    def encode(self, event: RunEvent) -> list[WireEvent]:
        """The events after the reader's number."""
        self._events = []
        if isinstance(event, RunStarted):
            self._begin(event)
        elif self._is_open and event.execution_id == self.head.execution_id:
            self._read(event)
        if self.is_complete and self._number < self._after:
            message = (
                f"The last event of this response has the number {self._number}, and starting_after is "
                f"{self._after}; send the number of an event that you have received"
            )
            return self.fail(message, "invalid_starting_after")
        return [each for each in self._events if each["sequence_number"] > self._after]

    def fail(self, message: str, code: str) -> list[WireEvent]:
        """The last event of a stream that ends before the execution does."""
        self.failure = message, code
        # Its number is not that of an event of the log, which the reader receives when it resumes.
        number = max(self._number, self._after)
        return [{"type": "error", "sequence_number": number, "code": code, "message": message, "param": None}]

    def frame(self, event: WireEvent, cursor: RunCursor | None = None) -> bytes:
        """A server-sent event with its name; its number is its id."""
        del cursor
        return f"event: {event['type']}\ndata: {json_text(event)}\n\n".encode()

    def _begin(self, event: RunStarted) -> None:
        if event.segment != self.head.segment:
            self.is_complete = event.segment > self.head.segment
            return
        self._is_open = True
        self._status = "in_progress"
        self._emit("response.created", response=self.answer)
        self._emit("response.in_progress", response=self.answer)

    def _read(self, event: RunEvent) -> None:
        match event:
            case TextStarted() | TextAdded() | TextDropped() | TextEnded():
                if not self.head.is_structured:
                    self._read_text(event)
            case AttemptSuperseded():
                self._supersede()
            case StepStarted():
                self._open_blocks()
            case Reasoned() | CallRequested() | CallEnded() | StepEnded() | RunPaused() | RunEnded():
                self._close_text_blocks()
                self._read_counted(event)
            case _:
                return

    def _read_counted(
        self, event: Reasoned | CallRequested | CallEnded | StepEnded | RunPaused | RunEnded
    ) -> None:
        match event:
            case Reasoned():
                self._add_reasoning(event.text)
            case CallRequested():
                if not event.is_question:
                    self._add_call(event)
            case CallEnded():
                self._end_call(event)
            case StepEnded():
                return
            case RunPaused():
                self._pause(event)
            case RunEnded():
                self._end(event)

    # Numbers.

    def _emit(self, kind: str, **fields: Any) -> None:
        self._number += 1
        self._events.append({"type": kind, "sequence_number": self._number, **fields})

    def _enter_block(self, block: int) -> None:
        self._number = block * BLOCK - 1

    def _open_blocks(self) -> None:
        """Begin the blocks of an attempt, after those of the last one."""
        self._block += 3
        self._enter_block(self._block)
        self._awaits_text = True

    def _close_text_blocks(self) -> None:
        """Go to the block of what follows a text, if one could have come."""
        if not self._awaits_text:
            return
        if self._text:
            self._void_text(self._text)
        self._awaits_text = False
        self._enter_block(self._block + 2)

    # Texts.

    def _read_text(self, event: TextStarted | TextAdded | TextDropped | TextEnded) -> None:
        text = self._text
        match event:
            case TextStarted():
                if text is None:
                    self._text = self._open_text()
                else:
                    text.following = ""
            case TextAdded(text=added) if text is not None:
                if text.is_void:
                    text.following = (text.following or "") + added
                else:
                    text.text += added
                    self._send_pieces(text)
            case TextDropped() if text is not None:
                text.is_void, text.following = True, None
            case TextEnded() if text is not None:
                self._end_text(text)
            case _:
                return

    def _open_text(self) -> _TextItem:
        text = _TextItem(len(self._output), self._item_id("msg"))
        self._add_item(_message(text.id, "in_progress"))
        self._emit(
            "response.content_part.added",
            **self._place(text.index, text.id),
            part=_text_part(""),
            content_index=0,
        )
        return text

    def _send_pieces(self, text: _TextItem, *, is_whole: bool = False) -> None:
        for piece in text_pieces(text.text, text.sent, is_whole=is_whole):
            if self._number % BLOCK == BLOCK - 1:
                return
            text.sent += len(piece)
            at = self._place(text.index, text.id)
            self._emit("response.output_text.delta", **at, content_index=0, delta=piece, logprobs=[])

    def _end_text(self, text: _TextItem) -> None:
        # If other text was stored than was sent, no piece of it can follow: the whole is in the end.
        whole = text.text if text.following is None else text.following
        if not text.is_void:
            self._send_pieces(text, is_whole=True)
        if self._awaits_text:
            self._enter_block(self._block + 1)
        self._finish_text(text, whole)
        self._text = None

    def _finish_text(self, text: _TextItem, whole: str) -> None:
        at = {**self._place(text.index, text.id), "content_index": 0}
        self._emit("response.output_text.done", **at, text=whole, logprobs=[])
        self._emit("response.content_part.done", **at, part=_text_part(whole))
        self._finish_item(text.index, _message(text.id, "completed", _text_part(whole)))

    def _void_text(self, text: _TextItem) -> None:
        self._enter_block(self._block + 1)
        self._finish_item(text.index, _message(text.id, "incomplete"))
        self._text = None

    def _supersede(self) -> None:
        """End the item of the attempt that was given up: also for a reader that has nothing of it."""
        if self.head.is_structured:
            self._open_blocks()
            return
        text = self._text or self._open_text()
        following = text.following
        self._void_text(text)
        self._open_blocks()
        if following is not None:
            self._text = self._open_text()
            self._text.text = following
            self._send_pieces(self._text)

    def _write_message(self, content: str) -> None:
        """A message that is complete at once."""
        text = self._open_text()
        text.text = content
        self._send_pieces(text, is_whole=True)
        self._finish_text(text, content)

    # Items.

    def _item_id(self, kind: str) -> str:
        return item_id(kind, self.head.execution_id, self.head.segment, len(self._output))

    def _place(self, index: int, id_: str) -> dict[str, Any]:
        return {"item_id": id_, "output_index": index}

    def _add_item(self, item: dict[str, Any]) -> int:
        index = len(self._output)
        self._output.append(item)
        self._emit("response.output_item.added", output_index=index, item=item)
        return index

    def _finish_item(self, index: int, item: dict[str, Any]) -> None:
        self._output[index] = item
        self._emit("response.output_item.done", output_index=index, item=item)

    def _add_reasoning(self, text: str) -> None:
        id_ = self._item_id("rs")
        index = self._add_item({"type": "reasoning", "id": id_, "summary": []})
        part, at = {"type": "summary_text", "text": text}, {**self._place(index, id_), "summary_index": 0}
        self._emit("response.reasoning_summary_part.added", **at, part=part | {"text": ""})
        self._emit("response.reasoning_summary_text.delta", **at, delta=text)
        self._emit("response.reasoning_summary_text.done", **at, text=text)
        self._emit("response.reasoning_summary_part.done", **at, part=part)
        self._finish_item(index, {"type": "reasoning", "id": id_, "summary": [part]})

    def _add_call(self, event: CallRequested | CallEnded) -> int:
        id_, arguments = self._item_id("mcp"), json_text(thaw(event.call.args))
        item = {
            "type": "mcp_call",
            "id": id_,
            "name": event.call.name,
            "arguments": arguments,
            "server_label": SERVER_LABEL,
            "status": "in_progress",
            "approval_request_id": None,
            "output": None,
            "error": None,
        }
        index = self._calls[event.call.id] = self._add_item(item)
        self._emit("response.mcp_call.in_progress", **self._place(index, id_))
        self._emit("response.mcp_call_arguments.done", **self._place(index, id_), arguments=arguments)
        return index

    def _end_call(self, event: CallEnded) -> None:
        if event.call.name == "user_input":
            # Its question was a message, and its result is the answer to it.
            return
        index = self._calls.pop(event.call.id, None)
        index = self._add_call(event) if index is None else index
        self._calls.pop(event.call.id, None)
        item, is_failed = self._output[index], event.error is not None or event.is_denied
        self._emit(
            f"response.mcp_call.{'failed' if is_failed else 'completed'}", **self._place(index, item["id"])
        )
        if is_failed:
            error = {"type": "mcp_tool_execution_error", "content": event.text or event.error}
            item = item | {"status": "failed", "error": error}
        else:
            item = item | {"status": "completed", "output": event.text}
        self._finish_item(index, item)

    def _close_calls(self) -> None:
        """End the items of calls that have no result in this response."""
        for index in self._calls.values():
            self._finish_item(index, self._output[index] | {"status": "incomplete"})
        self._calls.clear()

    # The end.

    def _pause(self, event: RunPaused) -> None:
        self._close_calls()
        for request in event.requests:
            self._ask(request)
        self._everstep |= {
            "because": event.because,
            "requests": [request_summary(request) for request in event.requests],
        }
        self._finish("completed", "response.completed", event.usage)

    def _ask(self, request: RequestView) -> None:
        if request_kind(request) != "approval":
            self._write_message(request_text(request))
            return
        item = {
            "type": "mcp_approval_request",
            "id": approval_item_id(request.id),
            "name": request.call.name,
            "arguments": json_text(thaw(request.call.args)),
            "server_label": SERVER_LABEL,
        }
        self._finish_item(self._add_item(item), item)

    def _end(self, event: RunEnded) -> None:
        self._close_calls()
        answer = self._missing_answer(event)
        if answer:
            self._write_message(answer)
        self._everstep |= {
            "because": event.because,
            "stop_reason": event.stop_reason,
            "cost_usd": event.cost_usd,
            "output": None if event.output is None else thaw(event.output),
        }
        status, kind = _STATUS[event.status]
        if status == "incomplete":
            self._more["incomplete_details"] = {"reason": _INCOMPLETE.get(event.stop_reason or "")}
        if status == "failed":
            message = event.error or event.because or "the execution failed"
            self._more["error"] = {"code": "server_error", "message": message}
        self._finish(status, kind, event.usage)

    def _missing_answer(self, event: RunEnded) -> str | None:
        """The answer, if no message has it."""
        if self.head.is_structured:
            return None if event.output is None else json_text(thaw(event.output))
        has_message = any(item["type"] == "message" and item["content"] for item in self._output)
        return None if has_message or event.status == "failed" else event.response

    def _finish(self, status: str, kind: str, usage: Mapping[str, int]) -> None:
        self._status = status
        self._more["usage"] = response_usage(usage)
        self._emit(kind, response=self.answer)
        self._is_open = False
        self.is_complete = True


def _message(id_: str, status: str, *parts: dict[str, Any]) -> dict[str, Any]:
    return {"type": "message", "id": id_, "role": "assistant", "status": status, "content": [*parts]}


def _text_part(text: str) -> dict[str, Any]:
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": []}
