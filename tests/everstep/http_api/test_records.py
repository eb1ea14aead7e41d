"""Comparisons of executions over HTTP."""

from dataclasses import replace
from uuid import uuid4

from everstep.agent_domain.values import json_text
from tests.everstep.http_api.house import ApiCaller, MakeCaller, assert_problem


async def run_to_the_end(person: ApiCaller, content: str) -> str:
    """An execution that has answered."""
    execution = await person.start_execution(content)
    await person.wait_for_status(execution, "completed", "failed")
    return execution


async def test_two_executions_are_compared(ann: ApiCaller, work: None) -> None:
    """15.4.1: in the form that the command prints, too."""
    one, other = await run_to_the_end(ann, "spend 0.25"), await run_to_the_end(ann, "spend 0.5")

    found = await ann.get(f"/agent/executions/{one}/diff/{other}")

    assert found["version"] == 1
    sides = found["executions"]
    assert [sides[side]["cost_usd"] for side in "ab"] == [0.25, 0.5]
    (step,) = found["steps"]
    assert (step["a"], step["b"], step["same"], step["shared"]) == (1, 1, True, False)
    assert step["cost_usd"] == {"a": 0.25, "b": 0.5}
    assert (found["differing_steps"], found["settings"]) == (0, [])
    client = replace(ann.api_setup.sessions.client, tenant_id=ann.api_setup.tenant)
    assert (await client.diff(one, other)).to_dict() == found
    del work


async def test_both_executions_have_to_be_the_callers(sign_in: MakeCaller, work: None) -> None:
    """15.4.5"""
    ann, ben = await sign_in("ann"), await sign_in("ben")
    hers, his = await run_to_the_end(ann, "My treasure"), await run_to_the_end(ben, "hello")

    for a, b in ((hers, his), (his, hers), (his, str(uuid4())), (hers, hers)):
        assert_problem(await ben.http.get(f"/agent/executions/{a}/diff/{b}"), 404, "There is no execution")
    stranger = await sign_in("ben", "sessions:all", tenant=f"far-{uuid4().hex}")
    assert_problem(await stranger.http.get(f"/agent/executions/{hers}/diff/{his}"), 404)
    desk = await sign_in("desk", "sessions:all")
    assert "My treasure" in json_text(await desk.get(f"/agent/executions/{hers}/diff/{his}"))
    del work
