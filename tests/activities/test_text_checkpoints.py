"""An attempt's writes beside its work, and those that it does not give up."""

import asyncio
from collections.abc import Awaitable, Callable, Generator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from typing import Any
from uuid import uuid4

import pytest
from temporalio.testing import ActivityEnvironment

from everstep.activities import heartbeat as pulse_module, store_retry, text_checkpoints
from everstep.activities.deferred_start import DeferredStart
from everstep.activities.heartbeat import heartbeat
from everstep.activities.live_text import LiveText, LiveTexts
from everstep.activities.store_retry import write_with_retry
from everstep.activities.text_checkpoints import TextCheckpoints
from everstep.agent_domain.background import FAILURES
from everstep.agent_domain.errors import NotFound, StoreUnavailable
from everstep.agent_domain.ids import ExecutionRef
from everstep.agent_domain.storage.steps import BeginStep, BegunStep, PartialText, PartialTextOutcome
from everstep.agent_domain.stream.bus import NULL_BUS
from everstep.agent_domain.stream.chunker import MAX_CHUNK_CHARACTERS
from everstep.streams.memory_bus import MemoryBus

BEGIN = BeginStep(ExecutionRef(uuid4()), 3, 2, None)


MATERIAL: Any = None


async def some_turns() -> None:
    """Some turns of the loop: enough for everything that is ready."""
    for _ in range(20):
        await asyncio.sleep(0)


class Notes:
    """A store that keeps partial texts, or is away at first."""

    def __init__(self, away: int = 0) -> None:
        self.away = away
        self.kept: list[list[PartialText]] = []
        self.noted = asyncio.Event()
        self.outcomes: dict[ExecutionRef, list[PartialTextOutcome]] = {}
        """The first outcomes of texts; others are stored."""

    async def note_partials(self, texts: Sequence[PartialText]) -> list[PartialTextOutcome]:
        self.away -= 1
        if self.away >= 0:
            raise StoreUnavailable("not now")
        self.kept.append([*texts])
        self.noted.set()
        outcomes = [self.outcomes.get(each.ref, []) for each in texts]
        return [each.pop(0) if each else PartialTextOutcome.STORED for each in outcomes]


@pytest.fixture
def no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(text_checkpoints, "NOTE_SECONDS", 0)
    monkeypatch.setattr(text_checkpoints, "PAUSE_SECONDS", 0)


def a_begin() -> BeginStep:
    return BeginStep(ExecutionRef(uuid4()), 1, 1, None)


@contextmanager
def a_text(checkpoints: TextCheckpoints, begin: BeginStep) -> Generator[LiveText]:
    """A text that is watched, of a step whose start is stored."""
    with LiveTexts(NULL_BUS).open_text(begin, is_public=False) as live:
        live.on_start(BegunStep(MATERIAL, after_seq=1))
        with checkpoints.checkpoints(live):
            yield live


@pytest.mark.usefixtures("no_pauses")
class TestPartialText:
    @pytest.mark.parametrize("away", [0, 2])
    async def test_the_text_so_far_is_kept_for_viewers_who_join_late(self, away: int) -> None:
        """7.8.4: under the number of the attempt; a store that is away for a while costs nothing else."""
        store: Any = Notes(away)
        with LiveTexts(NULL_BUS).open_text(BEGIN, is_public=True) as live:
            live.on_start(BegunStep(MATERIAL, after_seq=1))
            with TextCheckpoints(store).checkpoints(live):
                live.add_text("x" * MAX_CHUNK_CHARACTERS)
                live.add_text("y" * MAX_CHUNK_CHARACTERS)
                await asyncio.wait_for(store.noted.wait(), 10)

        text = "x" * MAX_CHUNK_CHARACTERS + "y" * MAX_CHUNK_CHARACTERS
        assert store.kept == [[PartialText(BEGIN.ref, 3, 2, text, next_index=2, after_seq=1)]]

    async def test_an_outage_of_the_store_is_one_line(self, caplog: pytest.LogCaptureFixture) -> None:
        """18.1.2: there are several statements in a second."""
        store: Any = Notes(away=3)
        with a_text(TextCheckpoints(store), a_begin()) as live:
            live.add_text("Once")
            await asyncio.wait_for(store.noted.wait(), 10)
            await some_turns()
            store.away = 2
            live.add_text(" more")
            await some_turns()

        assert [len(texts) for texts in store.kept] == [1, 1]
        assert [record.getMessage().partition(",")[0] for record in caplog.records] == [
            "partial texts cannot be recorded"
        ] * 2

    async def test_unchanged_text_is_not_stored(self) -> None:
        """7.8.4: neither an empty text nor a stored one."""
        store: Any = Notes()
        live = LiveText(LiveTexts(NULL_BUS), BEGIN, is_public=False)
        with TextCheckpoints(store).checkpoints(live):
            await some_turns()
            assert store.kept == []
            live.add_text("Hm")
            await some_turns()
            # There is no step yet to keep it with.
            assert store.kept == []
            live.on_start(BegunStep(MATERIAL, after_seq=1))
            await some_turns()

        assert store.kept == [[PartialText(BEGIN.ref, 3, 2, "Hm", None, 1)]]

    async def test_a_superseded_attempt_publishes_nothing_more(self) -> None:
        """7.6.3: another worker has taken over, as the store reports to this one."""
        store: Any = Notes()
        store.outcomes[BEGIN.ref] = [PartialTextOutcome.REPLACED]
        bus = MemoryBus()
        with (
            bus.open_listener(BEGIN.ref.stream_id) as listener,
            LiveTexts(bus).open_text(BEGIN, is_public=True) as live,
        ):
            live.on_start(BegunStep(MATERIAL, after_seq=1))
            with TextCheckpoints(store).checkpoints(live):
                live.add_text("Well, ")
                assert len(listener.take_frames()) == 1
                await asyncio.wait_for(store.noted.wait(), 10)
                await some_turns()
                live.add_text("no" * MAX_CHUNK_CHARACTERS)
                live.finish()
                assert listener.take_frames() == ()

    async def test_what_is_stored_is_not_sent_again(self) -> None:
        """18.1.2: nor kept in memory."""
        store: Any = Notes()
        with a_text(TextCheckpoints(store), BEGIN) as live:
            for word in ("Once", " upon", " a time"):
                live.add_text(word)
                store.noted.clear()
                await asyncio.wait_for(store.noted.wait(), 10)
                await some_turns()
                assert live.unrecorded == ""

        assert [(texts[0].offset, texts[0].text) for texts in store.kept] == [
            (0, "Once"),
            (4, " upon"),
            (9, " a time"),
        ]

    async def test_the_texts_of_all_executions_are_stored_together(self) -> None:
        """18.1.2."""
        store: Any = Notes()
        checkpoints, begins = TextCheckpoints(store), [a_begin() for _ in range(3)]
        with ExitStack() as stack:
            for begin in begins:
                stack.enter_context(a_text(checkpoints, begin)).add_text("Once")
            await asyncio.wait_for(store.noted.wait(), 10)
            await some_turns()

        assert store.kept == [[PartialText(begin.ref, 1, 1, "Once", None, 1) for begin in begins]]

    async def test_one_statement_has_a_limited_number_of_texts(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """18.1.2: and of characters; the others follow in the next ones."""
        monkeypatch.setattr(text_checkpoints, "MAX_TEXTS", 2)
        store: Any = Notes()
        checkpoints = TextCheckpoints(store)
        with ExitStack() as stack:
            for _ in range(5):
                stack.enter_context(a_text(checkpoints, a_begin())).add_text("Once")
            await some_turns()

        assert [len(texts) for texts in store.kept] == [2, 2, 1]

    async def test_a_text_whose_step_is_held_is_stored_later(self) -> None:
        """18.1.2."""
        store: Any = Notes()
        held, free = a_begin(), a_begin()
        store.outcomes[held.ref] = [PartialTextOutcome.BUSY]
        checkpoints = TextCheckpoints(store)
        with a_text(checkpoints, held) as first, a_text(checkpoints, free) as second:
            first.add_text("Once")
            second.add_text("There")
            await some_turns()

        assert [[each.ref for each in texts] for texts in store.kept] == [[held.ref, free.ref], [held.ref]]

    async def test_a_text_that_cannot_be_stored_costs_the_others_nothing(self) -> None:
        """18.1.2: such as one of a model of its agent's, with a NUL."""
        store: Any = Notes()
        checkpoints, good = TextCheckpoints(store), a_begin()
        with a_text(checkpoints, a_begin()) as broken, a_text(checkpoints, good) as live:
            broken.add_text("\x00")
            live.add_text("Once")
            await asyncio.wait_for(store.noted.wait(), 10)

        assert store.kept == [[PartialText(good.ref, 1, 1, "Once", None, 1)]]

    async def test_an_unexpected_failure_does_not_end_the_notes(self) -> None:
        """Follows rule 1.3.3: it is counted."""
        store: Any = Notes()
        fails = [ZeroDivisionError("broken")]
        note = store.note_partials

        async def note_or_fail(texts: Sequence[PartialText]) -> list[PartialTextOutcome]:
            for error in fails:
                fails.clear()
                raise error
            return await note(texts)

        store.note_partials = note_or_fail
        before = FAILURES.counts.get(text_checkpoints.NAME, 0)
        with a_text(TextCheckpoints(store), a_begin()) as live:
            live.add_text("Once")
            await asyncio.wait_for(store.noted.wait(), 10)

        assert FAILURES.counts[text_checkpoints.NAME] == before + 1

    async def test_a_cancelled_execution_sends_a_heartbeat_at_once(self) -> None:
        """8.2.1: the cancel comes back with it, and the usual one may be seconds away in a busy worker."""
        store: Any = Notes()
        store.outcomes[BEGIN.ref] = [PartialTextOutcome.CANCELLED]
        environment, has_beaten = ActivityEnvironment(), asyncio.Event()
        environment.on_heartbeat = lambda *_details: has_beaten.set()

        async def stream() -> None:
            with a_text(TextCheckpoints(store), BEGIN) as live:
                live.add_text("Once")
                await has_beaten.wait()

        await asyncio.wait_for(environment.run(stream), 10)

    async def test_a_text_that_is_complete_leaves_nothing_behind(self) -> None:
        """18.1.2: most are complete before they are due."""
        store: Any = Notes()
        checkpoints = TextCheckpoints(store)
        with a_text(checkpoints, a_begin()) as live:
            live.add_text("Once")
        await some_turns()

        assert store.kept == []


class TestPersistence:
    async def test_a_paid_reply_is_stored_once_the_store_is_back(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """1.1.3: in the same attempt, with waits that grow up to a limit."""
        waits: list[float] = []

        async def at_once(seconds: float) -> None:
            waits.append(seconds)

        monkeypatch.setattr(store_retry.asyncio, "sleep", at_once)
        answers = iter([StoreUnavailable("away")] * 7)

        async def write() -> str:
            for away in answers:
                raise away
            return "written"

        assert await ActivityEnvironment().run(write_with_retry, write) == "written"
        assert waits == pytest.approx([0.1, 0.2, 0.4, 0.8, 1.6, 2.0, 2.0])

    async def test_other_errors_are_not_retried(self) -> None:
        """1.1.3: only an unavailable store recovers by itself."""

        async def write() -> None:
            raise NotFound("execution", "any more")

        with pytest.raises(NotFound):
            await ActivityEnvironment().run(write_with_retry, write)


class Beginnings:
    """Records that something began; it can be made to wait, or to fail."""

    def __init__(self) -> None:
        self.began = asyncio.Event()
        self.may_end = asyncio.Event()
        self.is_written = False
        self.was_given_up = False
        self.error: Exception | None = None

    async def write(self) -> None:
        self.began.set()
        try:
            await self.may_end.wait()
        except asyncio.CancelledError:
            self.was_given_up = True
            raise
        if self.error:
            raise self.error
        self.is_written = True


async def in_an_activity(work: Callable[[], Awaitable[None]]) -> None:
    await asyncio.wait_for(ActivityEnvironment().run(work), 10)


class TestBeginnings:
    async def test_a_short_step_stores_its_beginning_with_its_end(self) -> None:
        """1.1.3: it is stored once, whole."""
        noted = Beginnings()

        async def work() -> None:
            async with DeferredStart(noted.write, 60) as start:
                await asyncio.sleep(0)
            assert not start.is_due

        await in_an_activity(work)
        assert not noted.began.is_set()

    async def test_a_longer_step_stores_its_beginning_first(self) -> None:
        """1.1.3: and its end after its beginning."""
        noted = Beginnings()

        async def work() -> None:
            async with DeferredStart(noted.write, 0) as start:
                await noted.began.wait()
                asyncio.get_running_loop().call_soon(noted.may_end.set)
                assert not noted.is_written
            assert noted.is_written
            assert start.is_due

        await in_an_activity(work)

    async def test_a_stored_beginning_is_not_stored_again(self) -> None:
        """1.1.3: such as a reservation, which comes first."""
        noted = Beginnings()

        async def work() -> None:
            async with DeferredStart(noted.write, 0, is_written=True) as start:
                for _ in range(10):
                    await asyncio.sleep(0)
            assert start.is_due

        await in_an_activity(work)
        assert not noted.began.is_set()

    async def test_a_cancelled_beginning_is_never_stored(self) -> None:
        """1.1.5: neither now nor later."""
        noted = Beginnings()

        async def work() -> None:
            async with DeferredStart(noted.write, 0):
                await noted.began.wait()
                raise ZeroDivisionError

        with pytest.raises(ZeroDivisionError):
            await in_an_activity(work)
        assert noted.was_given_up

    async def test_the_end_of_the_execution_is_noticed(self) -> None:
        """8.2.1: the end of such a step is of no use."""
        noted = Beginnings()
        noted.error = NotFound("execution", "any more")

        async def work() -> None:
            async with DeferredStart(noted.write, 0):
                await noted.began.wait()
                noted.may_end.set()

        with pytest.raises(NotFound):
            await in_an_activity(work)


class TestPulse:
    async def test_it_sends_heartbeats_while_the_body_runs(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """8.2.1: a cancel comes back with a heartbeat."""
        monkeypatch.setattr(pulse_module, "HEARTBEAT_SECONDS", 0)
        beats: list[object] = []
        often = asyncio.Event()

        def beat(*_details: object) -> None:
            beats.append(None)
            if len(beats) == 3:
                often.set()

        async def work() -> int:
            with heartbeat():
                await often.wait()
            count = len(beats)
            for _ in range(10):
                await asyncio.sleep(0)
            return count

        environment = ActivityEnvironment()
        environment.on_heartbeat = beat

        assert await environment.run(work) == len(beats)

    async def test_a_local_activity_sends_no_heartbeat(self) -> None:
        """1.1.3: it lives as long as its workflow's task."""
        beats: list[object] = []

        async def work() -> None:
            with heartbeat():
                await asyncio.sleep(0)

        environment = ActivityEnvironment()
        environment.info = replace(environment.info, is_local=True)
        environment.on_heartbeat = lambda *_details: beats.append(None)
        await environment.run(work)

        assert beats == []
