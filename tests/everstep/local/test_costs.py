"""What runs in this process cost."""

from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import Any, TypeAlias

import pytest
import yaml

from everstep.agent_domain.agents.registry import AgentSpecRegistry
from everstep.agent_domain.agents.spec import AgentSpec
from everstep.agent_domain.state.events import AgentFinished, AgentStepCompleted, Event
from everstep.agent_domain.state.state import AgentState
from everstep.capabilities.llm_query import LlmQueryTool
from everstep.capabilities.subagents import UseSubagents
from everstep.inference.models import Models
from everstep.inference.presets import Presets
from everstep.runtime.builder import AgentBuilder

USAGE = {"input": 1000, "output": 100}
COST = Decimal("0.003")
PRICES = {"input_price": 1, "output_price": 20}
CALL = {"text": "I ask", "calls": [{"name": "llm_query", "args": {"query": "Why?"}}], "usage": USAGE}
ANSWER = {"text": "Done", "usage": USAGE}
BECAUSE: dict[str, Any] = {"text": "Because", "usage": USAGE}
BROKEN = {"text": "Hello", "usage": USAGE, "error": {"type": "unavailable", "after": 2, "times": 1}}
SPAWN = {"name": "spawn_subagent", "args": {"subagent": "aide", "prompt": "Why?"}}


MakeModels: TypeAlias = Callable[..., Models]


@pytest.fixture
def models(tmp_path: Path) -> MakeModels:
    """Models with a script of these turns, and these settings."""

    def make(*turns: dict[str, Any], why: dict[str, Any] = BECAUSE, **settings: Any) -> Models:
        script = tmp_path / f"{len(list(tmp_path.iterdir()))}.yaml"
        script.write_text(
            yaml.safe_dump({"scenarios": [{"when": "Why?", "turns": [why]}, {"turns": list(turns)}]})
        )
        preset = {"driver": "scripted", "model": "m-1", "scenario": str(script), **settings}
        return Models(Presets.read({"m": preset}, {}, "m"), {})

    return make


async def run(builder: AgentBuilder, known: Models, events: list[Event] | None = None) -> AgentState:
    agent = builder.build(models=known.model).wiretap(events.append if events is not None else None)
    return await agent.arun("Go")


async def test_a_run_knows_what_it_and_its_steps_cost(models: MakeModels) -> None:
    """4.7.5: with the model calls of its tools."""
    events = list[Event]()

    state = await run(AgentBuilder.base().with_tools(LlmQueryTool()), models(CALL, ANSWER, **PRICES), events)

    assert [step.cost_usd for step in state.steps] == [2 * COST, COST]
    assert [record.cost_usd for record in state.execution.step_executions] == [2 * COST, COST]
    assert (state.cost_usd, state.tree_cost_usd) == (3 * COST, 3 * COST)
    assert [e.cost_usd for e in events if isinstance(e, AgentStepCompleted)] == [2 * COST, COST]
    assert [e.to_dict()["costUsd"] for e in events if isinstance(e, AgentFinished)] == [0.009]
    read = AgentState.from_dict(state.to_dict())
    assert (read.cost_usd, [step.cost_usd for step in read.steps]) == (3 * COST, [2 * COST, COST])


@pytest.mark.parametrize("turn", [ANSWER, {"text": "Done"}])
async def test_without_prices_or_counters_the_cost_is_unknown(
    turn: dict[str, Any], models: MakeModels
) -> None:
    """4.7.1, 4.7.4"""
    events = list[Event]()

    state = await run(AgentBuilder.base(), models(turn, **({} if turn is ANSWER else PRICES)), events)

    assert (state.cost_usd, state.steps[0].cost_usd) == (None, None)
    assert all("costUsd" not in event.to_dict() for event in events)


async def test_a_charged_attempt_is_part_of_the_cost(models: MakeModels) -> None:
    """4.7.3: if another attempt answers, and if none does."""
    query, builder = LlmQueryTool(), AgentBuilder.base().with_max_retries(2)

    state = await run(builder.with_tools(query), models(CALL, ANSWER, why=BROKEN, **PRICES))
    failed = await run(AgentBuilder.base(), models(BROKEN, **PRICES))

    assert [step.cost_usd for step in state.steps] == [3 * COST, COST]
    assert (state.cost_usd, state.usage.input) == (4 * COST, 4000)
    assert (failed.status, failed.cost_usd, failed.steps[0].cost_usd) == ("failed", COST, COST)


async def test_the_cost_of_a_tree_has_that_of_its_children(models: MakeModels) -> None:
    """4.7.5"""
    registry = AgentSpecRegistry([AgentSpec("aide", "Helps", "You help.")])
    known = models({"calls": [SPAWN], "usage": USAGE}, ANSWER, **PRICES)

    state = await run(AgentBuilder.base().with_capability(UseSubagents(registry)), known)

    assert (state.cost_usd, state.tree_cost_usd) == (2 * COST, 3 * COST)
    assert state.tokens == 3300
