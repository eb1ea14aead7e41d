"""Lanes: what a reader of the log knows about one execution of a run, and the text that its model writes."""

import zlib
from collections.abc import Mapping
from typing import Any

from everstep.agent_domain.stream.envelopes import EnvelopeType
from everstep.agent_domain.stream.reader import Draft, ReadOutcome, place_from
from everstep.agent_domain.values import EMPTY
from everstep.wires.run_cursors import SentText
from everstep.wires.run_events import CallView, RequestView
from everstep.wires.thread_messages import message_id, wire_call_id


class OpenText:
    """The text of an attempt, of which a reader has received the beginning."""

    __slots__ = ("attempt", "checksum", "content", "is_closed", "length", "step_number")

    def __init__(self, step_number: int, attempt: int) -> None:
        self.step_number = step_number
        self.attempt = attempt
        self.content: str | None = ""
        """What was sent; None if another process has sent it, so that only its length is known."""
        self.length = 0
        self.checksum = 0
        self.is_closed = False
        """Whether the reader knows that it is complete."""

    @classmethod
    def restored(cls, sent: SentText) -> "OpenText":
        """The text that a cursor names."""
        text = cls(sent.step_number, sent.attempt)
        text.content = None if sent.length else ""
        text.length, text.checksum, text.is_closed = sent.length, sent.checksum, sent.is_closed
        return text

    @property
    def extent(self) -> SentText:
        """How much of it was sent, for a cursor."""
        return SentText(self.step_number, self.attempt, self.length, self.checksum, self.is_closed)

    def goes_on(self, step_number: int, attempt: int, so_far: str) -> bool:
        """Whether a text that is not complete yet is this one; it may also be an earlier part of it."""
        is_same = (step_number, attempt) == (self.step_number, self.attempt)
        return is_same and (len(so_far) <= self.length or self._is_start_of(so_far))

    def begins(self, whole: str) -> bool:
        """Whether what was sent begins a complete text; blank space after that does not count."""
        if self.length <= len(whole):
            return self._is_start_of(whole)
        return self.content is not None and self.content.rstrip() == whole.rstrip()

    def _is_start_of(self, text: str) -> bool:
        return zlib.crc32(text[: self.length].encode()) == self.checksum

    def rest(self, whole: str) -> str:
        """What of the text was not sent yet; from now on it is."""
        added = whole[self.length :]
        if added:
            self.content = whole
            self.checksum = zlib.crc32(added.encode(), self.checksum)
            self.length = len(whole)
        return added


BUDGET_FIELDS = ("unit", "scope", "limit", "spent", "reserved", "needed")
"""What a reader learns about an exhausted budget."""


class Lane:
    """One execution of a run."""

    __slots__ = (
        "_draft",
        "_written",
        "asked",
        "call_id",
        "calls",
        "execution_id",
        "has_ended",
        "is_step_open",
        "name",
        "parent",
        "replied",
        "said",
        "status",
        "step",
        "text",
    )

    def __init__(self, execution_id: str, parent: "Lane | None" = None, name: str = "") -> None:
        self.execution_id = execution_id
        self.parent = parent
        self.name = name
        self.call_id: str | None = None
        """The call of the parent that started it, as the provider names it."""
        self.status = "idle"
        self.step = 0
        """The current step."""
        self.is_step_open = False
        self.has_ended = False
        self.replied = 0
        """The last step whose reply was read."""
        self.calls: dict[str, tuple[CallView, str]] = {}
        """The calls of its replies as wires see them, and the message of each, by the provider's ids."""
        self.asked: set[str] = set()
        """The calls that a person was asked about, by the provider's ids."""
        self.said = ""
        """The last text of a reply."""
        self.text: OpenText | None = None
        """The text that a reader receives now."""
        self._draft = Draft()
        self._written = ""

    @property
    def open_text(self) -> OpenText | None:
        """The text of which the reader does not know that it is complete."""
        return None if self.text is None or self.text.is_closed else self.text

    @property
    def subagent_id(self) -> str | None:
        """Its id as a subagent; None for the execution that the reader follows."""
        return None if self.parent is None else self.execution_id

    def message_id(self, step_number: int | None = None) -> str:
        """The message of a step, by default the current one."""
        return message_id(self.execution_id, self.step if step_number is None else step_number)

    def take_text(self, envelope: Mapping[str, Any]) -> str | None:
        """Read a chunk or a snapshot; return the whole text of its attempt, or None if nothing is new."""
        payload = envelope["payload"]
        if envelope["type"] == EnvelopeType.AGENT_STREAM_SNAPSHOT:
            outcome = self._draft.replace(place_from(payload, "next_index"), payload["content"])
            self._written = payload["content"] if outcome is ReadOutcome.APPLIED else self._written
        else:
            place = place_from(payload, "chunk_index")
            is_first = place.next_index == 0
            outcome = self._draft.take(place, payload["content"], payload["is_complete"])
            if outcome is ReadOutcome.APPLIED:
                self._written = payload["content"] if is_first else self._written + payload["content"]
        return self._written if outcome is ReadOutcome.APPLIED and self._written else None

    def fence(self, step_number: int, attempt: int) -> None:
        """Read no text of attempts before this one."""
        self._draft.fence((step_number, attempt))

    def budget_request(self, payload: Mapping[str, Any]) -> RequestView:
        """The exhausted budget that a message announces."""
        metadata: Mapping[str, Any] = payload["metadata"]
        amounts = {name: metadata[name] for name in BUDGET_FIELDS if name in metadata}
        return RequestView(
            metadata["request_id"],
            self.execution_id,
            CallView("", "", EMPTY),
            is_question=False,
            prompt=payload.get("content") or "a budget is exhausted",
            budget=amounts,
        )

    def request(self, payload: Mapping[str, Any]) -> RequestView:
        """The question or approval that an envelope opens."""
        view, _ = self.calls.get(payload["tool_call_id"], (None, ""))
        if view is None:
            name = payload.get("tool_name") or "user_input"
            view = CallView(
                wire_call_id(self.execution_id, payload["tool_call_id"]), name, payload.get("args") or EMPTY
            )
        return RequestView(
            payload["request_id"],
            self.execution_id,
            view,
            is_question="prompt" in payload,
            prompt=payload.get("prompt") or "",
            choices=tuple(payload.get("choices") or ()),
            schema=payload.get("schema"),
            args_digest=payload.get("args_digest") or "",
            expires_at=payload.get("expires_at"),
        )
