"""Documents that many executions have alike."""

from everstep.activities.step_state import step_state
from everstep.agent_domain.messages.messages import user
from everstep.agent_domain.storage.executions import ExecutionSpec, NewExecution
from everstep.agent_domain.values import frozen_map
from everstep.store.postgres import PostgresStore
from everstep.store.shared_documents import SharedDocuments
from tests.everstep.store.store_words import a_ref, a_step_start


def test_equal_documents_are_one() -> None:
    """18.1.9."""
    shared = SharedDocuments()
    first, equal, other = {"a": [1]}, {"a": [1]}, {"a": [2]}

    assert shared.share("key", first) is first
    assert shared.share("key", equal) is first
    assert shared.share("another key", equal) is equal
    assert shared.share("key", other) is other
    assert shared.share("key", other) is other


def test_few_documents_are_kept() -> None:
    """18.1.9."""
    shared = SharedDocuments(limit=2)
    first = {"a": 1}
    shared.share(1, first)
    shared.share(2, {})
    shared.share(3, {})

    assert shared.share(1, {"a": 1}) is not first


async def test_executions_of_an_agent_share_its_definition(postgres: PostgresStore) -> None:
    """18.1.9: its tools, prompts and plan are in memory once."""
    tool = {"type": "function", "function": {"name": "look", "parameters": {}}}
    materials, states = [], []
    for prompt in ("Be brief", "Be brief", "Be kind"):
        context = {"messages": [{"role": "system", "content": prompt}], "tools": [tool]}
        spec = ExecutionSpec(agent="clerk", definition_hash="d1", cached_context=context)
        ref = a_ref()
        await postgres.accept(NewExecution(ref, spec, (user("Hello"),), plan=frozen_map({"max_steps": 3})))
        materials.append((await postgres.begin_step(a_step_start(ref))).material)
        states.append(step_state(ref, 1, materials[-1]))

    first, second, third = (state.cached_context for state in states)
    assert first is second
    assert [context.messages[0].text for context in (first, third)] == ["Be brief", "Be kind"]
    assert all(material.plan is materials[0].plan for material in materials)
