"""Executions while tools, models, workers and the store fail."""

import asyncio
import re
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any, cast
from uuid import uuid4

import pytest
import pytest_asyncio
from temporalio.client import Client as TemporalClient
from temporalio.common import RetryPolicy

from everstep.activities.failpoints import Failpoint, inert
from everstep.activities.tool_runner import EFFECT_UNKNOWN
from everstep.agent_domain.agents.builder import DefinitionBuilder
from everstep.agent_domain.agents.definition import AgentDefinition
from everstep.agent_domain.agents.drivers import Model, OnText
from everstep.agent_domain.errors import (
    InvalidInput,
    ModelError,
    ModelTimeout,
    ModelUnavailable,
    RateLimited,
    StoreUnavailable,
    ToolFailed,
)
from everstep.agent_domain.ids import ExecutionRef
from everstep.agent_domain.loop.error_policy import ErrorPolicy
from everstep.agent_domain.loop.status import AgentStatus, ExecutionStatus, StopReason
from everstep.agent_domain.loop.step_error import ErrorType
from everstep.agent_domain.loop.usage import Usage
from everstep.agent_domain.messages.cached_context import InferenceRequest
from everstep.agent_domain.state.state import AgentState
from everstep.agent_domain.state.steps import InferenceResponse
from everstep.agent_domain.storage.steps import StepRow
from everstep.agent_domain.testing import MockTool, calls
from everstep.agent_domain.tools.tools import Effect, ToolOptions
from everstep.agent_domain.values import EMPTY
from everstep.inference.scripted import ScenarioModel, Script, ScriptedCall, ScriptedTurn
from everstep.local.runner import LocalRunner
from everstep.runtime.agents import AgentBook
from everstep.runtime.worker import make_worker
from everstep.steps import tool_calls
from everstep.workflows.activity_options import TOOL
from everstep.workflows.contracts import ExecutionResult, workflow_id
from tests.services import Servers
from tests.workflows.failpoints import FORGIVING, FailpointStrike, errors, results
from tests.workflows.harness import (
    Office,
    an_agent,
    an_office,
    at_work,
    connect_temporal,
    events_of,
    fail_activity,
    final_result,
    of_type,
    scheduled_activities,
    seconds_between,
)


def raises(error: BaseException) -> Callable[..., Any]:
    def handler(**_args: object) -> None:
        raise error

    return handler


async def gives_itself_up() -> None:
    raise asyncio.CancelledError


class Burst(BaseException):
    """An exception like that of `pytest.fail`."""


async def bursts() -> None:
    raise Burst("like a bubble")


UNSTORABLE = "the result of {name} is of type object, which cannot be stored as JSON; "
TOO_LARGE = "return at most 5,000,000, or attach a file"

BAD_TOOLS: dict[str, tuple[Callable[..., Any], str]] = {
    "told": (raises(ToolFailed("It is closed")), "It is closed"),
    "raised": (raises(ValueError("bad value")), "bad value"),
    "wordless": (raises(KeyError()), "KeyError"),
    "stops": (raises(StopIteration()), "the tool '{name}' raised StopIteration"),
    "exits": (raises(SystemExit("I quit")), "I quit"),
    "cancels": (gives_itself_up, "CancelledError"),
    "closes": (raises(GeneratorExit()), "GeneratorExit"),
    "interrupts": (raises(KeyboardInterrupt("now")), "now"),
    "bursts": (raises(Burst("like a bubble")), "like a bubble"),
    "bursts_later": (bursts, "like a bubble"),
    "odd": (object, UNSTORABLE + "return text, numbers, lists, maps, a dataclass or a pydantic model"),
    "nan": (lambda: float("nan"), "the result of {name} is nan, which JSON cannot hold; use null or text"),
    "nul": (lambda: "a\0b", "the result of {name} contains a NUL character; remove it"),
    "huge": (lambda: "r" * 5_000_001, "the result of {name} has 5,000,001 characters; " + TOO_LARGE),
    "long_list": (lambda: [1] * 2_500_000, "the result of {name} has 5,000,001 characters; " + TOO_LARGE),
    "loud": (raises(RuntimeError("e" * 20_001)), "e" * 20_000 + "..."),
}


class TestToolsThatFail:
    async def test_the_model_reads_every_exception_of_a_tool(self, temporal: TemporalClient) -> None:
        """5.4.3, 5.4.7: an exception in a tool is a failure with its message; the worker survives."""
        names = [*BAD_TOOLS, *(f"quick_{name}" for name in BAD_TOOLS)]
        handlers = [handler for handler, _ in BAD_TOOLS.values()] * 2
        tools = [
            MockTool(name, handler=handler, options=ToolOptions(quick=name.startswith("quick")))
            for name, handler in zip(names, handlers, strict=True)
        ]
        script = calls(*((name, EMPTY) for name in names))
        agent = an_agent(script, "Done", tools=tools)
        async with at_work(temporal, agent.with_error_policy(FORGIVING)) as office:
            execution, result = await office.run()

            texts = [text for _, text in BAD_TOOLS.values()] * 2
            assert await results(execution) == [
                f"Error: {text.format(name=name)}" for name, text in zip(names, texts, strict=True)
            ]
            assert await errors(execution) == [(None, name) for name in names]
        assert (result.status, result.steps) == (AgentStatus.COMPLETED, 2)
        assert [len(bad.calls) for bad in tools] == [1] * len(tools)

    @pytest.mark.parametrize("error", [Burst, SystemExit, asyncio.CancelledError])
    async def test_a_model_that_raises_a_base_exception_is_a_failure_step(
        self, temporal: TemporalClient, error: type[BaseException]
    ) -> None:
        """4.3.4, 4.5.4: never a workflow whose activity is retried without end."""

        class Bursting:
            async def respond(self, request: InferenceRequest, on_text: OnText) -> InferenceResponse:
                raise error("at once")

        async with at_work(temporal, an_agent(model=Bursting())) as office:
            execution, result = await office.run()
            (step,) = await execution.steps()

        assert [failure.message for failure in step.errors] == [f"{error.__name__}: at once"]
        assert (result.status, result.stop_reason) == (AgentStatus.FAILED, StopReason.ERROR)

    async def test_as_many_calls_as_can_be_recorded_are_run_and_more_are_a_failure_step(
        self, temporal: TemporalClient
    ) -> None:
        """5.4.6"""
        longest = MockTool("t" * 64, handler=lambda: 1, options=ToolOptions(quick=True))
        wanted = [(longest.name, EMPTY)]
        most, more = calls(*wanted * 256), calls(*wanted * 257)
        async with at_work(temporal, an_agent(most, more, tools=[longest])) as office:
            execution, result = await office.run()
            assert "257 tool calls" in str((await execution.get()).error_message)
        assert (result.status, result.steps, len(longest.calls)) == (AgentStatus.FAILED, 2, 256)

    async def test_the_error_of_a_tool_is_the_error_of_the_execution(self, temporal: TemporalClient) -> None:
        """8.2.3: a failure sets `error_message`."""
        bad = MockTool("bad", handler=raises(ToolFailed("It is closed")))
        async with at_work(temporal, an_agent(calls(("bad", {})), tools=[bad])) as office:
            execution, result = await office.run()

            assert (await execution.get()).error_message == "It is closed"
        assert (result.status, result.stop_reason) == (AgentStatus.FAILED, StopReason.ERROR)

    @pytest.mark.parametrize("name", ["fail", "time out"])
    async def test_a_failed_activity_of_a_tool_is_a_tool_error(
        self, temporal: TemporalClient, monkeypatch: pytest.MonkeyPatch, name: str
    ) -> None:
        """1.1.7, 3.4.1: the policy retries it, as it does other errors of tools."""
        is_begun = asyncio.Event()

        async def waits() -> None:
            is_begun.set()
            await asyncio.Event().wait()

        if name == "time out":
            once = RetryPolicy(maximum_attempts=1)
            monkeypatch.setitem(TOOL, "retry_policy", once)
            monkeypatch.setitem(TOOL, "start_to_close_timeout", timedelta(seconds=0.3))
        tools = [MockTool("look"), MockTool("hangs", handler=waits)]
        agent = an_agent(calls(("look", {}), ("hangs", {})), "Done", tools=tools)
        async with at_work(temporal, agent.with_error_policy(ErrorPolicy.retry_tool_errors())) as office:
            execution = await office.start()
            await is_begun.wait()
            if name == "fail":
                await fail_activity(execution, "3")
            result = await final_result(execution)
            step, _ = (await execution.because()).steps

            assert await errors(execution) == [(ErrorType.TOOL, "hangs")]
        assert result.status is AgentStatus.COMPLETED
        assert step.sentence.startswith("retried: tool error in hangs: ")

    async def test_a_hanging_tool_is_abandoned_at_its_timeout(self, temporal: TemporalClient) -> None:
        """3.4.2: a timeout, whether it waits in the loop or blocks a thread."""
        over = threading.Event()

        async def waits() -> None:
            await asyncio.Event().wait()

        limited = ToolOptions(timeout_seconds=0.05)
        waiting = MockTool("waiting", handler=waits, options=limited)
        blocking = MockTool("blocking", handler=over.wait, options=limited)
        agent = an_agent(calls(("waiting", {}), ("blocking", {})), "Done", tools=[waiting, blocking])
        async with at_work(temporal, agent) as office:
            execution, result = await office.run()
            over.set()

            assert await results(execution) == [
                "Error: The tool 'waiting' did not finish within 0.05s",
                "Error: The tool 'blocking' did not finish within 0.05s",
            ]
            assert await errors(execution) == [
                (ErrorType.TIMEOUT, "waiting"),
                (ErrorType.TIMEOUT, "blocking"),
            ]
        assert (result.status, result.stop_reason) == (AgentStatus.FAILED, StopReason.ERROR)

    async def test_a_slow_quick_tool_has_failed(
        self, temporal: TemporalClient, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """1.1.3: Temporal would time the attempt out and retry it without end."""
        monkeypatch.setattr(tool_calls, "QUICK_SECONDS", 0.05)

        async def waits() -> None:
            await asyncio.Event().wait()

        slow = MockTool("slow", handler=waits, options=ToolOptions(quick=True, timeout_seconds=60))
        async with at_work(temporal, an_agent(calls(("slow", {})), tools=[slow])) as office:
            execution, _ = await office.run()

            assert await results(execution) == ["Error: The tool 'slow' did not finish within 0.05s"]


@dataclass(frozen=True)
class StruckAttempt:
    """The failpoint of the first attempt, and the outcome."""

    at: Failpoint
    did: int
    """The number of model calls or tool runs."""
    effect: Effect = Effect.IDEMPOTENT
    quick: bool = False
    is_unknown: bool = False

    def __str__(self) -> str:
        return f"{self.at}-{self.effect}-{'quick' if self.quick else 'regular'}"


MODEL_ATTEMPTS = [
    StruckAttempt(Failpoint.INFER_BEFORE_MODEL, 1),
    StruckAttempt(Failpoint.INFER_AFTER_RESPONSE, 2),
    StruckAttempt(Failpoint.INFER_BEFORE_REPORT, 1),
]
TOOL_ATTEMPTS = [
    replace(attempt, quick=quick)
    for quick in (False, True)
    for attempt in (
        StruckAttempt(Failpoint.TOOL_AFTER_RESERVE, 1),
        StruckAttempt(Failpoint.TOOL_AFTER_EFFECT, 2),
        StruckAttempt(Failpoint.TOOL_BEFORE_REPORT, 1),
        StruckAttempt(Failpoint.TOOL_AFTER_RESERVE, 0, Effect.AT_MOST_ONCE, is_unknown=True),
        StruckAttempt(Failpoint.TOOL_AFTER_EFFECT, 1, Effect.AT_MOST_ONCE, is_unknown=True),
        StruckAttempt(Failpoint.TOOL_BEFORE_REPORT, 1, Effect.AT_MOST_ONCE),
    )
]


@dataclass(frozen=True)
class StruckRun:
    """The result of an execution that was struck."""

    did: int
    said: list[str]
    envelopes: list[str]
    errors: list[tuple[str | None, str | None]]
    result: ExecutionResult


@pytest_asyncio.fixture(
    scope="module", loop_scope="module", params=[0.0, 60.0], ids=["announced", "over at once"]
)
async def struck_runs(services: Servers, request: pytest.FixtureRequest) -> Mapping[StruckAttempt, StruckRun]:
    """All of them, in parallel; beginnings are stored at once, or together with the outcome."""
    attempts = [*MODEL_ATTEMPTS, *TOOL_ATTEMPTS]
    tools = {
        struck: MockTool(
            "work", handler=lambda: "worked", options=ToolOptions(effect=struck.effect, quick=struck.quick)
        )
        for struck in attempts
    }
    scripts = {struck: [] if struck in MODEL_ATTEMPTS else [calls(("work", {}))] for struck in attempts}
    agents = [an_agent(*scripts[s], "Done", tools=[tools[s]]).with_name(str(s)) for s in attempts]
    lightning = FailpointStrike()

    async def run(office: Office, struck: StruckAttempt, agent: AgentDefinition) -> StruckRun:
        id_, driver = uuid4(), cast("Any", agent.driver)
        lightning.each[workflow_id(ExecutionRef(id_))] = struck.at
        execution, result = await office.run(agent=str(struck), execution_id=id_)
        return StruckRun(
            len(driver.model.requests) if struck in MODEL_ATTEMPTS else len(tools[struck].calls),
            await office.conversation(execution),
            await office.envelope_types(execution),
            await errors(execution),
            result,
        )

    forgiving = [agent.with_error_policy(FORGIVING) for agent in agents]
    async with at_work(
        await connect_temporal(services), *forgiving, strike=lightning, moment=request.param
    ) as office:
        running = (run(office, *each) for each in zip(attempts, office.agents, strict=True))
        return dict(zip(attempts, await asyncio.gather(*running), strict=True))


class TestSecondAttempts:
    """A worker's death is simulated by an attempt that ends at that point."""

    @pytest.mark.parametrize("struck", MODEL_ATTEMPTS, ids=str)
    def test_a_recorded_reply_is_not_requested_again(
        self, struck_runs: Mapping[StruckAttempt, StruckRun], struck: StruckAttempt
    ) -> None:
        """1.1.1, 1.1.3: the second attempt returns the reply that the first one recorded; viewers get it
        once.
        """
        known = struck_runs[struck]

        assert known.did == struck.did
        assert known.said == ["Go", "Done"]
        void = "agent.attempt.superseded"
        assert [kind for kind in known.envelopes if kind != void] == [
            "agent.status",
            "agent.step.started",
            "agent.step.completed",
            "agent.status",
        ]
        # The text of the first attempt is withdrawn, unless its reply is recorded.
        assert (void in known.envelopes) is (struck.at is not Failpoint.INFER_BEFORE_REPORT)
        assert (known.result.status, known.result.steps) == (AgentStatus.COMPLETED, 1)

    @pytest.mark.parametrize("struck", TOOL_ATTEMPTS, ids=str)
    def test_a_call_has_one_result_after_any_failure_of_its_first_attempt(
        self, struck_runs: Mapping[StruckAttempt, StruckRun], struck: StruckAttempt
    ) -> None:
        """1.1.3: an idempotent tool runs again; the effect of another one is reported as unknown."""
        known = struck_runs[struck]

        assert known.did == struck.did
        assert known.said == ["Go", "", f"Error: {EFFECT_UNKNOWN}" if struck.is_unknown else "worked", "Done"]
        assert known.errors == ([(ErrorType.UNKNOWN, "work")] if struck.is_unknown else [])
        assert [kind for kind in known.envelopes if kind.startswith("agent.tool")] == [
            "agent.tool.started",
            "agent.tool.completed",
        ]
        assert (known.result.status, known.result.steps) == (AgentStatus.COMPLETED, 2)

    @pytest.mark.parametrize("quick", [False, True], ids=["regular", "quick"])
    @pytest.mark.parametrize("preset", ["stop_on_any_error", "retry_tool_errors", "retry_all"])
    async def test_an_unknown_effect_is_a_tool_error(
        self, temporal: TemporalClient, preset: str, quick: bool
    ) -> None:
        """3.4.4: retrying policies pass it to the model, the default ends the execution."""
        pay = MockTool("pay", options=ToolOptions(effect=Effect.AT_MOST_ONCE, quick=quick))
        agent = an_agent(calls(("pay", {})), "I look first.", tools=[pay])
        agent = agent.with_error_policy(ErrorPolicy.named(preset))
        async with at_work(temporal, agent, strike=FailpointStrike(Failpoint.TOOL_AFTER_EFFECT)) as office:
            execution, result = await office.run()
            said = await office.conversation(execution)

        passed_on = preset != "stop_on_any_error"
        unknown = f"Error: {EFFECT_UNKNOWN}"
        assert said == (["Go", "", unknown, "I look first."] if passed_on else ["Go", "", unknown])
        assert result.status is (AgentStatus.COMPLETED if passed_on else AgentStatus.FAILED)
        assert len(pay.calls) == 1

    async def test_an_end_that_could_not_be_stored_is_stored_later(self, temporal: TemporalClient) -> None:
        """8.2.3: the final state is always stored, once."""
        async with at_work(
            temporal, an_agent("Done"), strike=FailpointStrike(Failpoint.SETTLE_BEFORE_COMMIT)
        ) as office:
            execution, _ = await office.run()

            assert (await execution.get()).status is ExecutionStatus.COMPLETED
            assert await office.statuses(execution) == ["processing", "completed"]

    async def test_a_store_that_is_away_for_a_while_delays_and_doubles_nothing(
        self, temporal: TemporalClient
    ) -> None:
        """1.1.3: for a failure of any write."""
        script = Script.of(ScriptedTurn(calls=(ScriptedCall(name="work"),)), "Done")
        agent = an_agent(model=ScenarioModel(script), tools=[MockTool("work")])
        async with at_work(temporal, agent) as office:
            for method in ("begin_step", "preview_step", "record_reply", "record_call", "settle"):
                office.store.fail_next(method, StoreUnavailable("connection refused"))
            execution, result = await office.run()

            assert await office.conversation(execution) == ["Go", "", "null", "Done"]
        assert (result.status, result.steps) == (AgentStatus.COMPLETED, 2)

    async def test_a_call_is_read_only_by_a_process_that_did_not_record_it(
        self, temporal: TemporalClient
    ) -> None:
        """1.1.3: a process runs the calls that it has just recorded without reading them."""
        script = Script.of(ScriptedTurn(calls=(ScriptedCall(name="work"),)), "Done")
        agent = an_agent(model=ScenarioModel(script), tools=[MockTool("work")])
        async with at_work(temporal, agent) as office:
            office.store.fail_next("preview_call", StoreUnavailable("connection refused"))
            execution, _ = await office.run()
            assert await office.conversation(execution) == ["Go", "", "null", "Done"]
            # No read happened; the next one would have been refused.
            with pytest.raises(StoreUnavailable):
                await office.store.preview_call(execution.ref, "c1")


def judged_as(step: StepRow) -> str:
    """The error type that the error policy saw in the evaluation after the step."""
    votes = step.outcome["evaluations"] if step.outcome else ()
    return next(v["context"]["errorType"] for v in votes if v["criterion"] == "ErrorPolicyCriterion")


class TestModelsThatFail:
    async def test_a_busy_provider_is_retried_when_it_asks_for_it(self, temporal: TemporalClient) -> None:
        """3.5.1: in one step, waiting at least as long as `Retry-After` said."""
        agent = an_agent(RateLimited("busy", 0.3), ModelUnavailable("away", 0.01), "Done")
        async with at_work(temporal, agent) as office:
            execution, result = await office.run()
            events = await events_of(execution)

        (asked, _), (began,) = (
            scheduled_activities(events, "infer")[0],
            of_type(events, "ACTIVITY_TASK_STARTED"),
        )
        attempt = began.activity_task_started_event_attributes
        assert (result.status, result.steps) == (AgentStatus.COMPLETED, 1)
        assert attempt.attempt == 3
        assert attempt.last_failure.application_failure_info.type == "ModelUnavailable"
        assert re.fullmatch(r"provider unavailable, next attempt in [12] s", attempt.last_failure.message)
        delay = attempt.last_failure.application_failure_info.next_retry_delay
        assert timedelta(seconds=1) <= delay.ToTimedelta() <= timedelta(seconds=2)
        assert seconds_between(asked, began) >= 0.5 + 1

    async def test_the_wait_for_a_provider_is_visible(self, temporal: TemporalClient) -> None:
        """3.5.5: in the step, to viewers, and without the provider's words."""
        agent = an_agent(ModelUnavailable("10.0.0.3 is down", 1.2), "Done")
        async with at_work(temporal, agent) as office:
            execution = await office.start()

            async def waits() -> bool:
                return any(step.waits for step in await execution.steps())

            await office.store.until(waits)
            (step,) = await execution.steps()
            await final_result(execution)
            (after,) = await execution.steps()
            envelopes = await office.store.envelopes(execution.ref.tenant_id, execution.ref.stream_id)

        assert step.waits
        assert step.waits.told == "provider unavailable, next attempt in 1 s"
        assert step.waits.error == "10.0.0.3 is down"
        assert (step.waits.until - step.waits.since).total_seconds() >= 1.2
        assert after.waits is None
        (delayed,) = [e.payload for e in envelopes if "detail" in e.payload]
        assert delayed["status"] == delayed["previous_status"] == "processing"
        assert delayed["detail"] == step.waits.told
        assert "10.0.0.3" not in str(delayed)
        assert [e.payload["status"] for e in envelopes if e.type == "agent.status"] == [
            "processing",
            "processing",
            "completed",
        ]

    async def test_the_time_is_limited(self, temporal: TemporalClient) -> None:
        """3.5.4: by the agent, by its plan; a wait that does not fit ends the step at once."""
        away, late = ModelUnavailable("away"), RateLimited("busy", 600)
        agents = [
            an_agent(away).with_name("none").with_retry_budget(0),
            an_agent(away).with_name("short").with_retry_budget(1.5),
            an_agent(late).with_name("late").with_retry_budget(60),
        ]
        async with at_work(temporal, *agents) as office:
            ran = await asyncio.gather(*(office.run(agent=name) for name in ("none", "short", "late")))
            rows = [await execution.get() for execution, _ in ran]
            asked = [len(cast("Any", agent.driver).model.requests) for agent in office.agents]

        assert {result.status for _, result in ran} == {AgentStatus.FAILED}
        assert (asked[0], asked[2]) == (1, 1)
        assert 2 <= asked[1] <= 4
        assert rows[0].error_message == "away. Given up after 1 try: the retry budget of 0 s is used up"
        assert rows[2].error_message == (
            "busy. The provider asks to wait 600 s, more than the 60 s that the retry budget of 60 s leaves"
        )

    async def test_a_model_without_a_key_ends_the_step_at_once_with_its_sentence(
        self, temporal: TemporalClient
    ) -> None:
        """3.5.2: in the row, and in Temporal, where no other error has a text."""

        class Keyless:
            def model(self, wanted: object = None) -> Model:
                del wanted
                raise InvalidInput("preset 'openai' needs a key; set OPENAI_API_KEY")

        agent = DefinitionBuilder.new().with_name("agent").definition()
        office = an_office(temporal, agent)
        book = AgentBook([agent], Keyless())
        async with make_worker(temporal, office.port, book, office.settings, inert, bus=office.bus):
            execution, result = await office.run()
            row, (step,) = await execution.get(), await execution.steps()
            details = await execution.workflow.query("__temporal_workflow_metadata")

        sentence = "preset 'openai' needs a key; set OPENAI_API_KEY"
        assert (result.status, result.steps, step.attempt) == (AgentStatus.FAILED, 1, 1)
        assert row.error_message == sentence
        assert sentence in details.current_details

    async def test_the_number_of_attempts_is_limited(self, temporal: TemporalClient) -> None:
        """3.5.1: up to `with_max_retries(n)` attempts in all, one for n of 1 or less."""
        limits = [-1, 0, 1, 2]
        busy = RateLimited("busy", 0.01)
        agents = [an_agent(busy).with_name(str(n)).with_max_retries(n) for n in limits]
        async with at_work(temporal, *agents) as office:
            ran = await asyncio.gather(*(office.run(agent=str(n)) for n in limits))
            drivers: list[Any] = [agent.driver for agent in office.agents]

            assert [len(driver.model.requests) for driver in drivers] == [1, 1, 1, 2]
            for execution, result in ran:
                assert (result.status, result.stop_reason) == (AgentStatus.FAILED, StopReason.ERROR)
                assert await errors(execution) == [(ErrorType.RATE_LIMIT, None)]
                assert (await execution.get()).error_message == "busy"

    async def test_the_error_policy_judges_the_last_failure(self, temporal: TemporalClient) -> None:
        """3.5.1, 3.5.2: a step error of that type, which a policy may forgive; another step follows."""
        failures: dict[Exception, str] = {
            RateLimited("busy"): "rate_limit",
            ModelTimeout("slow"): "timeout",
            ModelUnavailable("away"): "model",
            ModelError("refused"): "model",
            ValueError("a bug in the driver"): "model",
        }
        policy = ErrorPolicy.retry_all(2)
        agents = [
            an_agent(error, "Done").with_name(str(error)).with_max_retries(1).with_error_policy(policy)
            for error in failures
        ]
        async with at_work(temporal, *agents) as office:
            ran = await asyncio.gather(*(office.run(agent=str(error)) for error in failures))
            steps = [await execution.steps() for execution, _ in ran]

        assert {(result.status, result.steps) for _, result in ran} == {(AgentStatus.COMPLETED, 2)}
        assert [judged_as(failed) for failed, _ in steps] == list(failures.values())
        assert [[e.message for e in failed.errors] for failed, _ in steps] == [[str(e)] for e in failures]
        assert [(failed.messages, after.errors) for failed, after in steps] == [((), ())] * len(failures)

    async def test_a_permanent_error_is_not_retried(self, temporal: TemporalClient) -> None:
        """3.5.2: a refused request becomes a step error at once."""
        async with at_work(temporal, an_agent(ModelError("too long"), "Done")) as office:
            _, result = await office.run()
            driver: Any = office.agents[0].driver

            assert len(driver.model.requests) == 1
        assert result.stop_reason is StopReason.ERROR

    async def test_crashes_do_not_count_as_failures_of_the_model(self, temporal: TemporalClient) -> None:
        """3.5.1: attempts that died are not counted among those that the provider refused."""
        agent = an_agent(RateLimited("busy", 0.01), "Done").with_max_retries(2)
        async with at_work(temporal, agent, strike=FailpointStrike(Failpoint.INFER_BEFORE_MODEL)) as office:
            _, result = await office.run()

        assert (result.status, result.steps) == (AgentStatus.COMPLETED, 1)

    async def test_a_reply_that_no_store_can_hold_is_an_error_of_the_step(
        self, temporal: TemporalClient
    ) -> None:
        """3.4.2: and is not paid for again and again."""
        async with at_work(temporal, an_agent("a\0b")) as office:
            _, result = await office.run()
            driver: Any = office.agents[0].driver

            assert len(driver.model.requests) == 1
        assert (result.status, result.stop_reason) == (AgentStatus.FAILED, StopReason.ERROR)


@pytest.mark.parametrize("is_quick", [False, True])
@pytest.mark.parametrize("policy", [ErrorPolicy(), ErrorPolicy.retry_all(3)], ids=["stop", "retry"])
async def test_the_failure_of_a_tool_may_end_its_step_in_every_shell(
    temporal: TemporalClient, policy: ErrorPolicy, is_quick: bool
) -> None:
    """5.4.3, 1.1.6: a failure step, after all calls of the reply have their results."""

    def fails(**_args: object) -> None:
        raise ToolFailed("out of paper")

    def a_printing_agent() -> DefinitionBuilder:
        options = ToolOptions(quick=is_quick)
        tools = [MockTool("look", options=options), MockTool("print", handler=fails, options=options)]
        # Quick calls run first, and their failure ends the step before others begin.
        names = ["look", "print"] if is_quick else ["look", "print", "missing"]
        script = calls(*((name, EMPTY) for name in names), usage=Usage(10, 5))
        return an_agent(script, "Done", tools=tools).with_throw_on_tool_failure().with_error_policy(policy)

    async with at_work(temporal, a_printing_agent()) as office:
        execution, result = await office.run()
        said, steps = await office.conversation(execution), await execution.steps()
    state = await LocalRunner(a_printing_agent().definition()).run(AgentState.empty().with_messages("Go"))

    assert said == [message.text for message in state.messages]
    assert "Error: out of paper" in said
    assert (result.status, result.steps, result.usage) == (state.status, state.step_count, state.usage)
    assert result.usage == Usage(10, 5)
    assert steps[0].facts is not None
    for failed in (steps[0].facts, state.steps[0]):
        assert failed.is_failure
        assert [error.exception for error in failed.errors] == ["ToolFailed"]
    assert [error.message for error in steps[0].errors] == [
        "a tool failed; the error of its call has the details"
    ]
    assert [error.message for error in state.steps[0].errors] == ["print: out of paper"]
