"""Following an execution: the output matches the table, with every order of gateway frames."""

import asyncio
from collections.abc import AsyncGenerator, Callable
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from random import Random
from typing import cast
from uuid import UUID, uuid4

import pytest
from hypothesis import given, strategies as st

from everstep.agent_domain.ids import ExecutionRef
from everstep.agent_domain.loop.status import ExecutionStatus
from everstep.agent_domain.loop.step_facts import CallNeed, StepFacts
from everstep.agent_domain.messages.messages import assistant
from everstep.agent_domain.storage.calls import CallRecord, CallRow
from everstep.agent_domain.storage.executions import ExecutionRow
from everstep.agent_domain.storage.requests import RequestRow, RequestState
from everstep.agent_domain.storage.steps import StepRow
from everstep.agent_domain.tools.tools import ToolCall
from everstep.agent_domain.values import EMPTY
from everstep.cli import follow, watch as watch_module
from everstep.cli.follow import streamed
from everstep.cli.watch import Watch, watching
from everstep.client.client import Execution
from everstep.streams.client import Stream
from everstep.streams.client_events import Wrote
from tests.everstep.streams.scripted import QUICK, TOKEN, Fault, Gateway, tale

AT = datetime(2026, 1, 16, 10, 5, tzinfo=UTC)


@dataclass
class Book:
    """The stored state of an execution."""

    id: UUID = field(default_factory=uuid4)
    steps: list[StepRow] = field(default_factory=list[StepRow])
    status: ExecutionStatus = ExecutionStatus.RUNNING
    requests: list[RequestRow] = field(default_factory=list[RequestRow])
    calls: dict[int, ToolCall] = field(default_factory=dict[int, ToolCall])
    looks: int = 0
    looked: asyncio.Event = field(default_factory=asyncio.Event)
    meanwhile: Callable[[], None] = lambda: None
    """Changes between two reads."""

    async def get(self) -> ExecutionRow:
        self.looks += 1
        self.meanwhile()
        self.looked.set()
        over = sum(step.facts is not None for step in self.steps)
        ref = ExecutionRef(self.id)
        return ExecutionRow(ref, "clerk", self.status, over, EMPTY, None, None, None, EMPTY, AT, AT, None)

    async def each_step(self, after: int = 0) -> AsyncGenerator[StepRow]:
        self.meanwhile()
        for step in self.steps:
            if step.number > after:
                yield step

    async def all_requests(self) -> list[RequestRow]:
        self.meanwhile()
        return self.requests

    def asks(self, number: int, *, child: bool = False) -> RequestRow:
        """A call of a step, or of a subagent for which it waits, needs an approval and then runs."""
        call = ToolCall(f"call {number}", "delegate" if child else "transfer")
        ref = ExecutionRef(uuid4() if child else self.id)
        about = ("other call", 1) if child else (call.id, number)
        request = RequestRow(
            uuid4(),
            ref,
            about[0],
            CallNeed.APPROVAL,
            RequestState.OPEN,
            "transfer",
            EMPTY,
            "",
            EMPTY,
            None,
            AT,
            about[1],
        )
        self.requests = [*self.requests, request]
        self.calls[number] = call
        return request

    def answers(self, number: int) -> None:
        """The call has its result."""
        later = AT + timedelta(seconds=1)
        self.requests = [replace(request, state=RequestState.RESOLVED) for request in self.requests]
        record = CallRecord(self.calls[number].id, "done", None, "done", later, later, 0.0)
        row = self.steps[number - 1]
        calls = (CallRow(self.calls[number], "done", 1, record),)
        self.steps = [*self.steps[: number - 1], replace(row, calls=calls)]

    def notes(self, number: int, text: str, attempt: int = 1) -> None:
        """The text so far."""
        self.steps = [*self.steps[: number - 1], StepRow(number, attempt, None, (), None, text, AT, None)]

    def completes(self, number: int, text: str, attempt: int = 1) -> None:
        """A step is complete."""
        facts = StepFacts(number=number)
        row = StepRow(number, attempt, facts, (), None, "", AT, AT, (assistant(text),))
        self.steps = [*self.steps[: number - 1], row]

    def ends(self) -> None:
        self.status = ExecutionStatus.COMPLETED


def following(book: Book, watch: Watch | None = None) -> AsyncGenerator[str]:
    return streamed(cast("Execution", book), watch)


async def shown(book: Book, watch: Watch | None = None) -> str:
    return "".join([text async for text in following(book, watch)])


@pytest.fixture
def no_polling(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without polling: output before the end comes from the gateway."""
    monkeypatch.setattr(follow, "LOOK_SECONDS", 60.0)
    monkeypatch.setattr(watch_module, "CALM_SECONDS", 60.0)


class Terminal:
    """Prints the execution that it follows, and waits for text in the output."""

    def __init__(self, book: Book, url: str | None, token: str = TOKEN) -> None:
        self.text = ""
        self._more = asyncio.Condition()
        self.task = asyncio.create_task(self._follow(book, url, token))

    async def _follow(self, book: Book, url: str | None, token: str) -> None:
        async with watching(url, f"agent.execution.{book.id}", token) as watch:
            async for text in following(book, watch):
                self.text += text
                async with self._more:
                    self._more.notify_all()

    async def shows(self, text: str) -> None:
        async with asyncio.timeout(20), self._more:
            await self._more.wait_for(lambda: self.text == text)

    async def ends(self) -> str:
        async with asyncio.timeout(20):
            await self.task
        return self.text


@pytest.fixture
def short_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    """Short waits for a gateway that returns."""

    def made(url: str, channel: str, token: str | None) -> Stream:
        return Stream(url, channel, token, pace=QUICK)

    monkeypatch.setattr(watch_module, "Stream", made)


@pytest.mark.usefixtures("short_waits", "no_polling")
async def test_text_is_shown_as_it_is_written() -> None:
    told = tale(["Let me", " see"], ["It is\n", "done"])
    book = Book(told.execution_id)
    async with Gateway(told, until=0).open() as gateway:
        terminal = Terminal(book, gateway.url)
        await until(lambda: len(gateway.heard) == 2)
        gateway.tell(3)
        await terminal.shows("step 1\n  model   Let me")
        gateway.tell(4)
        await terminal.shows("step 1\n  model   Let me see")
        book.completes(1, "Let me see")
        gateway.tell(8)
        await terminal.shows("step 1\n  model   Let me see\nstep 2\n  model   It is\n          ")
        book.notes(2, "It is")
        gateway.tell(9)
        await terminal.shows("step 1\n  model   Let me see\nstep 2\n  model   It is\n          done")
        book.completes(2, "It is\ndone")
        book.ends()
        gateway.tell()
        said = await terminal.ends()

    assert said == await shown(book)
    assert said == "step 1\n  model   Let me see\nstep 2\n  model   It is\n          done\n"


async def until(holds: Callable[[], bool]) -> None:
    async with asyncio.timeout(20):
        while not holds():  # noqa: ASYNC110 -- there is no event for printed output
            await asyncio.sleep(0.005)


@pytest.mark.usefixtures("short_waits")
@pytest.mark.parametrize("fault", [Fault.CUT, Fault.CRASH, Fault.GARBAGE, Fault.FORGET, Fault.DROP])
async def test_a_reconnected_gateway_shows_nothing_twice(fault: Fault) -> None:
    told = tale(["Let me", " see"], ["Done"])
    book = Book(told.execution_id)
    async with Gateway(
        told, iter([Fault.NONE, Fault.NONE, Fault.NONE, fault] * 3), until=0
    ).open() as gateway:
        terminal = Terminal(book, gateway.url)
        await until(lambda: len(gateway.heard) == 2)
        gateway.tell(4)
        await until(lambda: "Let me" in terminal.text)
        book.completes(1, "Let me see")
        gateway.tell(8)
        book.completes(2, "Done")
        book.ends()
        gateway.tell()
        said = await terminal.ends()

    assert said == await shown(book) == "step 1\n  model   Let me see\nstep 2\n  model   Done\n"


@pytest.mark.usefixtures("short_waits")
async def test_follow_continues_without_a_lost_gateway() -> None:
    told = tale(["Let me", " see"])
    book = Book(told.execution_id)
    async with Gateway(told, until=0).open() as gateway:
        terminal = Terminal(book, gateway.url)
        await until(lambda: len(gateway.heard) == 2)
        gateway.tell(3)
        await terminal.shows("step 1\n  model   Let me")
    book.notes(1, "Let me see")
    await terminal.shows("step 1\n  model   Let me see")
    book.completes(1, "Let me see")
    book.ends()

    assert await terminal.ends() == "step 1\n  model   Let me see\n"


@pytest.mark.usefixtures("short_waits")
@pytest.mark.parametrize("url", [None, "ws://127.0.0.1:9", "nonsense"])
async def test_without_a_gateway_the_table_is_polled(url: str | None) -> None:
    book = Book()
    terminal = Terminal(book, url)
    await book.looked.wait()
    book.notes(1, "Let me")
    await terminal.shows("step 1\n  model   Let me")
    book.completes(1, "Let me see")
    book.ends()

    assert await terminal.ends() == "step 1\n  model   Let me see\n"


@pytest.mark.parametrize("child", [False, True], ids=["its own", "a subagent's"])
@pytest.mark.parametrize("seen", [False, True], ids=["between two looks", "while somebody looks"])
async def test_a_request_that_is_answered_at_once_is_shown(child: bool, seen: bool) -> None:
    """8.6.6: before the result of its call, whenever it was answered."""
    book = Book()
    request = ""

    class Quick(Watch):
        """Everything happens between the first read and the second, or over two of them."""

        looks = 0

        async def rest(self, seconds: float) -> bool:
            nonlocal request
            self.looks += 1
            if self.looks == 1:
                book.completes(1, "Let me see.")
                request = str(book.asks(1, child=child).ref.execution_id)
                if seen:
                    return True
            book.answers(1)
            book.completes(2, "Done")
            book.ends()
            return True

    said = await shown(book, Quick())

    name = "delegate" if child else "transfer"
    assert said == (
        "step 1\n  model   Let me see.\n"
        f"approval   transfer {{}}\n           everstep approve {request} [--deny]\ndigest     \n"
        f"  tool    {name}() -> done\nstep 2\n  model   Done\n"
    )
    assert said == await shown(book)


@pytest.mark.usefixtures("short_waits")
async def test_a_refused_viewer_polls_the_table() -> None:
    told = tale(["Let me"])
    book = Book(told.execution_id)
    async with Gateway(told).open() as gateway:
        terminal = Terminal(book, gateway.url, "wrong")
        await until(lambda: bool(gateway.heard))
        book.completes(1, "Let me")
        book.ends()

        assert await terminal.ends() == "step 1\n  model   Let me\n"
    assert gateway.connections == 1


@pytest.mark.usefixtures("short_waits")
async def test_while_the_gateway_is_connected_the_table_is_not_polled() -> None:
    told = tale(["Let me"])
    book = Book(told.execution_id)
    async with Gateway(told, until=2).open() as gateway:
        terminal = Terminal(book, gateway.url)
        await until(lambda: gateway.at == 2)
        await until(lambda: book.looks > 2)
        before = book.looks
        done, _ = await asyncio.wait([terminal.task], timeout=4 * follow.LOOK_SECONDS)
        assert not done
        assert book.looks - before <= 2
        book.completes(1, "Let me")
        book.ends()
        gateway.tell()
        await terminal.ends()


async def test_another_attempt_starts_its_text_again() -> None:
    book, lines = Book(), list[str]()
    wrote = Wrote(book.id, 1, 1, "I thi", "I thi")
    attempts = [wrote, replace(wrote, attempt=2, text="Perhaps"), replace(wrote, text="I think")]

    class Told(Watch):
        def wrote(self, execution_id: UUID) -> Wrote | None:
            return attempts[min(len(lines), 2)]

        async def rest(self, seconds: float) -> bool:
            lines.append("")
            if len(lines) == 4:
                book.completes(1, "Perhaps so", attempt=2)
                book.ends()
            return len(lines) == 4

    said = await shown(book, Told())

    assert said == "step 1\n  model   I thi\nstep 1  (attempt 2)\n  model   Perhaps so\n"


# In any order of arrival.


class World(Watch):
    """Events happen, the table has them at once or a little later, and the gateway sends them at any time."""

    def __init__(self, texts: list[list[str]], random: Random) -> None:
        super().__init__()
        self.book = Book(meanwhile=self.goes_on)
        self._random = random
        self._happens = [
            (n, "".join(words[:m]), words) for n, words in enumerate(texts, 1) for m in range(len(words) + 2)
        ]
        self._at = 0
        self._said = 0
        self._seen: Wrote | None = None

    def goes_on(self) -> None:
        for _ in range(self._random.choice((0, 1, 1, 2, 5))):
            if self._at == len(self._happens):
                self.book.ends()
                return
            number, text, words = self._happens[self._at]
            self._at += 1
            if self._at == len(self._happens) or self._happens[self._at][0] != number:
                self.book.completes(number, "".join(words))
            elif self._random.random() < 0.3:
                self.book.notes(number, text)

    def wrote(self, execution_id: UUID) -> Wrote | None:
        self._said = self._random.randint(self._said, self._at)
        for number, text, words in self._happens[: self._said]:
            if text:
                self._seen = Wrote(execution_id, number, 1, text, "", text == "".join(words))
        return self._seen

    async def rest(self, seconds: float) -> bool:
        self.goes_on()
        return self._random.random() < 0.5


@given(
    texts=st.lists(st.lists(st.sampled_from(["a", "b c", "\n", " "]), max_size=5), max_size=4),
    seed=st.integers(0, 2**32),
)
def test_the_output_is_the_same_with_and_without_a_gateway(texts: list[list[str]], seed: int) -> None:
    spoken = [words for words in texts if "".join(words).strip()]

    async def both() -> tuple[str, str]:
        world = World(spoken, Random(seed))  # noqa: S311 -- no secret
        return await shown(world.book, world), await shown(world.book)

    with_gateway, without = asyncio.run(both())
    assert [line.rstrip() for line in with_gateway.splitlines()] == [
        line.rstrip() for line in without.splitlines()
    ]
