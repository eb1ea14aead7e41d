"""What users may get wrong around an in-process run, and how they are told."""

import threading
from collections.abc import Callable

import pytest

from agent_domain.drivers import ToolCallingDriver
from agent_domain.errors import InvalidInput
from agent_domain.events import AgentFinished, Event, EventBus
from agent_domain.state import AgentState
from agent_domain.status import AgentStatus
from agent_domain.testing import DeterministicAgentDriver, MockTool, ScriptedModel, calls, says
from tests.everstep.local.local_words import WorkClock, a_runner

ELSEWHERE: list[Callable[[AgentState], AgentState]] = [
    lambda state: state.with_user_message("and another thing"),
    lambda state: state.for_continuation(),
    lambda _state: AgentState.empty(),
]


@pytest.mark.parametrize("process", ELSEWHERE)
async def test_a_processor_cannot_slip_in_another_execution(
    process: Callable[[AgentState], AgentState],
) -> None:
    """4.5.4: it becomes a failure step that says what to change."""
    driver = DeterministicAgentDriver.from_responses("done")

    state = await a_runner(driver, lambda b: b.add_processor(process)).run(
        AgentState.empty().with_messages("Go")
    )

    assert state.status is AgentStatus.FAILED
    assert "returned a state of another execution" in state.steps[-1].errors_as_text


async def test_an_old_session_has_a_next_step() -> None:
    """2.7, 4.5.3: the wall clock starts with the first step, not with the session."""
    clock = WorkClock()
    runner = a_runner(DeterministicAgentDriver.from_responses("one", "two"), clock=clock)
    ended = await runner.run(AgentState.empty().with_messages("Go"))
    clock.works(301)

    asked = ended.with_user_message("Again")

    assert runner.has_next_step(asked)
    assert (await runner.next_step(asked)).step_count == 1


async def test_blocking_tools_do_not_wait_for_each_other() -> None:
    """5.4.1: however many calls a response makes, and however few cores there are."""
    together = threading.Barrier(40, timeout=20)

    def meet(seat: int) -> str:
        del seat
        return "met" if together.wait() >= 0 else "alone"

    model = ScriptedModel(calls(*(("meet", {"seat": number}) for number in range(40))), says("done"))
    runner = a_runner(ToolCallingDriver(model), lambda b: b.with_tools([MockTool("meet", handler=meet)]))

    state = await runner.run(AgentState.empty().with_messages("Go"))

    assert [execution.result for execution in state.steps[0].tool_executions] == ["met"] * 40


async def unawaited(event: Event) -> None:
    """A listener that nobody would ever await."""
    del event


def test_a_listener_that_would_have_to_be_awaited_is_refused() -> None:
    with pytest.raises(InvalidInput, match=r"make .* a plain function"):
        EventBus().wiretap(unawaited)


def test_only_classes_of_events_can_be_listened_to() -> None:
    with pytest.raises(InvalidInput, match="on_event takes a class of events, not 'AgentFinished'"):
        EventBus().on_event("AgentFinished", print)  # type: ignore[call-overload]
    EventBus().on_event(AgentFinished, print)


def test_a_state_is_shown_in_one_line() -> None:
    state = AgentState.empty().with_messages("x" * 10_000)

    assert len(repr(state)) < 100
