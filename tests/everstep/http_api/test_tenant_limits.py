"""The limits of tenants over HTTP: 429 with `Retry-After`, and the position of an execution that waits."""

from dataclasses import replace

from everstep.agent_domain.fairness.tenant_limits import LimitBook, TenantLimits
from tests.everstep.http_api.house import ApiSetup, MakeCaller, assert_problem, http_client, make_app


async def test_requests_beyond_the_rate_of_a_user_are_refused_with_the_time_of_the_next(
    api_setup: ApiSetup,
) -> None:
    """18.2.10"""
    book = LimitBook([TenantLimits(api_setup.tenant, "ann", requests_per_second=0.01)])
    app = make_app(replace(api_setup.api, limits=lambda: book))
    answers = {
        user: [
            await http.get("/agent/executions")
            for http in [http_client(app, {"Authorization": f"Bearer {api_setup.token(user)}"})]
            for _ in range(2)
        ]
        for user in ("ann", "bob")
    }
    assert [answer.status_code for answer in answers["bob"]] == [200, 200]
    first, second = answers["ann"]
    assert first.status_code == 200
    assert_problem(second, 429, "try again in 100 s")
    assert second.headers["Retry-After"] == "100"


async def test_a_waiting_execution_has_its_position_in_responses_and_lists(
    api_setup: ApiSetup, sign_in: MakeCaller
) -> None:
    """18.2.5"""
    await api_setup.sessions.client.store.set_limits(TenantLimits(api_setup.tenant, max_running=0))
    ann = await sign_in("ann")
    ids = [(await ann.post("/agent/messages", {"content": "Hello"}))["execution_id"] for _ in "12"]
    shown = [await ann.get(f"/agent/executions/{each}") for each in ids]
    assert [(each["status"], each["queue_position"]) for each in shown] == [("pending", 1), ("pending", 2)]
    listed = (await ann.get("/agent/executions"))["items"]
    assert {each["id"]: each["queue_position"] for each in listed} == {ids[0]: 1, ids[1]: 2}
