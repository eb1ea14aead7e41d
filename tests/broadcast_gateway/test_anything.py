"""With any loss, duplicate, delay, cut or slowness, every viewer ends with the stored state.

`Faithful` loses nothing on the way to the gateway, so every viewer reads every text to its end. In
`Broadcast` every fault happens, and a lost text arrives with the stored message.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from uuid import UUID

from hypothesis import settings, strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from everstep.agent_domain.stream import envelopes
from everstep.agent_domain.stream.envelopes import Attempt, Envelope, EnvelopeType
from everstep.agent_domain.stream.reader import Place, Position, Reader, ReadOutcome
from everstep.agent_domain.stream.records import EventRecord
from everstep.broadcast_gateway.frames import RelayedChunk, RelayedEntry, parse_envelope
from everstep.broadcast_gateway.limits import StreamLimits
from everstep.broadcast_gateway.streams import CachedStream
from everstep.broadcast_gateway.subscriptions import HubRequest, Relay, RowsNeeded
from everstep.broadcast_gateway.wires.websocket import NATIVE
from tests.broadcast_gateway.writers import (
    AT,
    SESSION,
    Screen,
    attempt_end,
    body,
    envelope,
    execution_end,
    step_end,
)

CHANNEL = f"agent.session.{SESSION}"
ROOMY = StreamLimits(chunks=3, room=700)
SMALL = StreamLimits(ring=5, ring_bytes=6_000, early=4, chunks=3, early_chunks=4, room=700)

AttemptTexts = dict[tuple[UUID, int, int], list[str]]
"""Text, by execution, step and attempt."""
StepMessages = dict[tuple[UUID, int], tuple[int, str]]
"""The final message of a step and its attempt."""


@dataclass
class Execution:
    """Writes one step after the other."""

    id: UUID
    step: int = 1
    attempt: int = 1
    is_closed: bool = False


@dataclass(eq=False)
class Watcher:
    """A client: its connection, its reader, and everything that it has seen."""

    screen: Screen
    reader: Reader = field(default_factory=Reader)
    base: int = 0
    seen: list[Envelope] = field(default_factory=list[Envelope])
    texts: dict[tuple[UUID, int, int], str] = field(default_factory=dict[tuple[UUID, int, int], str])
    late_for: set[tuple[UUID, int, int]] = field(default_factory=set[tuple[UUID, int, int]])
    """Attempts that began before it joined."""

    def look(self, expected: AttemptTexts, said: StepMessages, *, is_faithful: bool) -> None:
        """Read the new frames: nothing is missing, and no stored envelope is repeated.

        Text may be repeated: a gateway that does not have it yet cannot know which text another one has
        delivered.
        """
        for each in self.screen.seen():
            taken = self.reader.take(each)
            assert taken is ReadOutcome.APPLIED or (taken is ReadOutcome.DROPPED and each.is_ephemeral), each
            if each.seq is not None:
                self.seen.append(each)
            if draft := self.reader.drafts.get(each.execution_id):
                self.texts[each.execution_id, *draft.place.attempted] = draft.content
                if not draft.is_settled:
                    written = expected.get((each.execution_id, *draft.place.attempted), [])
                    assert "".join(written).startswith(draft.content)
            if each.type == EnvelopeType.AGENT_STEP_COMPLETED:
                self._compare(each, said, is_faithful=is_faithful)

    def _compare(self, each: Envelope, said: StepMessages, *, is_faithful: bool) -> None:
        step = each.payload["step_number"]
        attempt, text = said[each.execution_id, step]
        key = each.execution_id, step, attempt
        if is_faithful and (key in self.texts or key not in self.late_for):
            assert self.texts.get(key, "") == text
        draft = self.reader.drafts.get(each.execution_id)
        if draft and draft.place.attempted == (step, attempt):
            assert draft.content == text or not draft.is_complete
            self.reader.settle(each.execution_id, step, text)
            assert draft.content == text


class Faithful(RuleBasedStateMachine):
    """One session with two executions at a time, and viewers of every kind."""

    limits = ROOMY
    is_faithful = True

    def __init__(self) -> None:
        super().__init__()
        self.table: list[Envelope] = []
        self.pruned = 0
        self.history = 1
        self.link: list[bytes] = []
        self.told: AttemptTexts = {}
        self.said: StepMessages = {}
        self.running: list[Execution] = []
        self.count = 10
        self.watchers: list[Watcher] = []
        self.needs: list[HubRequest] = []

    @initialize()
    def begin(self) -> None:
        for _ in range(2):
            self._accept()
        self._start()
        if self.is_faithful:
            self._load(4)

    # Writers.

    @rule(which=st.integers(0, 1), words=st.lists(st.sampled_from(["a", "ß", "long " * 30]), max_size=4))
    def write(self, which: int, words: list[str]) -> None:
        run = self.running[which]
        for word in words:
            if not run.is_closed:
                self._stream(run, word)

    @rule(which=st.integers(0, 1))
    def close(self, which: int) -> None:
        run = self.running[which]
        if self._text(run) and not run.is_closed:
            self._stream(run, "")
            run.is_closed = True

    @rule(which=st.integers(0, 1))
    def give_up(self, which: int) -> None:
        run = self.running[which]
        if self._text(run):
            self._store(run, attempt_end(run.step, run.attempt))
        run.attempt += 1
        run.is_closed = False

    @rule(which=st.integers(0, 1), late=st.booleans())
    def complete(self, which: int, late: bool) -> None:
        """End the step; that may be stored a moment after the next step has begun to write."""
        run = self.running[which]
        self.said[run.id, run.step] = run.attempt, "".join(self._text(run))
        over, run.step, run.attempt, run.is_closed = run.step, run.step + 1, 1, False
        if late:
            self._stream(run, "quick ")
        self._store(run, step_end(over))

    @rule(which=st.integers(0, 1))
    def call_a_tool(self, which: int) -> None:
        run = self.running[which]
        self._store(
            run, envelopes.tool_started_record(f"call_{len(self.table)}", "add", {}, step_number=run.step)
        )

    @rule(which=st.integers(0, 1))
    def end(self, which: int) -> None:
        self._store(self.running.pop(which), execution_end())
        self._accept()

    # Link.

    @precondition(lambda self: self.link)
    @rule(many=st.integers(1, 12))
    def deliver_in_order(self, many: int) -> None:
        for each in self.link[:many]:
            self._push(each)
            self._push(each)
        del self.link[:many]

    # Gateway.

    @rule()
    def turn(self) -> None:
        self.needs += self.relay.send()

    @rule(limit=st.integers(1, 4))
    def serve(self, limit: int) -> None:
        needs, self.needs = self.needs, []
        for need in needs:
            if isinstance(need, RowsNeeded):
                rows = [*self._rows(need.after, limit)]
                if more := need.subscription.add_rows(rows, self.pruned + 1):
                    self.needs.append(more)
            else:
                for watcher in self.watchers:
                    if watcher.screen.viewer is need.viewer:
                        self._resume(watcher)

    # Viewers.

    @precondition(lambda self: len(self.watchers) < 6)
    @rule(room=st.sampled_from([1, 2, 1000]), from_the_start=st.booleans())
    def join(self, room: int, from_the_start: bool) -> None:
        watcher = Watcher(Screen(room))
        self.watchers.append(watcher)
        self._subscribe(watcher, Position() if from_the_start else None)

    @precondition(lambda self: self.watchers)
    @rule(data=st.data())
    def look(self, data: st.DataObject) -> None:
        self._look(data.draw(st.sampled_from(self.watchers)))

    @precondition(lambda self: self.watchers)
    @rule(data=st.data(), has_read=st.booleans())
    def cut(self, data: st.DataObject, has_read: bool) -> None:
        """Frames on their way are lost, or read just before."""
        watcher = data.draw(st.sampled_from(self.watchers))
        if has_read:
            watcher.look(self.told, self.said, is_faithful=self.is_faithful)
        self._resume(watcher)

    @invariant()
    def check_ring_size(self) -> None:
        if hasattr(self, "stream"):
            assert self.stream.head + 1 - self.stream.first <= self.limits.ring

    def teardown(self) -> None:
        """End all faults: after that nothing is missing."""
        for each in self.link:
            self._push(each)
        for _ in range(len(self.table) + 20):
            self._mend()
        for watcher in self.watchers:
            assert watcher.seen == self.table[watcher.base :]
            for run in self.running:
                if self._text(run):
                    draft = watcher.reader.drafts[run.id]
                    assert draft.place.attempted == (run.step, run.attempt)
                    assert draft.content == "".join(self._text(run))

    def _mend(self) -> None:
        self.stream.note_head(len(self.table))
        self.stream.add_entries((), self.epoch)
        self._check_history()
        if self.stream.hole is not None:
            self._load(100)
        for execution_id in {str(run.id) for run in self.running} | {of for of, _ in self.stream.lacking}:
            self._load_text(execution_id)
        self.turn()
        self.serve(3)
        for watcher in self.watchers:
            self._look(watcher)

    # Helpers.

    @property
    def epoch(self) -> str:
        return f"history {self.history}"

    def _text(self, run: Execution) -> list[str]:
        return self.told.setdefault((run.id, run.step, run.attempt), [])

    def _accept(self) -> None:
        self.count += 1
        self.running.append(Execution(UUID(int=self.count)))

    def _stream(self, run: Execution, content: str) -> None:
        text = self._text(run)
        index = len(text)
        text.append(content)
        attempt, after = Attempt(run.step, run.attempt), len(self.table)
        record = envelopes.stream_chunk_record(
            attempt, index, content, is_complete=not content, after_seq=after
        )
        self.link.append(body(envelope(record, run.id)))

    def _store(self, run: Execution, record: EventRecord) -> None:
        stored = envelope(record, run.id).numbered(len(self.table) + 1)
        self.table.append(stored)
        self.link.append(body(stored))

    def _rows(self, after: int, limit: int) -> Iterator[RelayedEntry]:
        for each in self.table[max(after, self.pruned) :][:limit]:
            row = parse_envelope(body(each))
            assert isinstance(row, RelayedEntry)
            yield row

    def _start(self) -> None:
        """Start another gateway, which every viewer joins."""
        self.stream = CachedStream(SESSION, self.limits)
        self.relay = Relay(self.stream)
        self.needs.clear()
        for watcher in self.watchers:
            self._resume(watcher)

    def _push(self, sent: bytes) -> None:
        frames = parse_envelope(sent)
        if isinstance(frames, RelayedChunk):
            self.stream.add_chunk(frames)
        else:
            self.stream.add_entries([frames], self.epoch)
        self._check_history()

    def _load(self, limit: int) -> None:
        after = max(self.pruned, len(self.table) - limit) if self.stream.epoch is None else self.stream.head
        rows = [*self._rows(after, limit)]
        self.stream.add_rows(after, rows, epoch=self.epoch, oldest=self.pruned + 1)
        self._check_history()

    def _check_history(self) -> None:
        if self.stream.is_void:
            self._start()

    def _load_text(self, execution_id: str) -> None:
        for run in self.running:
            if str(run.id) == execution_id:
                words = [word for word in self._text(run) if word]
                at = Place(run.step, run.attempt, len(words))
                text = "".join(words)
                self.stream.add_text(execution_id, at, text, after_seq=len(self.table), timestamp=AT)
                break
        else:
            self.stream.end_execution(execution_id)

    def _subscribe(self, watcher: Watcher, since: Position | None) -> None:
        viewer = watcher.screen.viewer
        joined = self.relay.subscribe(viewer, CHANNEL, NATIVE, since)
        while joined is None:
            relay = self.relay
            self._load(4)
            # The table may report another history: then every viewer has moved on by now.
            if relay is not self.relay and viewer.subscriptions:
                return
            joined = self.relay.subscribe(viewer, CHANNEL, NATIVE, since, is_fresh=True)
        watcher.reader.joined(joined.epoch, joined.seq, recovered=joined.recovered)
        if not joined.recovered:
            watcher.base = joined.seq
            watcher.seen.clear()
            watcher.late_for = set(self.told)
        if need := viewer.subscriptions[CHANNEL].catch_up():
            self.needs.append(need)

    def _look(self, watcher: Watcher) -> None:
        watcher.look(self.told, self.said, is_faithful=self.is_faithful)
        if watcher.screen.viewer.is_paused:
            self.needs += watcher.screen.viewer.resume()

    def _resume(self, watcher: Watcher) -> None:
        watcher.screen.viewer.end()
        watcher.screen = Screen(watcher.screen.room)
        self._subscribe(watcher, watcher.reader.position)


class Broadcast(Faithful):
    """The link loses, duplicates and reorders; gateways crash; the table is pruned and restored."""

    limits = SMALL
    is_faithful = False

    @rule(kept=st.integers(0, 3))
    def prune(self, kept: int) -> None:
        self.pruned = max(self.pruned, len(self.table) - kept)

    @precondition(lambda self: len(self.table) > self.pruned)
    @rule()
    def restore_a_backup(self) -> None:
        """The last envelope is lost, and the next one gets its number."""
        self.table.pop()
        self.history += 1
        self.link.clear()
        self.running.clear()
        for _ in range(2):
            self._accept()

    @precondition(lambda self: self.link)
    @rule(data=st.data(), is_doubled=st.booleans())
    def deliver(self, data: st.DataObject, is_doubled: bool) -> None:
        at = data.draw(st.integers(0, len(self.link) - 1))
        self._push(self.link[at] if is_doubled else self.link.pop(at))

    @precondition(lambda self: self.link)
    @rule(data=st.data())
    def lose(self, data: st.DataObject) -> None:
        del self.link[data.draw(st.integers(0, len(self.link) - 1))]

    @rule(limit=st.integers(1, 4))
    def read_the_table(self, limit: int) -> None:
        if self.stream.hole is not None:
            self._load(limit)

    @rule()
    def read_the_steps(self) -> None:
        for execution_id, _ in self.stream.lacking:
            self._load_text(execution_id)

    @rule()
    def crash(self) -> None:
        self._start()


TestFaithful = Faithful.TestCase
TestFaithful.settings = settings(stateful_step_count=40, report_multiple_bugs=False)
TestBroadcast = Broadcast.TestCase
TestBroadcast.settings = settings(stateful_step_count=60, report_multiple_bugs=False)
