"""Worker processes are killed, stopped and hung; their work ends as if they had not been.

The cases run in parallel, each on its own task queue, because each of them waits ten seconds until a lost
worker is noticed; a test waits for its case.
"""

import asyncio
import signal
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeAlias

import pytest
import pytest_asyncio
from temporalio.client import WorkflowExecutionStatus

from everstep.activities.failpoints import Failpoint
from everstep.activities.tool_runner import EFFECT_UNKNOWN
from everstep.agent_domain.ids import subagent_id
from everstep.agent_domain.loop.status import ExecutionStatus
from everstep.agent_domain.state.state import CANCELLED_CALL
from everstep.agent_domain.storage.requests import Resolution
from everstep.client.client import Execution
from everstep.client.errors import Refused
from everstep.client.ledgers import audit_execution
from tests.acceptance.harness import Account, Installation, Site, measure_seconds, site, until, until_pause

pytestmark = pytest.mark.asyncio(loop_scope="session")

UNKNOWN = f"Error: {EFFECT_UNKNOWN}"


@dataclass(frozen=True)
class CaseResult:
    """The result of a case."""

    account: Account
    site: Site
    seconds: float = 0

    @property
    def request_counts(self) -> Mapping[str, int]:
        """How often each turn was requested from the model."""
        return self.site.counts("asked")

    @property
    def reply_counts(self) -> Mapping[str, int]:
        """How often the model completed each turn."""
        return self.site.counts("answered")

    @property
    def effect_counts(self) -> Mapping[str, int]:
        """How often each tool had its effect."""
        return self.site.counts("ran")


Case: TypeAlias = Callable[[Site], Coroutine[None, None, Mapping[str, CaseResult]]]
"""Runs on a site and returns the results by name."""

ONCE = {"turn 1": 1, "turn 2": 1, "turn 3": 1}


@dataclass(frozen=True)
class Crash:
    """A worker dies by SIGKILL at a failpoint, once; another one takes over."""

    message: str
    point: Failpoint
    fuse: str
    """Where the failpoint is armed; it fires when it is passed next."""
    asked: Mapping[str, int] = field(default_factory=lambda: ONCE)
    answered: Mapping[str, int] = field(default_factory=lambda: ONCE)
    effects: int = 1
    expected_message: str | None = None
    """The message that the model receives about the call, if it differs from the run without the crash."""
    agent: str = "clerk"

    @property
    def reference(self) -> str:
        """The run without a crash."""
        return self.message if self.agent == "clerk" else f"{self.message} by the {self.agent}"

    async def run(self, site: Site) -> Mapping[str, CaseResult]:
        """Run the whole case."""
        first = await site.worker(kill_at=self.point, fuse=self.fuse)
        execution = await site.start(self.message, self.agent)
        assert await first.wait() == -signal.SIGKILL, first.log.read_text()
        await site.worker()
        return {"": CaseResult(await site.final_account(execution), site)}


CRASHES = {
    "before the model is asked": Crash("book", Failpoint.INFER_BEFORE_MODEL, "look_up ran"),
    "during a stream": Crash(
        "book", Failpoint.INFER_DURING_STREAM, "turn 3, piece 5", asked={**ONCE, "turn 3": 2}
    ),
    # The only window in which a reply can be lost: it is complete, and its transaction is not committed.
    "before an answer is recorded": Crash(
        "book",
        Failpoint.INFER_AFTER_RESPONSE,
        "turn 2 answered",
        asked={**ONCE, "turn 2": 2},
        answered={**ONCE, "turn 2": 2},
    ),
    "before an answer is reported": Crash("book", Failpoint.INFER_BEFORE_REPORT, "turn 2 answered"),
    **{
        f"with the profile burst, {name}": Crash(
            "jot", point, fuse, asked, answered, effects, agent="sprinter"
        )
        for name, point, fuse, asked, answered, effects in (
            ("before the model is asked", Failpoint.INFER_BEFORE_MODEL, "jot ran", ONCE, ONCE, 1),
            (
                "during a stream",
                Failpoint.INFER_DURING_STREAM,
                "turn 3, piece 5",
                {**ONCE, "turn 3": 2},
                ONCE,
                1,
            ),
            (
                "before an answer is recorded",
                Failpoint.INFER_AFTER_RESPONSE,
                "turn 2 answered",
                {**ONCE, "turn 2": 2},
                {**ONCE, "turn 2": 2},
                1,
            ),
            ("before an answer is reported", Failpoint.INFER_BEFORE_REPORT, "turn 2 answered", ONCE, ONCE, 1),
            ("after the effect of a tool", Failpoint.TOOL_AFTER_EFFECT, "jot ran", ONCE, ONCE, 2),
            ("before the end is reported", Failpoint.SETTLE_BEFORE_REPORT, "turn 3 answered", ONCE, ONCE, 1),
        )
    },
    "before an idempotent tool": Crash("book", Failpoint.TOOL_AFTER_RESERVE, "turn 2 answered"),
    "after the effect of an idempotent tool": Crash(
        "book", Failpoint.TOOL_AFTER_EFFECT, "book ran", effects=2
    ),
    "before an idempotent tool is reported": Crash("book", Failpoint.TOOL_BEFORE_REPORT, "book ran"),
    "before an at_most_once tool": Crash(
        "pay", Failpoint.TOOL_AFTER_RESERVE, "turn 2 answered", effects=0, expected_message=UNKNOWN
    ),
    "after the effect of an at_most_once tool": Crash(
        "pay", Failpoint.TOOL_AFTER_EFFECT, "pay ran", expected_message=UNKNOWN
    ),
    "before an at_most_once tool is reported": Crash("pay", Failpoint.TOOL_BEFORE_REPORT, "pay ran"),
    "after the effect of a quick tool": Crash("jot", Failpoint.TOOL_AFTER_EFFECT, "jot ran", effects=2),
    "after the effect of a quick at_most_once tool": Crash(
        "ring", Failpoint.TOOL_AFTER_EFFECT, "ring ran", expected_message=UNKNOWN
    ),
    "before the end is written": Crash("book", Failpoint.SETTLE_BEFORE_COMMIT, "turn 3 answered"),
    "before the end is reported": Crash("book", Failpoint.SETTLE_BEFORE_REPORT, "turn 3 answered"),
}


# People, and their actions while a worker is lost or not.


async def at_rest(execution: Execution) -> None:
    """Wait until Temporal waits too: no worker holds a task of this execution."""

    async def is_at_rest() -> bool:
        described = (await execution.workflow.describe()).raw_description
        return not described.HasField("pending_workflow_task") and not described.pending_activities

    await until("no worker has anything in hand", is_at_rest)


@dataclass
class People:
    """Three executions that wait for people: for an answer, for an approval, for resuming."""

    asking: Execution
    approving: Execution
    held: Execution

    @property
    def all(self) -> tuple[Execution, ...]:
        """Each of them."""
        return self.asking, self.approving, self.held

    @classmethod
    async def start(cls, site: Site) -> "People":
        """All of them paused. The worker's gate is at the end of a step."""
        held = await site.start("book")
        await site.until_entry("waiting", "look_up ran")
        await held.pause()
        site.open_gates()
        people = cls(await site.start("ask"), await site.start("approve"), held)
        await asyncio.gather(*map(until_pause, people.all))
        return people

    async def answer_all(self, site: Site) -> Mapping[str, CaseResult]:
        """Answer, approve, and resume."""
        await asyncio.gather(self.asking.submit_input("high"), self.approving.approve(), self.held.resume())
        executions = {"answered": self.asking, "approved": self.approving, "resumed": self.held}
        return {name: CaseResult(await site.final_account(each), site) for name, each in executions.items()}


async def nothing_happens(site: Site) -> Mapping[str, CaseResult]:
    """The reference for the other cases."""
    await site.worker(gates="look_up ran")
    people = await People.start(site)
    played = dict(await people.answer_all(site))
    for message in ("book", "pay", "jot", "ring"):
        played[message] = CaseResult(await site.final_account(await site.start(message)), site)
    sprint = await site.start("jot", "sprinter")
    played["jot by the sprinter"] = CaseResult(await site.final_account(sprint), site)
    return played


async def a_kill_while_nothing_runs(site: Site) -> Mapping[str, CaseResult]:
    """All wait for people when the worker dies; another one is there when they answer, or a little later."""
    first = await site.worker(gates="look_up ran")
    people = await People.start(site)
    await asyncio.gather(*map(at_rest, people.all))
    await first.kill()
    coming = asyncio.create_task(people.answer_all(site))
    await site.worker()
    return await coming


async def killed_as_it_pauses(site: Site) -> Execution:
    """People see the question, and the server has not recorded that it was asked."""
    first = await site.worker(kill_at=Failpoint.SETTLE_BEFORE_REPORT, fuse="turn 2 answered")
    execution = await site.start("ask")
    assert await first.wait() == -signal.SIGKILL, first.log.read_text()
    await until_pause(execution)
    return execution


async def a_kill_as_it_pauses(site: Site) -> Mapping[str, CaseResult]:
    """People answer before the question is asked a second time."""
    execution = await killed_as_it_pauses(site)
    answering = asyncio.create_task(execution.submit_input("high"))

    async def is_answered() -> bool:
        return not await execution.requests()

    await until("the answer is stored", is_answered)
    await site.worker()
    await answering
    return {"": CaseResult(await site.final_account(execution), site)}


async def a_cancel_as_it_pauses(site: Site) -> Mapping[str, CaseResult]:
    """People cancel, so that the question is not asked a second time."""
    execution = await killed_as_it_pauses(site)
    cancelling = asyncio.create_task(execution.cancel())
    await site.worker()
    await cancelling
    return {"": CaseResult(await site.final_account(execution), site)}


async def a_kill_of_the_api(site: Site) -> Mapping[str, CaseResult]:
    """An answer is stored, and the process that received it dies before the execution gets it. It is sent
    again.
    """
    await site.worker()
    asking, approving = await site.start("ask"), await site.start("approve")
    await asyncio.gather(until_pause(asking), until_pause(approving))
    store = site.installation.store
    for execution, said in ((asking, Resolution("answer", "high")), (approving, Resolution("approve"))):
        (request,) = await execution.requests()
        assert await store.resolve(execution.ref, request.id, said)
    with pytest.raises(Refused, match="The question is no longer open"):
        await asking.submit_input("low")
    with pytest.raises(Refused, match="Approval already resolved"):
        await approving.approve()
    executions = {"answered": asking, "approved": approving}
    return {name: CaseResult(await site.final_account(each), site) for name, each in executions.items()}


async def is_stored_and_open(execution: Execution, status: ExecutionStatus) -> bool:
    """Whether the end is stored, and the workflow has not closed."""
    described = await execution.workflow.describe()
    assert described.status is WorkflowExecutionStatus.RUNNING
    return (await execution.get()).status is status


async def closes_as(execution: Execution, status: WorkflowExecutionStatus) -> bool:
    """Whether the workflow has this status in Temporal."""
    return (await execution.workflow.describe()).status is status


async def a_kill_before_a_failure_closes(site: Site) -> Mapping[str, CaseResult]:
    """The failure is stored, and Temporal has not recorded it."""
    first = await site.worker(kill_at=Failpoint.SETTLE_BEFORE_REPORT, fuse="turn 1")
    execution = await site.start("refuse", agent="novice")
    assert await first.wait() == -signal.SIGKILL, first.log.read_text()
    assert await is_stored_and_open(execution, ExecutionStatus.FAILED)
    await site.worker()
    result = CaseResult(await site.final_account(execution), site)
    assert await closes_as(execution, WorkflowExecutionStatus.FAILED)
    assert (await audit_execution(site.installation.store, execution.ref)).is_whole
    return {"": result}


async def a_kill_before_a_cancel_closes(site: Site) -> Mapping[str, CaseResult]:
    """The cancel is stored, and Temporal has not recorded it."""
    first = await site.worker(kill_at=Failpoint.SETTLE_BEFORE_REPORT, fuse="turn 2", gates="turn 2")
    execution = await site.start("book")
    await site.until_entry("waiting", "turn 2")
    cancelling = asyncio.create_task(execution.cancel())
    assert await first.wait() == -signal.SIGKILL, first.log.read_text()
    assert await is_stored_and_open(execution, ExecutionStatus.CANCELLED)
    await site.worker()
    await cancelling
    result = CaseResult(await site.final_account(execution), site)
    assert await closes_as(execution, WorkflowExecutionStatus.CANCELED)
    assert (await audit_execution(site.installation.store, execution.ref)).is_whole
    return {"": result}


async def start_child(site: Site) -> Execution:
    """The child of an execution that delegates its booking."""
    parent = await site.start("delegate")

    async def has_called() -> bool:
        return any(call.call.name == "delegate" for step in await parent.steps() for call in step.calls)

    await until("the booking is handed over", has_called)
    called_by = [call.call.id for step in await parent.steps() for call in step.calls]
    return site.client.execution(subagent_id(parent.id, called_by[-1]))


async def both(site: Site, child: Execution) -> Mapping[str, CaseResult]:
    """A child and its parent."""
    parent = (await child.get()).parent_execution_id
    assert parent
    executions = {"parent": site.client.execution(parent), "child": child}
    return {name: CaseResult(await site.final_account(each), site) for name, each in executions.items()}


async def a_child_runs(site: Site) -> Mapping[str, CaseResult]:
    """The reference for the next case."""
    await site.worker()
    child = await start_child(site)
    await until("the child is there", lambda: site.installation.store.execution(child.ref))
    return await both(site, child)


async def a_kill_while_a_child_works(site: Site) -> Mapping[str, CaseResult]:
    """The worker runs parent and child, and the child's tool has just had its effect."""
    first = await site.worker(gates="book ran")
    child = await start_child(site)
    await site.until_entry("waiting", "book ran")
    await first.kill()
    site.open_gates()
    await site.worker()
    return await both(site, child)


async def a_kill_before_a_child_reports(site: Site) -> Mapping[str, CaseResult]:
    """The child is in the store, and the server has not recorded it."""
    first = await site.worker(kill_at=Failpoint.SPAWN_BEFORE_REPORT, fuse="turn 2 answered")
    child = await start_child(site)
    assert await first.wait() == -signal.SIGKILL, first.log.read_text()
    await site.worker()
    return await both(site, child)


async def stopping(site: Site) -> None:
    """Stop the first worker; it has received the signal."""
    first = site.workers[0]
    first.signal(signal.SIGTERM)
    await until("a worker stops", lambda: "stopping" in first.log.read_text())


async def a_stop_during_a_call(site: Site) -> Mapping[str, CaseResult]:
    """The call ends in time, and the next worker continues from there."""
    first = await site.worker(gates="turn 2")
    execution = await site.start("book")
    await site.until_entry("waiting", "turn 2")
    await stopping(site)
    site.open_gates()
    assert await first.wait() == 0, first.log.read_text()
    assert site.count("answered", "turn 2") == 1
    await site.worker()
    return {"": CaseResult(await site.final_account(execution), site)}


async def a_stop_during_a_long_call(site: Site) -> Mapping[str, CaseResult]:
    """The call does not end in time; a worker that is already running takes it over at once."""
    first = await site.worker(gates="turn 2", grace=0.5)
    execution = await site.start("book")
    await site.until_entry("waiting", "turn 2")
    await site.worker()
    await stopping(site)
    seconds = await measure_seconds(site.final_account(execution))
    assert await first.wait() == 0, first.log.read_text()
    return {"": CaseResult(await site.final_account(execution), site, seconds)}


async def hanging(site: Site) -> None:
    """Hang the first worker while it stops: it holds its tasks and, unlike others, polls for no more.

    A worker that hangs otherwise still receives tasks, for ten seconds each and until the server notices.
    """
    await stopping(site)
    await site.worker(gates="turn 3")
    site.workers[0].signal(signal.SIGSTOP)


async def a_hang_during_a_call(site: Site) -> Mapping[str, CaseResult]:
    """The worker wakes up when the execution is in the next step, and finishes its call."""
    first = await site.worker(gates="turn 2")
    execution = await site.start("book")
    await site.until_entry("waiting", "turn 2")
    await hanging(site)
    await site.until_entry("waiting", "turn 3")
    site.open_gates()
    first.signal(signal.SIGCONT)
    assert await first.wait() == 0, first.log.read_text()
    return {"": CaseResult(await site.final_account(execution), site)}


async def a_hang_during_a_tool(site: Site) -> Mapping[str, CaseResult]:
    """The worker wakes up when the execution continues without its result."""
    first = await site.worker(gates="pay ran")
    execution = await site.start("pay")
    await site.until_entry("waiting", "pay ran")
    await hanging(site)
    await site.until_entry("waiting", "turn 3")
    site.open_gates()
    first.signal(signal.SIGCONT)
    assert await first.wait() == 0, first.log.read_text()
    return {"": CaseResult(await site.final_account(execution), site)}


CASES: Mapping[str, Case] = {
    **{name: crash.run for name, crash in CRASHES.items()},
    **{
        case.__name__: case
        for case in (
            nothing_happens,
            a_kill_while_nothing_runs,
            a_kill_as_it_pauses,
            a_cancel_as_it_pauses,
            a_kill_before_a_failure_closes,
            a_kill_before_a_cancel_closes,
            a_kill_of_the_api,
            a_child_runs,
            a_kill_while_a_child_works,
            a_kill_before_a_child_reports,
            a_stop_during_a_call,
            a_stop_during_a_long_call,
            a_hang_during_a_call,
            a_hang_during_a_tool,
        )
    },
}

CaseResults: TypeAlias = Callable[[Case | str], Awaitable[Mapping[str, CaseResult]]]


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def case_results(
    installation: Installation, tmp_path_factory: pytest.TempPathFactory
) -> AsyncGenerator[CaseResults]:
    """All cases, running."""
    folder = tmp_path_factory.mktemp("sites")

    async def run_case(case: Case, name: str) -> Mapping[str, CaseResult]:
        async with site(name, installation, folder / name.replace(" ", "_")) as place:
            return await case(place)

    tasks = {name: asyncio.create_task(run_case(case, name)) for name, case in CASES.items()}

    def outcome(case: Case | str) -> Awaitable[Mapping[str, CaseResult]]:
        return asyncio.shield(tasks[case if isinstance(case, str) else case.__name__])

    yield outcome
    for task in tasks.values():
        task.cancel()
    await asyncio.gather(*tasks.values(), return_exceptions=True)


@pytest.mark.parametrize("name", CRASHES)
async def test_after_a_kill_the_execution_ends_as_it_would_have(case_results: CaseResults, name: str) -> None:
    crash, played = CRASHES[name], (await case_results(name))[""]
    expected = (await case_results(nothing_happens))[crash.reference].account

    assert played.account.status is ExecutionStatus.COMPLETED
    assert played.account.answer == expected.answer
    assert played.account.steps == expected.steps
    assert played.account.last_tool_message == (crash.expected_message or expected.last_tool_message)
    if crash.expected_message is None:
        assert played.account == expected


@pytest.mark.parametrize("name", CRASHES)
async def test_after_a_kill_nothing_is_paid_for_or_done_twice(case_results: CaseResults, name: str) -> None:
    crash, played = CRASHES[name], (await case_results(name))[""]
    effects = played.site.journal("ran")

    assert played.request_counts == crash.asked
    assert played.reply_counts == crash.answered
    assert played.effect_counts.get("look_up") == 1
    assert sum(effect.where != "look_up" for effect in effects) == crash.effects
    # An effect that happens twice has the same idempotency key.
    assert len({(effect.where, *effect.data.values()) for effect in effects}) == 1 + min(crash.effects, 1)


@pytest.mark.parametrize("name", [name for name, crash in CRASHES.items() if crash.expected_message])
async def test_the_model_learns_when_an_effect_is_unknown(case_results: CaseResults, name: str) -> None:
    played = (await case_results(name))[""]

    (asked,) = [entry for entry in played.site.journal("asked") if entry.where == "turn 3"]
    assert asked.data["last"] == UNKNOWN
    (row,) = [row for row in played.account.rows["agent_tool_calls"] if row["name"] != "look_up"]
    assert row["error"]["type"] == "unknown"
    assert row["success"] is False


@pytest.mark.parametrize("name", ["answered", "approved", "resumed"])
async def test_a_kill_while_nothing_runs_changes_nothing(case_results: CaseResults, name: str) -> None:
    played = (await case_results(a_kill_while_nothing_runs))[name]

    assert played.account.status is ExecutionStatus.COMPLETED
    assert played.account == (await case_results(nothing_happens))[name].account
    assert played.request_counts == {"turn 1": 3, "turn 2": 3, "turn 3": 3}
    assert played.effect_counts == {"look_up": 3, "book": 1, "transfer": 1}


async def test_an_answer_is_received_although_the_question_is_asked_twice(case_results: CaseResults) -> None:
    played = (await case_results(a_kill_as_it_pauses))[""]

    assert played.account == (await case_results(nothing_happens))["answered"].account
    assert played.request_counts == played.reply_counts == ONCE


@pytest.mark.parametrize(
    ("case", "status", "steps"),
    [
        (a_kill_before_a_failure_closes, ExecutionStatus.FAILED, (1,)),
        (a_kill_before_a_cancel_closes, ExecutionStatus.CANCELLED, (1, 2)),
    ],
)
async def test_a_kill_after_the_end_was_stored_changes_neither_it_nor_the_status_in_temporal(
    case_results: CaseResults, case: Case, status: ExecutionStatus, steps: tuple[int, ...]
) -> None:
    """1.2.1, 15.6.1"""
    account = (await case_results(case))[""].account

    assert (account.status, account.steps) == (status, steps)


async def test_the_text_of_a_lost_worker_does_not_hide_the_end(case_results: CaseResults) -> None:
    played = (await case_results(a_cancel_as_it_pauses))[""]

    assert played.account.status is ExecutionStatus.CANCELLED
    assert played.account.last_tool_message == CANCELLED_CALL
    assert [row["state"] for row in played.account.rows["agent_requests"]] == ["resolved"]


async def test_an_answer_is_received_although_its_api_process_died(case_results: CaseResults) -> None:
    played = await case_results(a_kill_of_the_api)

    assert played["answered"].account.status is ExecutionStatus.COMPLETED
    assert played["answered"].account.last_tool_message == "high"
    assert played["approved"].account.last_tool_message == "transferred 80"


@pytest.mark.parametrize("case", [a_kill_while_a_child_works, a_kill_before_a_child_reports])
async def test_parent_and_child_end_as_if_no_worker_had_been_lost(
    case_results: CaseResults, case: Case
) -> None:
    """1.1.1, 1.1.3, 9.6.2: and every reply is paid for once."""
    played, expected = await case_results(case), await case_results(a_child_runs)

    assert (
        played["parent"].account.last_tool_message == "completed: Your room in the Hotel de la Gare is ready."
    )
    for each in ("parent", "child"):
        assert played[each].account.status is ExecutionStatus.COMPLETED
        assert played[each].account == expected[each].account
    assert (
        played["parent"].request_counts
        == played["parent"].reply_counts
        == {"turn 1": 2, "turn 2": 2, "turn 3": 2}
    )


async def test_a_worker_that_is_stopped_finishes_its_model_call(case_results: CaseResults) -> None:
    played = (await case_results(a_stop_during_a_call))[""]

    assert played.account == (await case_results(nothing_happens))["book"].account
    assert played.request_counts == played.reply_counts == ONCE
    assert played.effect_counts == {"look_up": 1, "book": 1}


async def test_a_call_that_outlasts_the_grace_period_is_handed_over_at_once(
    case_results: CaseResults,
) -> None:
    played = (await case_results(a_stop_during_a_long_call))[""]

    assert played.account == (await case_results(nothing_happens))["book"].account
    assert played.request_counts == {**ONCE, "turn 2": 2}
    assert played.reply_counts == ONCE
    # Sooner than the missing heartbeats would be noticed.
    assert played.seconds < 10


async def test_a_late_reply_of_a_hung_worker_changes_nothing(case_results: CaseResults) -> None:
    played = (await case_results(a_hang_during_a_call))[""]

    assert played.account == (await case_results(nothing_happens))["book"].account
    assert played.request_counts == {**ONCE, "turn 2": 2}
    assert played.effect_counts == {"look_up": 1, "book": 1}


async def test_the_result_of_a_hung_tool_comes_too_late(case_results: CaseResults) -> None:
    played = (await case_results(a_hang_during_a_tool))[""]

    assert played.account.status is ExecutionStatus.COMPLETED
    assert played.account.last_tool_message == UNKNOWN
    assert played.effect_counts == {"look_up": 1, "pay": 1}
    assert played.request_counts == played.reply_counts == ONCE


@pytest.mark.slow
async def test_a_worker_that_hangs_without_warning_only_delays(
    case_results: CaseResults, installation: Installation, tmp_path: Path
) -> None:
    """It still receives tasks, for ten seconds each: as many at once as it had polled for."""
    expected = (await case_results(nothing_happens))["book"].account
    async with site("a hang", installation, tmp_path / "site") as place:
        first = await place.worker(gates="turn 2")
        execution = await place.start("book")
        await place.until_entry("waiting", "turn 2")
        first.signal(signal.SIGSTOP)
        await place.worker()
        await place.final_account(execution)
        place.open_gates()
        first.signal(signal.SIGCONT)

        assert await first.stop() == 0, first.log.read_text()
        assert await place.final_account(execution) == expected
        assert place.counts("ran") == {"look_up": 1, "book": 1}
