"""Values that many executions have alike."""

from typing import Any

from everstep.activities.step_state import step_state
from everstep.agent_domain.agents.plan import ExecutionPlan
from everstep.agent_domain.messages.messages import user
from everstep.agent_domain.shared_values import SharedValues
from everstep.agent_domain.state.state import AgentState
from everstep.agent_domain.storage.executions import ExecutionSpec, NewExecution
from everstep.agent_domain.storage.steps import StepInput
from everstep.agent_domain.values import frozen_map
from everstep.runtime.temporal import data_converter
from everstep.store.postgres import PostgresStore
from everstep.workflows.contracts import ExecutionInput
from tests.everstep.store.store_words import a_ref, a_step_start


def test_equal_values_are_one() -> None:
    """18.1.9."""
    shared = SharedValues[Any]()
    first, equal, other = {"a": [1]}, {"a": [1]}, {"a": [2]}

    assert shared.share("key", first) is first
    assert shared.share("key", equal) is first
    assert shared.share("another key", equal) is equal
    assert shared.share("key", other) is other
    assert shared.share("key", other) is other


def test_few_values_are_kept() -> None:
    """18.1.9."""
    shared = SharedValues[Any](limit=2)
    first = {"a": 1}
    shared.share(1, first)
    shared.share(2, {})
    shared.share(3, {})

    assert shared.share(1, {"a": 1}) is not first


async def test_executions_of_an_agent_share_its_definition(postgres: PostgresStore) -> None:
    """18.1.9: its tools, prompts and plan are in memory once."""
    tool: dict[str, Any] = {"type": "function", "function": {"name": "look", "parameters": {}}}
    materials, states = list[StepInput](), list[AgentState]()
    for prompt in ("Be brief", "Be brief", "Be kind"):
        context: dict[str, Any] = {"messages": [{"role": "system", "content": prompt}], "tools": [tool]}
        spec = ExecutionSpec(agent="clerk", definition_hash="d1", cached_context=context)
        ref = a_ref()
        await postgres.accept(NewExecution(ref, spec, (user("Hello"),), plan=frozen_map({"max_steps": 3})))
        materials.append((await postgres.begin_step(a_step_start(ref))).material)
        states.append(step_state(ref, 1, materials[-1]))

    first, second, third = (state.cached_context for state in states)
    assert first is second
    assert [context.messages[0].text for context in (first, third)] == ["Be brief", "Be kind"]
    assert all(material.plan is materials[0].plan for material in materials)


def test_workflows_share_the_plan_of_their_agent() -> None:
    """18.1.9: each decodes its input."""
    converter = data_converter().payload_converter
    plans = [ExecutionPlan(agent="clerk", max_steps=steps) for steps in (3, 3, 4)]
    inputs = [ExecutionInput(a_ref(), plan) for plan in plans]
    payloads = [converter.to_payload(start) for start in inputs]
    decoded = [converter.from_payload(each, ExecutionInput) for each in payloads]

    assert decoded == inputs
    assert decoded[0].plan is decoded[1].plan
