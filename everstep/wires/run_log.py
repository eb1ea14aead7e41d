"""Reads the log of one execution for one reader, and says how far the reader is after each event.

Feed it the envelopes of the stream in order: `needs` says which bodies to load for an envelope, and `take`
returns its events, each with the cursor after it. A reader that resumes feeds the log from its begin: `take`
returns nothing until the reader's cursor is reached.
"""

from collections.abc import Collection, Generator, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, TypeAlias

from everstep.agent_domain.loop.status import TERMINAL_WIRE_STATUSES, WireStatus
from everstep.agent_domain.stream.envelopes import EnvelopeType
from everstep.wires.event_bodies import Bodies, Need
from everstep.wires.lanes import OpenText
from everstep.wires.run_cursors import RunCursor
from everstep.wires.run_events import TEXT_EVENTS, RunEvent
from everstep.wires.run_fold import TEXT_TYPES, RunFold


@dataclass(frozen=True, slots=True)
class FromAnswers:
    """Begin with the run that follows the answers to these requests."""

    request_ids: frozenset[str]


@dataclass(frozen=True, slots=True)
class FromSeq:
    """Begin after this envelope, in the middle of a run."""

    seq: int


Start: TypeAlias = FromAnswers | FromSeq | RunCursor | None
"""Where a reader begins; None for the begin of the execution."""


class LoggedEvent(NamedTuple):
    """An event, and how far a reader is before and after it."""

    event: RunEvent
    before: RunCursor
    after: RunCursor


class RunLog:
    """The log of one execution, for one reader."""

    def __init__(self, execution_id: str, start: Start = None, *, epoch: str = "") -> None:
        self._fold = RunFold(execution_id)
        self._start = start
        self._epoch = epoch
        self._done_seq = 0
        self._before = self._cursor()

    @property
    def seq(self) -> int:
        """The last stored envelope that was read."""
        return self._fold.seq

    def is_at_rest(self, head: int, answered: Collection[str] = ()) -> bool:
        """Whether the reader has everything, and no run is open.

        Args:
            head: The last envelope that is known to be stored.
            answered: Requests that were answered: the execution continues after a pause for them.
        """
        fold = self._fold
        if self._start is not None or fold.is_running:
            return False
        waits = bool(fold.open_requests) and not fold.open_requests <= {*answered}
        return fold.root.has_ended or (fold.has_begun and waits and fold.seq >= head)

    def needs(self, envelope: Mapping[str, Any], bodies: Bodies) -> Sequence[Need]:
        """What has to be loaded before `take`, beyond these bodies; call it until nothing is missing."""
        return self._fold.needs(envelope, bodies)

    def take(self, envelope: Mapping[str, Any], bodies: Bodies) -> Generator["LoggedEvent"]:
        """Read an envelope; yield its events, each with the cursors before and after it."""
        if envelope["type"] in TEXT_TYPES:
            for event in self._fold.text_events(envelope, is_silent=self._start is not None):
                yield self._log_event(event, self._cursor())
            return
        if isinstance(self._start, FromAnswers) and self._follows_answers(envelope, self._start):
            yield from self._join()
        self._restore_at(envelope["seq"] - 1)
        yield from self._number(self._fold.events(envelope, bodies))
        self._done_seq = envelope["seq"]
        self._fold.forget_closed_texts()
        self._before = self._cursor()
        self._restore_at(self._done_seq)
        if isinstance(self._start, FromSeq) and self._done_seq >= self._start.seq:
            yield from self._join()

    def _log_event(self, event: RunEvent, after: RunCursor) -> "LoggedEvent":
        before, self._before = self._before, after
        return LoggedEvent(event, before, after)

    def _follows_answers(self, envelope: Mapping[str, Any], start: FromAnswers) -> bool:
        payload = envelope["payload"]
        is_status = envelope["type"] == EnvelopeType.AGENT_STATUS and payload.get("detail") is None
        is_end = (
            is_status
            and envelope["execution_id"] == self._fold.root.execution_id
            and payload["status"] in TERMINAL_WIRE_STATUSES
        )
        # A raised budget has no envelope of its own: the execution goes on.
        is_raise = (
            is_status
            and payload["status"] != WireStatus.PAUSED
            and bool(self._fold.open_budgets & start.request_ids)
        )
        is_answer = envelope["type"] in {
            EnvelopeType.AGENT_APPROVAL_RESOLVED,
            EnvelopeType.AGENT_INPUT_RECEIVED,
        }
        return is_end or is_raise or (is_answer and payload["request_id"] in start.request_ids)

    def _join(self) -> Generator["LoggedEvent"]:
        """Begin here; an open run is announced as it is now, by events that the log does not have."""
        self._start = None
        for event in self._fold.open_again() if self._fold.is_running else ():
            yield self._log_event(event, self._cursor())

    def _number(self, events: Iterable[RunEvent]) -> Generator["LoggedEvent"]:
        done = 0
        held: LoggedEvent | None = None
        for event in events:
            is_counted = not isinstance(event, TEXT_EVENTS)
            if is_counted:
                done += 1
                self._fold.forget_closed_texts()
            is_silent = self._start is not None
            if is_silent and is_counted:
                self._restore_at(self._fold.seq - 1, done)
            taken = self._log_event(event, self._cursor(done))
            if not is_silent:
                if held:
                    yield held
                held = taken
        if held:
            # The last event of an envelope closes it.
            texts = {of: text for of, text in held.after.texts.items() if not text.is_closed}
            yield held._replace(after=replace(held.after, seq=self._fold.seq, done=0, texts=texts))

    def _cursor(self, done: int = 0) -> RunCursor:
        texts = {of: lane.text.extent for of, lane in self._fold.lanes.items() if lane.text}
        return RunCursor(self._fold.root.execution_id, self._done_seq, done, texts=texts, epoch=self._epoch)

    def _restore_at(self, seq: int, done: int = 0) -> None:
        """Go on from the reader's cursor, if this is its place: it lacks the events from here on."""
        cursor = self._start
        if isinstance(cursor, RunCursor) and seq >= cursor.seq and done == cursor.done:
            self._start, self._before = None, cursor.with_part(0)
            for of, lane in self._fold.lanes.items():
                sent = cursor.texts.get(of)
                lane.text = OpenText.restored(sent) if sent else None
