"""How often an operation waits for the database, from its request to its last effect."""

import asyncio
from collections import Counter
from collections.abc import AsyncGenerator, Generator
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from decimal import Decimal
from typing import Any, Final
from uuid import uuid4

import pytest
from temporalio.client import WorkflowFailureError

from everstep.agent_domain.agents.definition import AgentDefinition
from everstep.agent_domain.loop.budget import Budget, BudgetScope, BudgetUnit
from everstep.agent_domain.storage.steps import BeginStep, BegunStep
from everstep.agent_domain.testing import MockTool, calls
from everstep.runtime.agents import AgentBook
from everstep.runtime.worker import make_worker
from everstep.store import session_statements, transcript_statements
from everstep.store.transaction import BoundStatement, Transaction
from tests.engines import listening
from tests.everstep.http_api.house import ApiCaller, ApiSetup, MakeCaller, NoModels
from tests.workflows.harness import HeldModel, an_agent

WAITS: Final = {
    "a message that makes its session": 2,
    "a message to an idle session": 3,
    "a message to a busy session": 3,
    "the begin of a first step": 2,
    "the last reply, and the end": 1 + 4,
    "the last reply, the end, and the begin of the next execution": 1 + 4 + 2,
    "a reply, its call, and the begin of a step": 1 + 1 + 2,
    "a cancel of a running execution": 6,
}
"""What each operation waits. Statements that are sent together wait once."""

TRANSCRIPTS: Final = 2
"""Reads of the conversation by an execution of two slow steps: one for the first, and one at its end."""


class Waits:
    """Counts waits for the database, and reads of conversations, sessions, executions and queues."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.count = self.transcripts = 0
        self.reads = Counter[str]()
        """Reads of rows since the last note; a statement that locks a row reads it as well."""
        self.counted: dict[str, int] = {}
        together = Transaction.together

        async def counting(transaction: Transaction, *asked: BoundStatement, last: bool = False) -> Any:
            self.count += 1
            statements = [statement for statement, _ in asked]
            self.transcripts += statements.count(transcript_statements.TRANSCRIPT)
            self.reads["session"] += statements.count(session_statements.LOCK_SESSION)
            self.reads["queue"] += statements.count(session_statements.UNDER_WAY)
            return await together(transaction, *asked, last=last)

        patch.setattr(Transaction, "together", counting)

    def count_statement(self, *args: Any) -> None:
        """Count a statement that SQLAlchemy sends."""
        # The text so far is noted once a second, however long a model writes.
        self.count += "partial_text" not in args[2]
        self.reads["session"] += args[2].startswith("SELECT agent_sessions.id")
        self.reads["execution"] += args[2].startswith("SELECT agent_executions.id")

    def note(self, name: str) -> None:
        """Note what the last operation has waited."""
        self.counted[name], self.count = self.count, 0
        self.reads.clear()


@pytest.fixture
def waits(api_setup: ApiSetup, monkeypatch: pytest.MonkeyPatch) -> Generator[Waits]:
    waits = Waits(monkeypatch)
    with listening(api_setup.keys.engine, waits.count_statement):
        yield waits


@asynccontextmanager
async def at_work(house: ApiSetup, agent: AgentDefinition) -> AsyncGenerator[None]:
    """Run a worker with this agent."""
    sessions = house.sessions
    client, book = sessions.client, AgentBook([agent], NoModels())
    async with make_worker(client.temporal, client.store, book, house.settings, ended=sessions.on_end):
        yield


class Scene:
    """A caller, a model that waits for the test, and a worker."""

    def __init__(self, house: ApiSetup, ann: ApiCaller, model: HeldModel, waits: Waits) -> None:
        self.house, self.ann, self.model, self.waits = house, ann, model, waits
        self.stored_begins = asyncio.Semaphore(0)

    def watch_begins(self, patch: pytest.MonkeyPatch) -> None:
        """Count the begins of steps that are stored: a later step's is stored while its model writes."""
        store = self.house.sessions.client.store
        begin_step = store.begin_step

        async def begin_and_count(begin: BeginStep) -> BegunStep:
            begun = await begin_step(begin)
            self.stored_begins.release()
            return begun

        patch.setattr(store, "begin_step", begin_and_count)

    async def send(self, session: str | None = None) -> tuple[str, str]:
        """Send a message; return its session and its execution."""
        path = f"/agent/sessions/{session}/messages" if session else "/agent/messages"
        sent = await self.ann.post(path, {"content": "Go"} | ({} if session else {"agent": "held"}))
        return sent["message"]["session_id"], sent["execution_id"]

    async def until_model_waits(self) -> None:
        """Wait until the model waits, and the begin of its step is stored."""
        await self.model.begun.wait()
        self.model.begun.clear()
        await self.stored_begins.acquire()

    async def until_over(self, execution: str) -> None:
        """Wait until the execution's workflow has closed: nothing of it is written after that."""
        workflow = self.house.sessions.client.execution(execution).workflow
        with suppress(WorkflowFailureError):
            await workflow.result()


async def test_each_operation_has_its_number_of_waits(
    api_setup: ApiSetup, sign_in: MakeCaller, waits: Waits, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = HeldModel(calls(("look", {})), "Done", holds=1)
    held = an_agent(model=model, tools=[MockTool("look")]).with_name("held").definition()
    client = api_setup.sessions.client
    object.__setattr__(client, "agents", {**client.agents, "held": held})
    scene = Scene(api_setup, await sign_in("ann"), model, waits)
    scene.watch_begins(monkeypatch)

    session, first = await scene.send()
    waits.note("a message that makes its session")
    async with at_work(api_setup, held):
        await scene.until_model_waits()
        waits.note("the begin of a first step")
        # The second request waits as well.
        model.holds, model.go_on = 2, replaced(model.go_on)
        await scene.until_model_waits()
        waits.note("a reply, its call, and the begin of a step")
        _, second = await scene.send(session)
        assert waits.reads["session"] == 1
        waits.note("a message to a busy session")
        model.holds, model.go_on = 3, replaced(model.go_on)
        await scene.until_model_waits()
        waits.note("the last reply, the end, and the begin of the next execution")
        assert waits.transcripts == TRANSCRIPTS + 1
        model.go_on.set()
        await scene.until_over(second)
        waits.note("the last reply, and the end")
        await scene.until_over(first)

        model.holds, model.go_on = 4, asyncio.Event()
        waits.count = 0
        _, third = await scene.send(session)
        waits.note("a message to an idle session")
        await scene.until_model_waits()
        waits.note("the begin of a first step")
        await scene.ann.post(f"/agent/executions/{third}/cancel")
        await scene.until_over(third)
        # Before the command, and after the end.
        assert (waits.reads["execution"], waits.reads["queue"]) == (1, 1)
        waits.note("a cancel of a running execution")

    assert waits.counted == WAITS


async def test_a_model_call_within_a_budget_waits_once_more(api_setup: ApiSetup, waits: Waits) -> None:
    """4.8.3: it is reserved in one round trip, and settled together with its reply."""
    definition = an_agent("Done").definition()
    client = replace(
        api_setup.sessions.client, agents={"agent": definition}, tenant_id=f"tenant-{uuid4().hex}"
    )
    budget = Budget(BudgetUnit.TOKENS, Decimal(10**9), BudgetScope.TENANT)

    async def count_waits(*budgets: Budget) -> int:
        waits.count = 0
        execution = await client.start("agent", "Go", budgets=budgets)
        await execution.result()
        return waits.count

    # A step that is slow on this machine stores its start, which is not counted here.
    book = AgentBook([definition], NoModels())
    async with make_worker(client.temporal, client.store, book, api_setup.settings, moment=60):
        # The first call of the tenant also opens the budget.
        await count_waits(budget)
        without, within = await count_waits(), await count_waits(budget)

    assert within == without + 1


def replaced(event: asyncio.Event) -> asyncio.Event:
    """Let the waiting request go on, and make the next one wait."""
    event.set()
    return asyncio.Event()
