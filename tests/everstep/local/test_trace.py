"""The trace of a run, in text for people."""

from collections.abc import Callable

from everstep.agent_domain.agents.builder import DefinitionBuilder
from everstep.agent_domain.agents.drivers import ToolCallingDriver
from everstep.agent_domain.loop.status import StopReason
from everstep.agent_domain.loop.stop_signal import StopSignal
from everstep.agent_domain.testing import MockTool
from everstep.local.trace import Trace
from tests.everstep.local.local_words import (
    OwnDriver,
    Script,
    a_call_response,
    a_conversation,
    a_runner,
    step_with_text,
)


async def trace_of(driver: object, build: Callable[[DefinitionBuilder], object] | None = None) -> list[str]:
    lines = list[str]()

    def listening(builder: DefinitionBuilder) -> None:
        builder.with_tools([MockTool.returning("look", "Looks", "seen")])
        if build:
            build(builder)

    runner = a_runner(driver, listening)
    runner.events.wiretap(Trace(lines.append))
    await runner.run(a_conversation())
    return lines


async def test_a_run_is_printed_line_by_line() -> None:
    """4.6.3: the model's text, the calls, and why the run continued or stopped."""
    lines = await trace_of(ToolCallingDriver(Script(a_call_response("look", text="I look"), "Done")))
    assert lines[:5] == [
        "step 1",
        "  model   I look",
        "  tool    look() -> seen  [0 ms]",
        "  next    another step: " + lines[3].split(": ", 1)[1],
        "step 2",
    ]
    assert lines[5] == "  model   Done"
    assert lines[6].startswith("stop      completed, decided by ")
    assert lines[-1] == "ended     completed after 2 steps, 0 tokens"


async def test_an_answer_that_was_not_streamed_is_printed_once_it_is_known() -> None:
    """4.6.3."""
    lines = await trace_of(OwnDriver(step_with_text("Done")))
    assert lines[:2] == ["step 1", "  model   Done"]
    assert lines[2].startswith("stop ")


async def test_a_failed_step_is_printed() -> None:
    """4.6.3: a step that failed has no answer."""
    lines = await trace_of(ToolCallingDriver(Script(RuntimeError("boom"))))
    assert lines[:2] == ["step 1", "  error   boom"]
    assert "failed    boom" in lines
    assert not any(line.startswith("  model") for line in lines)


async def test_a_failed_tool_is_printed_with_its_error() -> None:
    """4.6.3."""
    lines = await trace_of(ToolCallingDriver(Script(a_call_response("find"))))
    assert lines[1] == "  tool    find() -> Error: No tool named 'find'. Choose from: look  [0 ms]"


async def test_a_run_without_steps_prints_no_answer() -> None:
    """4.6.3."""
    lines = await trace_of(OwnDriver(step_with_text("Done")), lambda builder: builder.with_max_steps(0))
    assert lines[0].startswith("stop      steps_limit")
    assert lines[-1] == "ended     completed after 0 steps, 0 tokens"


async def test_a_signal_is_printed_as_the_reason_of_a_failed_run() -> None:
    """2.4.2, 4.6.3."""
    signal = StopSignal(StopReason.ERROR, "disk is full")
    lines = await trace_of(
        OwnDriver(step_with_text("Done")),
        lambda b: b.add_processor(lambda state: state.with_stop_signal(signal)),
    )
    assert "failed    disk is full" in lines
