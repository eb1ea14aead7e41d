"""OpenAI's chat completions: one run of an execution as one message of the assistant.

The message has the texts of all steps, a blank line between them, and what the execution asks people. Calls
are not shown, as the protocol would make its client run them. A text that was sent cannot be taken back: if
an attempt is given up and the next one writes something else, the stream ends with an error.
"""

from typing import Any

from everstep.agent_domain.agents.structured_result import INVALID_RESULT
from everstep.agent_domain.values import json_text, thaw
from everstep.wires.projections import Projection, WireEvent
from everstep.wires.response_items import chat_usage, request_kind, request_summary, request_text
from everstep.wires.run_cursors import RunCursor
from everstep.wires.run_events import (
    CallEnded,
    CallRequested,
    Reasoned,
    RunEnded,
    RunEvent,
    RunPaused,
    RunStarted,
    StepEnded,
    TextAdded,
    TextDropped,
    TextEnded,
    TextStarted,
)

SUPERSEDED = "text_superseded"
"""The code of a stream whose text was given up."""
FAILED = "execution_failed"
CANCELLED = "execution_cancelled"
INVALID = "invalid_result"
"""The code of an execution that failed, as its model gave no result of the requested form."""

HOW_TO_APPROVE = "Answer `approve`, `deny`, or `deny: ` and a reason."

_FINISH_REASONS = {None: "stop", "completed": "stop", "finish_reason": "content_filter"}


class ChatChunks(Projection):
    """The chunks of one completion, for one reader.

    Args:
        root_id: The execution.
        model: The name of the agent.
        created: When the execution began, in seconds since 1970.
        session_id: Its session.
        is_whole: Whether text is sent only once it is stored, and never has to be taken back.
        is_structured: Whether the answer is data, and nothing else is text.
        includes_usage: Whether the last chunk has the usage.
    """

    last_frame = b"data: [DONE]\n\n"

    def __init__(
        self,
        root_id: str,
        model: str,
        created: int,
        session_id: str,
        *,
        is_whole: bool = False,
        is_structured: bool = False,
        includes_usage: bool = False,
    ) -> None:
        self.root_id = root_id
        self.failure: tuple[str, str] | None = None
        """The message and the code of a stream that ended with an error."""
        self.text = ""
        """The message so far."""
        self.finish_reason: str | None = None
        self.usage = chat_usage({})
        self.everstep: dict[str, Any] = {"execution_id": root_id, "session_id": session_id}
        self._is_whole = is_whole
        self._is_structured = is_structured
        self._includes_usage = includes_usage
        self._base = {
            "id": f"chatcmpl-{root_id}",
            "object": "chat.completion.chunk",
            "created": created,
            "model": model,
        }
        self._step_text: str | None = None
        """The text of the current step as it is now; None if there is none."""
        self._sent = ""
        """What was sent of the current step."""

    @property
    def answer(self) -> dict[str, Any]:
        """The completion without streaming."""
        message = {"role": "assistant", "content": self.text, "refusal": None}
        choice = {"index": 0, "message": message, "logprobs": None, "finish_reason": self.finish_reason}
        return {
            **self._base,
            "object": "chat.completion",
            "choices": [choice],
            "usage": self.usage,
            "everstep": self.everstep,
        }

    def encode(self, event: RunEvent) -> list[WireEvent]:
        """The chunks of one event."""
        match event:
            case RunStarted():
                return [self._chunk({"role": "assistant", "content": ""})]
            case _ if event.execution_id != self.root_id:
                return []
            case TextStarted() | TextAdded() | TextDropped() | TextEnded():
                return [] if self._is_structured else self._encode_text(event)
            case Reasoned() | CallRequested() | CallEnded() | StepEnded() | RunPaused() | RunEnded():
                events = self._end_step()
                return events if self.is_complete else events + self._encode_end(event)
            case _:
                return []

    def _encode_end(self, event: RunEvent) -> list[WireEvent]:
        match event:
            case RunPaused():
                return self._pause(event)
            case RunEnded():
                return self._end(event)
            case _:
                return []

    def fail(self, message: str, code: str) -> list[WireEvent]:
        """The last event of a stream that ends before the execution does."""
        self.failure = message, code
        error = {"message": message, "type": "server_error", "param": None, "code": code}
        return [{"error": error, "everstep": self.everstep}]

    def frame(self, event: WireEvent, cursor: RunCursor | None = None) -> bytes:
        """A server-sent event without an id: the protocol does not resume."""
        del cursor
        return f"data: {json_text(event)}\n\n".encode()

    def _chunk(self, delta: dict[str, Any], finish_reason: str | None = None) -> WireEvent:
        choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish_reason}
        usage = {"usage": None} if self._includes_usage else {}
        return {**self._base, "choices": [choice], **usage}

    def _encode_text(self, event: TextStarted | TextAdded | TextDropped | TextEnded) -> list[WireEvent]:
        match event:
            case TextStarted():
                self._step_text = ""
            case TextAdded(text=added):
                self._step_text = (self._step_text or "") + added
            case TextDropped():
                self._step_text = None
            case TextEnded():
                return self._end_step()
        return [] if self._is_whole else self._send_rest()

    def _send_rest(self) -> list[WireEvent]:
        """Send what is new of the text of the step, if it goes on with what was sent."""
        whole = self._step_text
        if not whole or len(whole) <= len(self._sent):
            # An attempt that has written less than the one before may still write the same.
            return []
        return self._send(whole) if whole.startswith(self._sent) else self._give_up()

    def _send(self, whole: str) -> list[WireEvent]:
        gap = "\n\n" if self.text and not self._sent else ""
        added = gap + whole[len(self._sent) :]
        self._sent = whole
        self.text += added
        return [self._chunk({"content": added})]

    def _end_step(self) -> list[WireEvent]:
        """The text of the step is complete: it has to begin with what was sent."""
        events, sent, whole = self._send_rest(), self._sent, self._step_text
        self._step_text, self._sent = None, ""
        if not self.is_complete and sent and (whole or "").rstrip() != sent.rstrip() and not events:
            return self._give_up()
        return events

    def _give_up(self) -> list[WireEvent]:
        self.is_complete = True
        return self.fail(
            "The model was interrupted, and its next attempt writes another text than was sent. The "
            "execution continues: send the request again with the same Idempotency-Key, or read "
            f"GET /agent/executions/{self.root_id}; with `everstep.text: complete` only final text is sent",
            SUPERSEDED,
        )

    def _say(self, text: str) -> list[WireEvent]:
        self._sent = ""
        chunks = self._send(text)
        self._sent = ""
        return chunks

    def _pause(self, event: RunPaused) -> list[WireEvent]:
        texts = [request_text(request) for request in event.requests]
        if any(request_kind(request) == "approval" for request in event.requests):
            texts.append(HOW_TO_APPROVE)
        said = self._say("\n\n".join(texts))
        self.everstep |= {
            "status": "paused",
            "because": event.because,
            "requests": [request_summary(request) for request in event.requests],
        }
        return said + self._finish("stop", chat_usage(event.usage))

    def _end(self, event: RunEnded) -> list[WireEvent]:
        self.everstep |= {
            "status": event.status,
            "because": event.because,
            "stop_reason": event.stop_reason,
            "cost_usd": event.cost_usd,
            "output": None if event.output is None else thaw(event.output),
        }
        if event.status in {"failed", "cancelled"}:
            self.is_complete = True
            message = event.error or event.because or f"the execution has {event.status}"
            if message.startswith(INVALID_RESULT):
                return self.fail(f"{message}; send the request again, or with a simpler schema", INVALID)
            return self.fail(message, FAILED if event.status == "failed" else CANCELLED)
        answer = None if self.text else event.response
        if self._is_structured:
            answer = None if event.output is None else json_text(thaw(event.output))
        said = self._say(answer) if answer else []
        return said + self._finish(_FINISH_REASONS.get(event.stop_reason, "length"), chat_usage(event.usage))

    def _finish(self, reason: str, usage: dict[str, Any]) -> list[WireEvent]:
        self.finish_reason, self.usage, self.is_complete = reason, usage, True
        last = self._chunk({}, reason) | {"everstep": self.everstep}
        if not self._includes_usage:
            return [last]
        return [last, {**self._base, "choices": [], "usage": usage}]
