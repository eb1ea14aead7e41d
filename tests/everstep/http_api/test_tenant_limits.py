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


async def test_an_operator_sets_reads_and_removes_limits(api_setup: ApiSetup, sign_in: MakeCaller) -> None:
    """18.2.4"""
    boss, tenant = await sign_in("boss", "admin"), api_setup.tenant
    path = f"/agent/tenants/{tenant}"
    ann = await sign_in("ann")
    await boss.http.put(path, json={"max_running": 0})
    waiting = (await ann.post("/agent/messages", {"content": "Hello"}))["execution_id"]
    assert (await ann.get(f"/agent/executions/{waiting}"))["queue_position"] == 1

    limits = {"weight": 2.0, "max_running": 3, "max_model_calls": 4, "requests_per_second": 5.0}
    stored = (await boss.http.put(path, json={**limits, "tokens_per_minute": 6000})).json()
    assert stored == {"tenant_id": tenant, "user_id": None, **limits, "tokens_per_minute": 6000}
    # The raised limit starts what waited.
    assert (await ann.get(f"/agent/executions/{waiting}"))["queue_position"] is None

    await boss.http.put(path, params={"user_id": "ann"}, json={"tokens_per_minute": 10})
    shown = (await boss.get(path))["items"]
    assert [(each["user_id"], each["tokens_per_minute"]) for each in shown] == [(None, 6000), ("ann", 10)]
    assert shown[0] in (await boss.get("/agent/tenants"))["items"]
    for expected in (204, 404):
        for user in ({"user_id": "ann"}, {}):
            assert (await boss.http.delete(path, params=user)).status_code == expected
    # The tenant has executions, so it is known.
    assert (await boss.get(path))["items"][0]["max_running"] is None
    assert_problem(await boss.http.get("/agent/tenants/nowhere"), 404, "There is no tenant nowhere")


async def test_unusable_limits_are_refused_with_one_sentence(
    api_setup: ApiSetup, sign_in: MakeCaller
) -> None:
    """18.2.4"""
    boss = await sign_in("boss", "admin")
    path = f"/agent/tenants/{api_setup.tenant}"
    for body in (
        {"max_running": -1},
        {"max_running": 2**31},
        {"max_model_calls": 1.5},
        {"requests_per_second": 0},
        {"tokens_per_minute": 10**30},
        {"weight": 0},
        {"unknown": 1},
    ):
        assert_problem(await boss.http.put(path, json=body), 422, f"body.{next(iter(body))}")
    for url, message in (
        ("/agent/tenants/%20", "the names of tenants and users are not blank"),
        ("/agent/tenants/a%00b", "text"),
        ("/agent/tenants/a%1Bb", "has invisible characters"),
        (f"{path}?user_id=%E2%80%AE", "has invisible characters"),
        (f"/agent/tenants/{'x' * 201}", "200"),
        (f"{path}?user_id={'x' * 201}", "200"),
    ):
        assert_problem(await boss.http.put(url, json={"max_running": 1}), 422, message)
    refused = await boss.http.put(f"{path}?user_id=ann", json={"weight": 2})
    assert_problem(refused, 422, "only tenants have a weight")
    stored = (await boss.get("/agent/tenants"))["items"]
    assert not any(each["tenant_id"].strip() in {"", "a", api_setup.tenant} for each in stored)


async def test_limits_need_the_scope_of_an_operator(api_setup: ApiSetup, sign_in: MakeCaller) -> None:
    """18.2.4"""
    for caller in (await sign_in("ann"), await sign_in("robot", "sessions:all", tenant="acme")):
        path = f"/agent/tenants/{api_setup.tenant}"
        for answer in (
            await caller.http.get("/agent/tenants"),
            await caller.http.get(path),
            await caller.http.put(path, json={"max_running": 0}),
            await caller.http.delete(path),
        ):
            assert_problem(
                answer, 403, "need the scope 'admin'; use a token or key that has it, such as one of"
            )


async def test_the_announcement_of_an_execution_that_has_to_wait_has_its_position(
    api_setup: ApiSetup, sign_in: MakeCaller
) -> None:
    """18.2.5"""
    store, tenant = api_setup.sessions.client.store, api_setup.tenant

    async def read_position(user: str, session: str | None = None) -> int | None:
        caller = await sign_in(user)
        path = f"/agent/sessions/{session or await caller.create_session()}/messages"
        body = {"content": "Hello"}
        sent = await (caller.post(path, body) if session else caller.post("/agent/messages", body))
        messages = (await caller.get(f"/agent/sessions/{sent['session_id']}/messages"))["items"]
        (queued,) = [each for each in messages if each["content"] == "Execution queued"]
        return queued["metadata"].get("queue_position")

    async def read_position_in_session(user: str) -> int | None:
        return await read_position(user, await (await sign_in(user)).create_session())

    assert await read_position("ann") is None
    # The execution counts that was accepted before there was a limit.
    await store.set_limits(TenantLimits(tenant, max_running=2))
    assert await read_position("bob") is None
    assert await read_position("ann") == 1
    assert await read_position_in_session("ann") == 2
    # Users take turns: the one without a running execution is first.
    assert await read_position_in_session("eve") == 1
    await store.set_limits(TenantLimits(tenant, max_running=100))
    await store.set_limits(TenantLimits(tenant, "eve", max_running=0))
    assert await read_position("eve") is not None
    assert await read_position("zoe") is None
