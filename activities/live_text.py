"""Streams the text of a model to viewers while the model writes it.

Nothing of an attempt is published before its start is stored, so that viewers have read that it started and
that the previous attempt is void. Nothing is published after another attempt has taken over.

Text is cut into chunks even when no viewer is connected, which is cheap: a viewer who joins in the middle
receives the recorded text and continues with the chunk after it. Only chunks of streams that are wanted at
that moment are sent to the bus.
"""

import asyncio
from collections.abc import Iterable
from time import monotonic
from typing import Self
from uuid import UUID

from temporalio import activity

from everstep.activities.call_records import now
from everstep.agent_domain.storage.execution_store import ExecutionStore
from everstep.agent_domain.storage.steps import BeginStep, BegunStep, PartialText
from everstep.agent_domain.stream.bus import EnvelopeBus, TextChunk
from everstep.agent_domain.stream.chunker import Chunker, Piece
from everstep.agent_domain.stream.envelopes import Attempt


class LiveText:
    """The text of one attempt: buffered at first, and published once the start of the attempt is stored.

    It is published while the body of this context manager runs.
    """

    __slots__ = (
        "_added",
        "_after_seq",
        "_asked_at",
        "_cut",
        "_cutter",
        "_is_cut_off",
        "_is_public",
        "_is_stopped",
        "_next_index",
        "_recorded",
        "_text",
        "_texts",
        "_timer",
        "begin",
        "first_text_seconds",
        "has_started",
    )

    def __init__(self, texts: "LiveTexts", begin: BeginStep, *, is_public: bool) -> None:
        self._texts = texts
        self.begin = begin
        self._is_public = is_public
        self._is_stopped = self._is_cut_off = False
        self._after_seq: int | None = None
        self._cutter = Chunker()
        self._cut = self._next_index = 0
        self._timer: asyncio.TimerHandle | None = None
        self._recorded = 0
        """How many characters of the text the store has. They are not kept here."""
        self._text = ""
        self._added: list[str] = []
        """What comes after `_text`: to join the text for every word would take ever longer."""
        self._asked_at = monotonic()
        self.first_text_seconds: float | None = None
        """From the request to the model until its first text."""
        self.has_started = False

    def __enter__(self) -> Self:
        self._texts.add(self)
        return self

    def __exit__(self, *_error: object) -> None:
        self.stop()
        self._texts.remove(self)

    def on_start(self, started: BegunStep) -> None:
        """Publish from now on, unless the step has its reply already or a later attempt has started."""
        if started.recorded or (started.previous_attempt or 0) > self.begin.attempt:
            self.stop()
        self._after_seq = started.after_seq
        self.has_started = True
        self._publish_due()

    def on_request(self) -> None:
        """Measure from now on: the model is asked."""
        self._asked_at = monotonic()

    def add_text(self, content: str) -> None:
        """Add text from the model."""
        if content and self.first_text_seconds is None:
            self.first_text_seconds = round(monotonic() - self._asked_at, 6)
        self._added.append(content)
        if self._is_public:
            self._cutter.feed(content)
            self._publish_due()

    def finish(self) -> None:
        """Publish the rest: the model has finished."""
        if self._can_publish:
            self._publish(self._cutter.finish())

    def stop(self) -> None:
        """Publish nothing more; text is still collected."""
        self._is_stopped = True
        if self._timer:
            self._timer.cancel()

    @property
    def is_due(self) -> bool:
        """Whether the store does not have all that it may have of the text."""
        return self.has_started and not self._is_stopped and bool(self.unrecorded)

    @property
    def unrecorded(self) -> str:
        """What the store does not have of the text; if it is published, only what was cut into chunks."""
        if self._added:
            self._text = "".join((self._text, *self._added))
            self._added.clear()
        return self._text[: self._cut - self._recorded] if self._is_public else self._text

    @property
    def is_published(self) -> bool:
        """Whether viewers may have seen a part of it, which is then void if the attempt fails."""
        return self._next_index > 0

    @property
    def partial_text(self) -> PartialText:
        """What the store does not have of the text, for viewers who join late.

        If text is not published, it has no index of the next chunk, and joining viewers do not receive it.
        """
        begin, index = self.begin, self._next_index if self._is_public else None
        return PartialText(
            begin.ref,
            begin.number,
            begin.attempt,
            self.unrecorded,
            index,
            self._after_seq,
            offset=self._recorded,
        )

    def on_recorded(self, part: PartialText) -> None:
        """Forget a part of the text that the store has."""
        end = part.offset + len(part.text)
        if end > self._recorded:
            self._text = self._text[end - self._recorded :]
            self._recorded = end

    async def record(self, store: ExecutionStore) -> None:
        """Record the text so far, even if another transaction holds the step."""
        part = self.partial_text
        is_recorded = await store.note_partial(
            part.ref,
            part.number,
            part.attempt,
            part.text,
            next_index=part.next_index,
            after_seq=part.after_seq,
            offset=part.offset,
        )
        if is_recorded:
            self.on_recorded(part)

    @property
    def _can_publish(self) -> bool:
        is_current = self.has_started and not self._is_stopped
        return self._is_public and is_current and self._texts.is_latest(self)

    def _publish_due(self) -> None:
        if not self._can_publish:
            return
        loop = asyncio.get_running_loop()
        self._publish(self._cutter.take_due(loop.time()))
        if self._timer is None and self._cutter.due_at is not None:
            self._timer = loop.call_at(self._cutter.due_at, self._on_timer)

    def _on_timer(self) -> None:
        self._timer = None
        self._publish_due()

    def _publish(self, pieces: Iterable[Piece]) -> None:
        for piece in pieces:
            self._cut, self._next_index = piece.offset + len(piece.content), piece.index + 1
            if not self._is_cut_off:
                self._send(piece)

    def _send(self, piece: Piece) -> None:
        ref, attempt = self.begin.ref, Attempt(self.begin.number, self.begin.attempt)
        try:
            if self._texts.bus.has_subscribers(ref.stream_id):
                chunk = TextChunk(
                    ref, attempt, piece.index, piece.offset, piece.content, self._after_seq, now()
                )
                self._texts.bus.publish_chunk(ref.stream_id, chunk)
        except Exception:  # noqa: BLE001 -- a failing stream must not cost the reply
            activity.logger.exception(
                "publishing the text of step %s failed; no more of it is sent", self.begin.number
            )
            self._is_cut_off = True


class LiveTexts:
    """The live texts of this process, of which only the latest attempt of each execution is published."""

    def __init__(self, bus: EnvelopeBus) -> None:
        self.bus = bus
        self._latest: dict[UUID, LiveText] = {}

    def open_text(self, begin: BeginStep, *, is_public: bool) -> LiveText:
        """Publish the text of an attempt while the body runs; if it is not public, only collect it."""
        return LiveText(self, begin, is_public=is_public)

    def add(self, text: LiveText) -> None:
        """Let this attempt take over from earlier ones of its execution."""
        self._latest[text.begin.ref.execution_id] = text

    def remove(self, text: LiveText) -> None:
        """Forget an attempt."""
        if self.is_latest(text):
            del self._latest[text.begin.ref.execution_id]

    def is_latest(self, text: LiveText) -> bool:
        """Whether no later attempt in this process has taken over."""
        return self._latest.get(text.begin.ref.execution_id) is text
