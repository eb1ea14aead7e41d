"""What a model writes, told to viewers while it is written.

Nothing of an attempt is told before its beginning is stored, so that whoever reads its text has read that it
began, and that the attempt before was given up. And nothing once another attempt has taken over.
"""

import asyncio
from collections.abc import Generator, Iterable
from contextlib import contextmanager
from uuid import UUID

from temporalio import activity

from activities.calls import now
from agent_domain.bus import Chunk, EnvelopeBus
from agent_domain.cutter import Cutter, Piece
from agent_domain.envelopes import Attempt
from agent_domain.ports import BeginStep, BegunStep


class LiveText:
    """The text of one attempt. It is heard first, and told once the attempt has begun."""

    def __init__(self, texts: "LiveTexts", begin: BeginStep, *, is_wanted: bool) -> None:
        self._texts = texts
        self.begin = begin
        self._is_wanted = is_wanted
        self._after_seq: int | None = None
        self._cutter = Cutter()
        self._timer: asyncio.TimerHandle | None = None
        self.text = ""
        self.has_begun = False
        self.was_told = False

    def begun(self, begun: BegunStep) -> None:
        """The beginning is stored; it is void if the step has its reply, or a later attempt."""
        latest = begun.previous_attempt or 0
        self._is_wanted &= begun.recorded is None and latest <= self.begin.attempt
        self._after_seq = begun.after_seq
        self.has_begun = True
        self._tell_what_is_due()

    def heard(self, content: str) -> None:
        """Some more text."""
        self.text += content
        if self._is_wanted:
            self._cutter.heard(content)
            self._tell_what_is_due()

    def ended(self) -> None:
        """The model has finished."""
        if self._may_tell:
            self._tell(self._cutter.ended())

    def stop(self) -> None:
        """Nothing more is told, whatever is still heard."""
        self._is_wanted = False
        if self._timer:
            self._timer.cancel()

    @property
    def _may_tell(self) -> bool:
        return self._is_wanted and self.has_begun and self._texts.is_latest(self.begin, self)

    def _tell_what_is_due(self) -> None:
        if not self._may_tell:
            return
        loop = asyncio.get_running_loop()
        self._tell(self._cutter.due(loop.time()))
        if self._timer is None and self._cutter.due_at is not None:
            self._timer = loop.call_at(self._cutter.due_at, self._again)

    def _again(self) -> None:
        self._timer = None
        self._tell_what_is_due()

    def _tell(self, pieces: Iterable[Piece]) -> None:
        ref, attempt = self.begin.ref, Attempt(self.begin.number, self.begin.attempt)
        for piece in pieces:
            self.was_told = True
            chunk = Chunk(ref, attempt, piece.index, piece.offset, piece.content, self._after_seq, now())
            try:
                self._texts.bus.chunk(ref.stream_id, chunk)
            except Exception:  # noqa: BLE001 -- the answer is worth more than that somebody sees it at once
                activity.logger.exception("the text of step %s is told no further", self.begin.number)
                self.stop()
                break


class LiveTexts:
    """All that this process tells; of each execution the latest attempt only."""

    def __init__(self, bus: EnvelopeBus) -> None:
        self.bus = bus
        self._latest: dict[UUID, LiveText] = {}

    @contextmanager
    def told(self, begin: BeginStep, *, is_wanted: bool) -> Generator[LiveText]:
        """The text of an attempt, told while the body runs."""
        text = LiveText(self, begin, is_wanted=is_wanted)
        execution_id = begin.ref.execution_id
        self._latest[execution_id] = text
        try:
            yield text
        finally:
            text.stop()
            if self.is_latest(begin, text):
                del self._latest[execution_id]

    def is_latest(self, begin: BeginStep, text: LiveText) -> bool:
        """Whether no later attempt of this process has taken over."""
        return self._latest.get(begin.ref.execution_id) is text
