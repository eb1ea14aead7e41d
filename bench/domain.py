"""Measures the cost of decisions, as ratios within one interleaved run; fails if one is too high.

python bench/domain.py [--rounds N]
"""

import argparse
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from uuid import UUID

from figures import line, mark

from everstep.agent_domain.agents.plan import ExecutionPlan
from everstep.agent_domain.loop.error_policy import ErrorPolicy
from everstep.agent_domain.loop.facts import ExecutionFacts
from everstep.agent_domain.loop.loop import CriteriaView, Infer, decide, only_facts
from everstep.agent_domain.loop.step_facts import CallFacts, StepFacts
from everstep.agent_domain.loop.usage import Usage
from everstep.agent_domain.messages.messages import MessageList
from everstep.agent_domain.state.state import AgentState
from everstep.agent_domain.state.steps import AgentStep, InferenceResponse
from everstep.agent_domain.tools.tools import ToolCall, ToolExecution

NOW = datetime(2026, 1, 16, 10, 5, tzinfo=UTC)
RULES = ExecutionPlan(
    max_steps=10_000,
    max_tokens=10**9,
    timeout_seconds=10**6,
    finish_reasons=("content_filter",),
    error_policy=ErrorPolicy.retry_all(),
).rules()


@dataclass(frozen=True)
class Ratio:
    """Two costs, measured alternately, and the limit for their ratio."""

    name: str
    one: Callable[[], object]
    other: Callable[[], object]
    limit: float
    repeat: int = 200

    def measure(self, rounds: int) -> tuple[float, float]:
        """The median seconds of each, over a number of alternating rounds."""
        times: tuple[list[float], list[float]] = ([], [])
        for _ in range(rounds):
            for work, samples in ((self.one, times[0]), (self.other, times[1])):
                began = time.perf_counter()
                for _ in range(self.repeat):
                    work()
                samples.append((time.perf_counter() - began) / self.repeat)
        return statistics.median(times[0]), statistics.median(times[1])


def step(number: int) -> StepFacts:
    """A step with two calls, both answered."""
    calls = tuple(CallFacts(f"call-{number}-{i}", "look", is_settled=True) for i in range(2))
    return StepFacts(number, calls, "tool_calls", Usage(300, 40), seconds=0.5)


def facts_after(steps: int) -> ExecutionFacts:
    """Facts after a number of steps, with one more complete and not yet recorded."""
    facts = ExecutionFacts().entered(NOW)
    for number in range(1, steps + 1):
        facts = facts.step_started(NOW).with_step(step(number))
        facts = facts if number == steps else facts.recorded(None)
    return facts


def body(state: AgentState, number: int) -> AgentStep:
    """A step with two calls and their results."""
    calls = tuple(ToolCall(f"call-{number}-{i}", "look") for i in range(2))
    response = InferenceResponse("", calls, "tool_calls", Usage(300, 40))
    executions = tuple(ToolExecution(call, "x" * 200) for call in calls)
    return AgentStep(state.new_step_id(), NOW, (), MessageList(), response, executions, seconds=0.5)


def state_after(steps: int) -> AgentState:
    """A full state after a number of steps, the last one not yet recorded."""
    agent = execution = UUID(int=1)
    state = AgentState.empty().identified(agent, execution).entered(NOW)
    for number in range(1, steps + 1):
        state = state.with_step_started(NOW).with_current_step(body(state, number))
        state = state if number == steps else state.recorded(None, NOW)
    return state


def deciding(facts: ExecutionFacts, view: CriteriaView = only_facts) -> Callable[[], object]:
    """The decision after the last step."""
    now = NOW + timedelta(seconds=1)
    if not isinstance(decide(facts, RULES, now, view), Infer):
        raise SystemExit("the benchmark's states must lead to another step")
    return lambda: decide(facts, RULES, now, view)


def deciding_in_process(state: AgentState) -> Callable[[], object]:
    """The decision of an in-process run, whose criteria read the full state."""
    return deciding(state.facts, state.with_facts)


def folding(facts: ExecutionFacts) -> Callable[[], object]:
    """Fold in one more step: recorded, started, answered."""
    following = step(facts.step_count + 1)
    return lambda: facts.recorded(None).step_started(NOW).with_step(following)


def importing(module: str) -> Callable[[], object]:
    """A fresh interpreter that imports one module."""
    command = [sys.executable, "-c", f"import {module}"]
    return lambda: subprocess.run(command, check=True)  # noqa: S603 -- our own interpreter and words


def ratios() -> list[Ratio]:
    """All ratios; the first value is compared with the second."""
    few, many = facts_after(10), facts_after(1000)
    short, long = state_after(10), state_after(1000)
    return [
        Ratio("decide on facts, 1,000 steps / 10 steps", deciding(many), deciding(few), 1.2),
        Ratio(
            "decide with a full state, 1,000 steps / 10 steps",
            deciding_in_process(long),
            deciding_in_process(short),
            1.2,
        ),
        Ratio("fold a step into facts, 1,000 steps / 10 steps", folding(many), folding(few), 1.2),
        Ratio(
            "import everstep.agent_domain / import pydantic",
            importing("everstep.agent_domain"),
            importing("pydantic"),
            1.5,
            1,
        ),
        Ratio(
            "import everstep.agent_domain.loop.loop / import pydantic.main",
            importing("everstep.agent_domain.loop.loop"),
            importing("pydantic.main"),
            1.5,
            1,
        ),
    ]


def main() -> None:
    """Measure, print, and exit with 1 if a ratio is above its limit."""
    parser = argparse.ArgumentParser(description="What deciding costs, as ratios.")
    parser.add_argument("--rounds", type=int, default=15, help="alternating rounds per ratio")
    rounds = parser.parse_args().rounds
    failed = False
    line("", "one", "other", "ratio", "target")
    for ratio in ratios():
        one, other = ratio.measure(rounds)
        is_missed = one / other > ratio.limit
        failed |= is_missed
        values = (f"{seconds * 1e6:,.1f} us" for seconds in (one, other))
        line(ratio.name, *values, f"{one / other:.2f}", f"<= {ratio.limit:.2f}", mark(is_missed))
    sys.exit(failed)


if __name__ == "__main__":
    main()
