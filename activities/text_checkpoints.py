"""Records the partial texts of models, for viewers who join during a step.

A thousand steps that stream at once would be a thousand writes in each second. So the texts that are due are
recorded together, by one task for the whole process.
"""

import asyncio
import logging
from collections.abc import Callable
from contextlib import AbstractContextManager
from contextvars import Context, copy_context
from dataclasses import dataclass
from functools import partial

from temporalio import activity

from everstep.activities.live_text import LiveText
from everstep.agent_domain.background import note_failure
from everstep.agent_domain.errors import InvalidInput, StoreUnavailable
from everstep.agent_domain.storage.execution_store import ExecutionStore
from everstep.agent_domain.storage.steps import PartialTextOutcome
from everstep.agent_domain.values import valid_text

NOTE_SECONDS = 1.0
"""Seconds between two records of a text: one row per token would overload the store."""
PAUSE_SECONDS = 0.1
"""Seconds between two statements, in which more texts become due."""
MAX_TEXTS = 200
MAX_CHARACTERS = 1_000_000
"""The limits of one statement."""

NAME = "the notes of partial text"

logger = logging.getLogger(__name__)


@dataclass(slots=True, eq=False)
class _WatchedText:
    checkpoints: "TextCheckpoints"
    live: LiveText
    due_at: float
    beat: Callable[[], object]
    """Sends a heartbeat of its activity."""
    is_over: bool = False

    def __enter__(self) -> None:
        self.checkpoints.add(self)

    def __exit__(self, *_error: object) -> None:
        self.is_over = True
        self.checkpoints.remove(self)


class TextCheckpoints:
    """The texts that the models of this process are writing."""

    def __init__(self, store: ExecutionStore) -> None:
        self._store = store
        self._waiting: dict[_WatchedText, None] = {}
        """In the order in which they become due, as all wait equally long."""
        self._timer: asyncio.TimerHandle | None = None
        self._recording: asyncio.Task[None] | None = None
        self._is_away = False
        """Whether the store was unavailable the last time."""

    def checkpoints(self, live: LiveText) -> AbstractContextManager[None]:
        """Record a text periodically while the body runs.

        Apart from the heartbeats: a store that hangs must not make the worker look dead.
        """
        return _WatchedText(self, live, 0, _heartbeat_function())

    def remove(self, watched: _WatchedText) -> None:
        """Record a text no longer."""
        self._waiting.pop(watched, None)
        if self._timer and not self._waiting:
            self._timer.cancel()
            self._timer = None

    def add(self, watched: _WatchedText) -> None:
        """Record a text when it is due."""
        watched.due_at = asyncio.get_running_loop().time() + NOTE_SECONDS
        self._waiting[watched] = None
        self._schedule()

    def _schedule(self) -> None:
        """Set the timer: most texts are complete before it, and need no task."""
        if self._timer or self._recording or not self._waiting:
            return
        loop = asyncio.get_running_loop()
        due_at = next(iter(self._waiting)).due_at
        # The context of the activity that happens to come first is not that of the others.
        at = max(due_at, loop.time() + PAUSE_SECONDS)
        self._timer = loop.call_at(at, self._on_timer, context=Context())

    def _on_timer(self) -> None:
        self._timer = None
        self._recording = asyncio.create_task(self._record_due())

    async def _record_due(self) -> None:
        due = self._take_due()
        try:
            await self._record(due)
            self._is_away = False
        except StoreUnavailable as error:
            # There are several statements in a second, and an outage is one line.
            if not self._is_away:
                logger.warning("partial texts cannot be recorded, and are tried again: %s", error)
            self._is_away = True
        except Exception as error:  # noqa: BLE001 -- the next ones are recorded in a second
            note_failure(NAME, error, logger)
        finally:
            self._recording = None
            for watched in due:
                if not watched.is_over:
                    self.add(watched)
            self._schedule()

    def _take_due(self) -> list[_WatchedText]:
        """Take the texts that are due, as many as one statement may have."""
        now, characters, due = asyncio.get_running_loop().time(), 0, list[_WatchedText]()
        for watched in self._waiting:
            if watched.due_at > now or len(due) >= MAX_TEXTS or characters > MAX_CHARACTERS:
                break
            characters += len(watched.live.unrecorded) if watched.live.is_due else 0
            due.append(watched)
        for watched in due:
            del self._waiting[watched]
        return due

    async def _record(self, due: list[_WatchedText]) -> None:
        texts = {watched: watched.live.partial_text for watched in due if watched.live.is_due}
        for watched, text in [*texts.items()]:
            try:
                valid_text(text.text, "the text")
            except InvalidInput as error:
                # The store would refuse the others with it.
                note_failure(NAME, error, logger)
                del texts[watched]
        if not texts:
            return
        outcomes = await self._store.note_partials([*texts.values()])
        for (watched, text), outcome in zip(texts.items(), outcomes, strict=True):
            if outcome in {PartialTextOutcome.STORED, PartialTextOutcome.CANCELLED}:
                watched.live.on_recorded(text)
            if outcome is PartialTextOutcome.REPLACED:
                # Another worker has taken over, and the cancel has not reached this one yet.
                watched.live.stop()
            if outcome is PartialTextOutcome.CANCELLED and not watched.is_over:
                # The cancel comes back with a heartbeat, and the next one may be seconds away.
                watched.beat()


def _heartbeat_function() -> Callable[[], object]:
    """Return a function that sends a heartbeat of the running activity, if it is one that sends any."""
    if not activity.in_activity() or activity.info().is_local:
        return _ignore
    return partial(copy_context().run, activity.heartbeat)


def _ignore() -> None:
    pass
