"""Runs of many kinds, to be exported: what each agent is, and what people do while it runs."""

import asyncio
import json
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass, replace
from typing import Any
from uuid import uuid4

from pydantic import BaseModel
from temporalio.client import Client as TemporalClient

from everstep.agent_domain.agents.builder import DefinitionBuilder
from everstep.agent_domain.agents.drivers import StepDriver
from everstep.agent_domain.agents.processors import AgentHook
from everstep.agent_domain.agents.react import ReActDriver
from everstep.agent_domain.agents.registry import AgentSpecRegistry
from everstep.agent_domain.agents.spec import AgentSpec
from everstep.agent_domain.agents.token_counting import ContextWindow
from everstep.agent_domain.capabilities.rights import OPERATOR_SCOPES, Actor
from everstep.agent_domain.errors import ModelError, RateLimited
from everstep.agent_domain.loop.criteria import RetryLimit
from everstep.agent_domain.loop.error_policy import ErrorPolicy
from everstep.agent_domain.loop.status import ExecutionStatus, StopReason
from everstep.agent_domain.loop.stop_signal import StopSignal
from everstep.agent_domain.loop.usage import Usage
from everstep.agent_domain.messages.messages import assistant, system, user
from everstep.agent_domain.state.state import AgentState
from everstep.agent_domain.testing import MockTool, ScriptedModel, calls, says
from everstep.agent_domain.tools.function_tool import tool
from everstep.agent_domain.tools.tools import ToolContext, ToolExecution, ToolOptions, ToolResult
from everstep.agent_domain.values import frozen_map
from everstep.capabilities.critique import UseSelfCritique
from everstep.capabilities.subagents import UseSubagents
from everstep.capabilities.tasks import UseTaskPlanning
from everstep.capabilities.user_input import UseUserInput
from everstep.client.execution import Execution
from tests.compaction import NarrowModel
from tests.toolsets import FakeToolset
from tests.workflows.harness import HeldModel, Office, an_agent, an_office, final_result
from tests.workflows.test_critiquing import APPROVED, REJECTED, Critical
from tests.workflows.test_use_subagents import Talk

APPROVER = Actor("ann", OPERATOR_SCOPES)
FORGIVING, RETRYING = ErrorPolicy.ignore_tool_errors(), ErrorPolicy.retry_tool_errors()
LOOK, PAY = calls(("look", {})), calls(("pay", {"amount": 5}), ("pay", {"amount": 7}))
WORDS = "some words to fill the window " * 10

Drive = Callable[[Office, Execution], Awaitable[Execution | None]]
"""Does what people do; returns the execution to export if it is not the one that was started."""


async def until_end(office: Office, execution: Execution) -> None:
    """Nothing is done by people."""
    del office
    await final_result(execution)


async def no_one(_office: Office, _execution: Execution) -> None:
    """Nothing is done before there is a worker."""


@dataclass(frozen=True)
class Case:
    """An agent, and what people do."""

    name: str
    agent: Callable[[], DefinitionBuilder]
    drive: Drive = until_end
    message: Any = "Go"
    status: ExecutionStatus = ExecutionStatus.COMPLETED
    given: Callable[[], dict[str, Any]] = dict
    early: Callable[[Office, Execution], Coroutine[Any, Any, object]] = no_one
    """What people do before there is a worker."""

    async def run(self, temporal: TemporalClient) -> tuple[Office, Execution]:
        """Run it on a server; returns the execution to export."""
        office = an_office(temporal, self.agent())
        execution = await office.start(self.message, **self.given())
        early = asyncio.create_task(self.early(office, execution))
        await office.store.until(lambda: self.is_prepared(office, execution))
        async with office.worker():
            await early
            other = await self.drive(office, execution)
        return office, other or execution

    async def is_prepared(self, office: Office, execution: Execution) -> bool:
        """Whether what people do before there is a worker is stored."""
        if self.early is no_one:
            return True
        store = office.store
        return (
            bool(await store.execution(execution.ref))
            and await store.steering(execution.ref, EARLY) is not None
        )


EARLY = "early"
"""The key of a message that is sent before there is a worker."""


async def steers_early(office: Office, execution: Execution) -> None:
    del office
    await execution.steer("Look at the harbour", key=EARLY)


class Trip(BaseModel):
    city: str
    days: int = 1


def look(result: Any = "a sea") -> MockTool:
    return MockTool("look", "Looks around", handler=lambda: result)


def broken() -> MockTool:
    return MockTool("look", "Looks around", handler=lambda: 1 / 0)


async def pay(amount: int) -> str:
    """Pay an amount."""
    return f"paid {amount}"


@tool
async def dawdle() -> str:
    """Take a moment."""
    await asyncio.sleep(0.05)
    return "done"


@tool
async def report(context: ToolContext) -> ToolResult:
    """Write a report."""
    context.progress("half of it", 0.5)
    return ToolResult({"length": 11}, frozen_map({"reported": True}), "a report of 11 characters")


class Greeter(AgentHook):
    """Adds a message before each step, and stops after the second call."""

    def before_step(self, state: AgentState) -> AgentState:
        return state.heard(system(f"Step {state.step_count + 1} begins"))

    def after_tool(self, state: AgentState, execution: ToolExecution) -> AgentState:
        seen = int(state.metadata.get("seen", 0)) + 1
        state = state.with_metadata({"seen": seen})
        if seen < 2:
            return state
        return state.with_stop_signal(StopSignal(StopReason.GUARD, "Seen enough", source="a hook"))


def a_payer(*script: Any) -> DefinitionBuilder:
    return an_agent(*(script or (PAY, "Paid")), tools=[tool(pay)]).with_approval("pay", "always")


async def answers(office: Office, execution: Execution) -> None:
    await office.until_waiting(execution)
    await execution.submit_input("Monday", by=APPROVER)
    await until_end(office, execution)


async def approves_and_edits(office: Office, execution: Execution) -> None:
    await office.until_waiting(execution)
    await execution.approve(by=APPROVER)
    await execution.edit({"amount": 6}, by=APPROVER)
    await until_end(office, execution)


async def denies(office: Office, execution: Execution) -> None:
    await office.until_waiting(execution)
    await execution.deny(reason="Too much")
    await execution.deny()
    await until_end(office, execution)


async def remembers(office: Office, execution: Execution) -> None:
    await office.until_waiting(execution)
    await execution.approve(remember=True, by=APPROVER)
    await execution.approve(by=APPROVER)
    await until_end(office, execution)


async def waits(office: Office, execution: Execution) -> None:
    await office.until_waiting(execution)


def held_model(office: Office) -> HeldModel:
    """The model of the agent, which waits for the test."""
    driver = office.agents[0].driver
    assert isinstance(driver, StepDriver)
    assert isinstance(driver.model, HeldModel)
    return driver.model


async def pauses(office: Office, execution: Execution) -> None:
    model = held_model(office)
    await model.begun.wait()
    await execution.pause()
    model.go_on.set()
    await office.until_waiting(execution)
    await execution.resume()
    await until_end(office, execution)


async def steers(office: Office, execution: Execution) -> None:
    model = held_model(office)
    await model.begun.wait()
    await execution.steer("Look at the harbour")
    await execution.steer("And at the ships")
    model.go_on.set()
    await until_end(office, execution)


async def cancels(office: Office, execution: Execution) -> None:
    model = held_model(office)
    await model.begun.wait()
    await execution.cancel()
    await until_end(office, execution)


async def raises_budget(office: Office, execution: Execution) -> None:
    await office.until_waiting(execution)
    await execution.raise_budget(steps=5, by=APPROVER)
    await until_end(office, execution)


async def raises_shared_budget(office: Office, execution: Execution) -> Execution:
    """The second execution of a session finds what the first one left."""
    await until_end(office, execution)
    second = await office.start("Again", session_id=execution.ref.session_id)
    await office.until_waiting(second)
    await second.raise_budget(steps=5, scope="session", by=APPROVER)
    await until_end(office, second)
    return second


async def raises_budget_of_the_tree(office: Office, execution: Execution) -> None:
    await office.until_waiting(execution)
    await execution.raise_budget(steps=9, by=APPROVER)
    await until_end(office, execution)


async def answers_the_child(office: Office, execution: Execution) -> None:
    await office.until_waiting(execution)
    for request in await execution.requests_of_all():
        await office.client.execution(request.ref.execution_id).submit_input("Blue", by=APPROVER)
    await until_end(office, execution)


def held(*script: Any, **given: Any) -> DefinitionBuilder:
    return an_agent(model=HeldModel(*script), tools=[look()], **given)


HELPER = AgentSpec("helper", "Helps", "You help.")


def boss(*prompts: str, talk: Talk) -> DefinitionBuilder:
    del prompts
    agent = an_agent(model=talk, tools=[look()]).with_name("boss")
    return agent.with_capability(UseSubagents(AgentSpecRegistry([HELPER])))


def spawns(*prompts: str) -> Any:
    return calls(*(("spawn_subagent", {"subagent": "helper", "prompt": each}) for each in prompts))


def decides(**decision: Any) -> Any:
    return says(json.dumps(decision))


def reacting() -> DefinitionBuilder:
    script = (
        decides(thought="Look", type="call_tool", tool="look", args={}),
        "This is no decision",
        decides(thought="Enough", type="final_answer", answer="A sea"),
    )
    driver = ReActDriver(ScriptedModel(*script), max_retries=1)
    return DefinitionBuilder.new().with_name("agent").with_driver(driver).with_tools([look()])


def compacting() -> DefinitionBuilder:
    model = NarrowModel(says("Done", Usage(9, 1)), window=ContextWindow(1000, 200))
    return an_agent(model=model).with_compaction()


LONG = [each for n in range(6) for each in (user(f"Message {n}: {WORDS}"), assistant(f"Answer {n}"))]


def asking(wait_seconds: float | None = None) -> DefinitionBuilder:
    question = calls(("user_input", {"prompt": "Which day?"}))
    return an_agent(question, "Booked").with_capability(UseUserInput(wait_seconds, "Sunday"))


def shelf() -> FakeToolset:
    return FakeToolset({"fetch": lambda _args, _context: {"book": 1}})


CASES: tuple[Case, ...] = (
    Case("an answer", lambda: an_agent("Hello")),
    Case("a tool", lambda: an_agent(LOOK, "A sea", tools=[look()])),
    Case("several calls at once", lambda: an_agent(calls(("look", {}), ("look", {})), "Two", tools=[look()])),
    Case(
        "calls one after the other",
        lambda: an_agent(calls(("look", {}), ("look", {})), "Two", tools=[look()]).with_parallel_tools(False),
    ),
    Case(
        "a quick tool",
        lambda: an_agent(
            LOOK, "Quick", tools=[MockTool("look", handler=lambda: 1, options=ToolOptions(quick=True))]
        ),
    ),
    Case(
        "a tool that fails, and a retry",
        lambda: an_agent(LOOK, "Sorry", tools=[broken()]).with_error_policy(RETRYING),
    ),
    Case(
        "a tool that fails the run",
        lambda: an_agent(LOOK, "Sorry", tools=[broken()]),
        status=ExecutionStatus.FAILED,
    ),
    Case(
        "arguments that are missing",
        lambda: an_agent(calls(("pay", {})), "Sorry", tools=[tool(pay)]).with_error_policy(FORGIVING),
    ),
    Case(
        "a tool that does not exist",
        lambda: an_agent(calls(("fly", {})), "Sorry", tools=[look()]).with_error_policy(FORGIVING),
    ),
    Case("a provider that is busy", lambda: an_agent(RateLimited("busy", 0.01), "Done")),
    Case(
        "a model that fails, and a retry",
        lambda: an_agent(ModelError("odd"), "Done").with_error_policy(ErrorPolicy.retry_all(2)),
    ),
    Case("a model that refuses", lambda: an_agent(ModelError("no")), status=ExecutionStatus.FAILED),
    Case("the limit of steps", lambda: an_agent(LOOK, LOOK, LOOK, tools=[look()]).with_max_steps(2)),
    Case(
        "the limit of tokens",
        lambda: an_agent(calls(("look", {}), usage=Usage(90, 20)), "Done", tools=[look()]).with_max_tokens(
            100
        ),
    ),
    Case(
        "the limit of time",
        lambda: an_agent(calls(("dawdle", {})), "Done", tools=[dawdle]).with_timeout(0.04),
    ),
    Case(
        "the limit of failures",
        lambda: (
            an_agent(LOOK, tools=[broken()])
            .with_error_policy(FORGIVING)
            .add_continuation_criteria(RetryLimit(2))
        ),
    ),
    Case(
        "a finish reason",
        lambda: an_agent(replace(says("Cut"), finish_reason="content_filter")).with_finish_reasons(
            "content_filter"
        ),
    ),
    Case(
        "a last turn without tools",
        lambda: (
            an_agent(LOOK, "That is all", tools=[look()]).with_max_steps(2).with_last_turn_without_tools()
        ),
    ),
    Case(
        "the same call again and again",
        lambda: an_agent(LOOK, LOOK, LOOK, LOOK, LOOK, tools=[look()]).with_repeated_call_limit(4),
    ),
    Case("a question with an answer", asking, answers),
    Case("a question without an answer", lambda: asking(0.05)),
    Case("an approval, and one with edited arguments", a_payer, approves_and_edits),
    Case("denied calls", a_payer, denies),
    Case("a remembered approval", lambda: a_payer(PAY, calls(("pay", {"amount": 9})), "Paid"), remembers),
    Case(
        "an approval that expires",
        lambda: an_agent(calls(("pay", {"amount": 5})), "Sorry", tools=[tool(pay)]).with_approval(
            "pay", "always", expires_after=0.1
        ),
    ),
    Case("a run that still waits", a_payer, waits, status=ExecutionStatus.PAUSED),
    Case("a pause", lambda: held(LOOK, "Done"), pauses),
    Case("steering", lambda: held("A sea", "Ships", "Done"), steers),
    Case("a cancel", lambda: held(LOOK, "Done"), cancels, status=ExecutionStatus.CANCELLED),
    Case(
        "a cancel in a later step",
        lambda: an_agent(model=HeldModel(LOOK, "Done", holds=2), tools=[look()]),
        cancels,
        status=ExecutionStatus.CANCELLED,
    ),
    Case("a subagent", lambda: boss(talk=Talk(boss=(spawns("Look"), "Thanks"), help=(LOOK, "A sea")))),
    Case(
        "two subagents at once",
        lambda: boss(talk=Talk(boss=(spawns("Look", "Listen"), "Thanks"), help=("Done",))),
    ),
    Case(
        "a subagent that asks",
        lambda: boss(
            talk=Talk(
                boss=(spawns("Ask"), "Thanks"), help=(calls(("user_input", {"prompt": "Which?"})), "Blue")
            )
        ).with_capability(UseUserInput()),
        answers_the_child,
    ),
    Case("a long conversation", compacting, message=[*LONG, user("And now?")]),
    Case(
        "a structured result, corrected once",
        lambda: (
            an_agent(LOOK, "Hm", calls(("final_result", {"city": "Oslo"})), tools=[look()])
            .with_output(Trip)
            .with_max_steps(10)
        ),
    ),
    Case(
        "a result that the request asks for",
        lambda: an_agent(calls(("final_result", {"city": "Oslo"}))),
        given=lambda: {"output": Trip},
    ),
    Case(
        "hooks",
        lambda: an_agent(LOOK, LOOK, LOOK, tools=[look()]).add_hook(Greeter()),
    ),
    Case(
        "a critic",
        lambda: an_agent(model=Critical(("Blue", "Blue and wide"), (REJECTED, APPROVED))).with_capability(
            UseSelfCritique()
        ),
    ),
    Case(
        "a list of tasks",
        lambda: an_agent(
            calls(
                ("todo_write", {"todos": [{"content": "Sow", "status": "pending", "activeForm": "Sowing"}]})
            ),
            "Sown",
        ).with_capability(UseTaskPlanning()),
    ),
    Case("a toolset", lambda: an_agent(calls(("fetch", {})), "A book").with_toolset(shelf())),
    Case("a tool with a text of its own", lambda: an_agent(calls(("report", {})), "Here", tools=[report])),
    Case("decisions in JSON", reacting),
    Case("a budget of steps", lambda: an_agent(LOOK, LOOK, LOOK, tools=[look()]).with_budget(steps=2)),
    Case(
        "a budget that is raised",
        lambda: an_agent(LOOK, LOOK, "Done", tools=[look()]).with_budget(steps=1, on_exhausted="ask"),
        raises_budget,
    ),
    Case(
        "a budget of a session that is raised",
        lambda: an_agent(LOOK, "Seen", LOOK, "Seen again", tools=[look()]).with_budget(
            steps=3, scope="session", on_exhausted="ask"
        ),
        raises_shared_budget,
        given=lambda: {"session_id": uuid4()},
    ),
    Case(
        "a budget shared with a subagent that is raised",
        lambda: boss(talk=Talk(boss=(spawns("Look"), "Thanks"), help=(LOOK, "A sea"))).with_budget(
            steps=2, on_exhausted="ask"
        ),
        raises_budget_of_the_tree,
    ),
    Case("steering before the first step", lambda: an_agent("A harbour"), early=steers_early),
    Case(
        "metadata and a user",
        lambda: an_agent(LOOK, "Done", tools=[look()]),
        given=lambda: {"metadata": {"order": 7}, "user_id": "ann"},
    ),
)
