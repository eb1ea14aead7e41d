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
from everstep.cli.follow import follow_text
from everstep.cli.watch import Watch, open_watch
from everstep.client.client import Execution
from everstep.streams.client_events import Wrote
from everstep.streams.gateway_client import Stream
from tests.everstep.streams.scripted import QUICK, TOKEN, Fault, ScriptedGateway, a_scripted_execution

AT = datetime(2026, 1, 16, 10, 5, tzinfo=UTC)


@dataclass
class FakeExecution:
    """The stored state of an execution."""

    id: UUID = field(default_factory=uuid4)
    steps: list[StepRow] = field(default_factory=list[StepRow])
    status: ExecutionStatus = ExecutionStatus.RUNNING
    requests: list[RequestRow] = field(default_factory=list[RequestRow])
    calls: dict[int, ToolCall] = field(default_factory=dict[int, ToolCall])
    changes: int = 0
    reads: asyncio.Event = field(default_factory=asyncio.Event)
    changes_between_reads: Callable[[], None] = lambda: None
    """Changes between two reads."""

    async def get(self) -> ExecutionRow:
        self.changes += 1
        self.changes_between_reads()
        self.reads.set()
        over = sum(step.facts is not None for step in self.steps)
        ref = ExecutionRef(self.id)
        return ExecutionRow(ref, "clerk", self.status, over, EMPTY, None, None, None, EMPTY, AT, AT, None)

    async def each_step(self, after: int = 0) -> AsyncGenerator[StepRow]:
        self.changes_between_reads()
        for step in self.steps:
            if step.number > after:
                yield step

    async def all_requests(self) -> list[RequestRow]:
        self.changes_between_reads()
        return self.requests

    def open_request(self, number: int, *, child: bool = False) -> RequestRow:
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

    def record_result(self, number: int) -> None:
        """The call has its result."""
        later = AT + timedelta(seconds=1)
        self.requests = [replace(request, state=RequestState.RESOLVED) for request in self.requests]
        record = CallRecord(self.calls[number].id, "done", None, "done", later, later, 0.0)
        row = self.steps[number - 1]
        calls = (CallRow(self.calls[number], "done", 1, record),)
        self.steps = [*self.steps[: number - 1], replace(row, calls=calls)]

    def record_partial_text(self, number: int, text: str, attempt: int = 1) -> None:
        """The text so far."""
        self.steps = [*self.steps[: number - 1], StepRow(number, attempt, None, (), None, text, AT, None)]

    def complete_step(self, number: int, text: str, attempt: int = 1) -> None:
        """A step is complete."""
        facts = StepFacts(number=number)
        row = StepRow(number, attempt, facts, (), None, "", AT, AT, (assistant(text),))
        self.steps = [*self.steps[: number - 1], row]

    def end(self) -> None:
        self.status = ExecutionStatus.COMPLETED


def follow_output(book: FakeExecution, watch: Watch | None = None) -> AsyncGenerator[str]:
    return follow_text(cast("Execution", book), watch)


async def output_of(book: FakeExecution, watch: Watch | None = None) -> str:
    return "".join([text async for text in follow_output(book, watch)])


@pytest.fixture
def no_polling(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without polling: output before the end comes from the gateway."""
    monkeypatch.setattr(follow, "LOOK_SECONDS", 60.0)
    monkeypatch.setattr(watch_module, "CALM_SECONDS", 60.0)


class FollowedOutput:
    """Prints the execution that it follows, and waits for text in the output."""

    def __init__(self, book: FakeExecution, url: str | None, token: str = TOKEN) -> None:
        self.text = ""
        self._more = asyncio.Condition()
        self.task = asyncio.create_task(self._follow(book, url, token))

    async def _follow(self, book: FakeExecution, url: str | None, token: str) -> None:
        async with open_watch(url, f"agent.execution.{book.id}", token) as watch:
            async for text in follow_output(book, watch):
                self.text += text
                async with self._more:
                    self._more.notify_all()

    async def wait_for_output(self, text: str) -> None:
        async with asyncio.timeout(20), self._more:
            await self._more.wait_for(lambda: self.text == text)

    async def wait_for_end(self) -> str:
        async with asyncio.timeout(20):
            await self.task
        return self.text


@pytest.fixture
def short_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    """Short waits for a gateway that returns."""

    def make_stream(url: str, channel: str, token: str | None) -> Stream:
        return Stream(url, channel, token, pace=QUICK)

    monkeypatch.setattr(watch_module, "Stream", make_stream)


@pytest.mark.usefixtures("short_waits", "no_polling")
async def test_text_is_shown_as_it_is_written() -> None:
    told = a_scripted_execution(["Let me", " see"], ["It is\n", "done"])
    book = FakeExecution(told.execution_id)
    async with ScriptedGateway(told, until=0).open() as gateway:
        terminal = FollowedOutput(book, gateway.url)
        await wait_until(lambda: len(gateway.received) == 2)
        gateway.publish_until(3)
        await terminal.wait_for_output("step 1\n  model   Let me")
        gateway.publish_until(4)
        await terminal.wait_for_output("step 1\n  model   Let me see")
        book.complete_step(1, "Let me see")
        gateway.publish_until(8)
        await terminal.wait_for_output("step 1\n  model   Let me see\nstep 2\n  model   It is\n          ")
        book.record_partial_text(2, "It is")
        gateway.publish_until(9)
        await terminal.wait_for_output(
            "step 1\n  model   Let me see\nstep 2\n  model   It is\n          done"
        )
        book.complete_step(2, "It is\ndone")
        book.end()
        gateway.publish_until()
        said = await terminal.wait_for_end()

    assert said == await output_of(book)
    assert said == "step 1\n  model   Let me see\nstep 2\n  model   It is\n          done\n"


async def wait_until(holds: Callable[[], bool]) -> None:
    async with asyncio.timeout(20):
        while not holds():  # noqa: ASYNC110 -- there is no event for printed output
            await asyncio.sleep(0.005)


@pytest.mark.usefixtures("short_waits")
@pytest.mark.parametrize("fault", [Fault.CUT, Fault.CRASH, Fault.GARBAGE, Fault.FORGET, Fault.DROP])
async def test_a_reconnected_gateway_shows_nothing_twice(fault: Fault) -> None:
    told = a_scripted_execution(["Let me", " see"], ["Done"])
    book = FakeExecution(told.execution_id)
    async with ScriptedGateway(
        told, iter([Fault.NONE, Fault.NONE, Fault.NONE, fault] * 3), until=0
    ).open() as gateway:
        terminal = FollowedOutput(book, gateway.url)
        await wait_until(lambda: len(gateway.received) == 2)
        gateway.publish_until(4)
        await wait_until(lambda: "Let me" in terminal.text)
        book.complete_step(1, "Let me see")
        gateway.publish_until(8)
        book.complete_step(2, "Done")
        book.end()
        gateway.publish_until()
        said = await terminal.wait_for_end()

    assert said == await output_of(book) == "step 1\n  model   Let me see\nstep 2\n  model   Done\n"


@pytest.mark.usefixtures("short_waits")
async def test_follow_continues_without_a_lost_gateway() -> None:
    told = a_scripted_execution(["Let me", " see"])
    book = FakeExecution(told.execution_id)
    async with ScriptedGateway(told, until=0).open() as gateway:
        terminal = FollowedOutput(book, gateway.url)
        await wait_until(lambda: len(gateway.received) == 2)
        gateway.publish_until(3)
        await terminal.wait_for_output("step 1\n  model   Let me")
    book.record_partial_text(1, "Let me see")
    await terminal.wait_for_output("step 1\n  model   Let me see")
    book.complete_step(1, "Let me see")
    book.end()

    assert await terminal.wait_for_end() == "step 1\n  model   Let me see\n"


@pytest.mark.usefixtures("short_waits")
@pytest.mark.parametrize("url", [None, "ws://127.0.0.1:9", "nonsense"])
async def test_without_a_gateway_the_table_is_polled(url: str | None) -> None:
    book = FakeExecution()
    terminal = FollowedOutput(book, url)
    await book.reads.wait()
    book.record_partial_text(1, "Let me")
    await terminal.wait_for_output("step 1\n  model   Let me")
    book.complete_step(1, "Let me see")
    book.end()

    assert await terminal.wait_for_end() == "step 1\n  model   Let me see\n"


@pytest.mark.parametrize("child", [False, True], ids=["its own", "a subagent's"])
@pytest.mark.parametrize("seen", [False, True], ids=["between two looks", "while somebody looks"])
async def test_a_request_that_is_answered_at_once_is_shown(child: bool, seen: bool) -> None:
    """8.6.6: before the result of its call, whenever it was answered."""
    book = FakeExecution()
    request = ""

    class QuickWatch(Watch):
        """Everything happens between the first read and the second, or over two of them."""

        looks = 0

        async def wait(self, seconds: float) -> bool:
            nonlocal request
            self.looks += 1
            if self.looks == 1:
                book.complete_step(1, "Let me see.")
                request = str(book.open_request(1, child=child).ref.execution_id)
                if seen:
                    return True
            book.record_result(1)
            book.complete_step(2, "Done")
            book.end()
            return True

    said = await output_of(book, QuickWatch())

    name = "delegate" if child else "transfer"
    assert said == (
        "step 1\n  model   Let me see.\n"
        f"approval   transfer {{}}\n           everstep approve {request} [--deny]\ndigest     \n"
        f"  tool    {name}() -> done\nstep 2\n  model   Done\n"
    )
    assert said == await output_of(book)


@pytest.mark.usefixtures("short_waits")
async def test_a_refused_viewer_polls_the_table() -> None:
    told = a_scripted_execution(["Let me"])
    book = FakeExecution(told.execution_id)
    async with ScriptedGateway(told).open() as gateway:
        terminal = FollowedOutput(book, gateway.url, "wrong")
        await wait_until(lambda: bool(gateway.received))
        book.complete_step(1, "Let me")
        book.end()

        assert await terminal.wait_for_end() == "step 1\n  model   Let me\n"
    assert gateway.connections == 1


@pytest.mark.usefixtures("short_waits")
async def test_while_the_gateway_is_connected_the_table_is_not_polled() -> None:
    told = a_scripted_execution(["Let me"])
    book = FakeExecution(told.execution_id)
    async with ScriptedGateway(told, until=2).open() as gateway:
        terminal = FollowedOutput(book, gateway.url)
        await wait_until(lambda: gateway.at == 2)
        await wait_until(lambda: book.changes > 2)
        before = book.changes
        done, _ = await asyncio.wait([terminal.task], timeout=4 * follow.LOOK_SECONDS)
        assert not done
        assert book.changes - before <= 2
        book.complete_step(1, "Let me")
        book.end()
        gateway.publish_until()
        await terminal.wait_for_end()


async def test_another_attempt_starts_its_text_again() -> None:
    book, lines = FakeExecution(), list[str]()
    wrote = Wrote(book.id, 1, 1, "I thi", "I thi")
    attempts = [wrote, replace(wrote, attempt=2, text="Perhaps"), replace(wrote, text="I think")]

    class ScriptedWatch(Watch):
        def latest_text(self, execution_id: UUID) -> Wrote | None:
            return attempts[min(len(lines), 2)]

        async def wait(self, seconds: float) -> bool:
            lines.append("")
            if len(lines) == 4:
                book.complete_step(1, "Perhaps so", attempt=2)
                book.end()
            return len(lines) == 4

    said = await output_of(book, ScriptedWatch())

    assert said == "step 1\n  model   I thi\nstep 1  (attempt 2)\n  model   Perhaps so\n"


# In any order of arrival.


class RandomWatch(Watch):
    """Events happen, the table has them at once or a little later, and the gateway sends them at any time."""

    def __init__(self, texts: list[list[str]], random: Random) -> None:
        super().__init__()
        self.book = FakeExecution(changes_between_reads=self.advance)
        self._random = random
        self._happens = [
            (n, "".join(words[:m]), words) for n, words in enumerate(texts, 1) for m in range(len(words) + 2)
        ]
        self._at = 0
        self._said = 0
        self._seen: Wrote | None = None

    def advance(self) -> None:
        for _ in range(self._random.choice((0, 1, 1, 2, 5))):
            if self._at == len(self._happens):
                self.book.end()
                return
            number, text, words = self._happens[self._at]
            self._at += 1
            if self._at == len(self._happens) or self._happens[self._at][0] != number:
                self.book.complete_step(number, "".join(words))
            elif self._random.random() < 0.3:
                self.book.record_partial_text(number, text)

    def latest_text(self, execution_id: UUID) -> Wrote | None:
        self._said = self._random.randint(self._said, self._at)
        for number, text, words in self._happens[: self._said]:
            if text:
                self._seen = Wrote(execution_id, number, 1, text, "", text == "".join(words))
        return self._seen

    async def wait(self, seconds: float) -> bool:
        self.advance()
        return self._random.random() < 0.5


@given(
    texts=st.lists(st.lists(st.sampled_from(["a", "b c", "\n", " "]), max_size=5), max_size=4),
    seed=st.integers(0, 2**32),
)
def test_the_output_is_the_same_with_and_without_a_gateway(texts: list[list[str]], seed: int) -> None:
    spoken = [words for words in texts if "".join(words).strip()]

    async def both() -> tuple[str, str]:
        world = RandomWatch(spoken, Random(seed))  # noqa: S311 -- no secret
        return await output_of(world.book, world), await output_of(world.book)

    with_gateway, without = asyncio.run(both())
    assert [line.rstrip() for line in with_gateway.splitlines()] == [
        line.rstrip() for line in without.splitlines()
    ]
