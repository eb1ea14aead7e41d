"""Which streams a viewer may watch over the gateway."""

import asyncio
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any
from uuid import UUID, uuid4

import pytest

from everstep.agent_domain.errors import StoreUnavailable
from everstep.agent_domain.stream.channels import Channel
from everstep.broadcast_gateway.ports import Guest, NotAdmitted
from everstep.http_api.api_keys import create_key
from everstep.http_api.auth import allow_all
from everstep.http_api.callers import Caller
from everstep.http_api.problems import unavailable
from everstep.runtime.authorization import ApiGatewayAccess, build_gateway_access
from everstep.runtime.settings import Settings
from everstep.store.engine import create_engine
from everstep.store.errors import DatabaseUnreachable
from everstep.store.streams import PostgresStreams
from tests.engines import listening
from tests.everstep.http_api.house import SECRET, ApiSetup, MakeCaller


def api_doors_of(api_setup: ApiSetup) -> ApiGatewayAccess:
    """Authentication with the parts that the gateway's process has."""
    return build_gateway_access(Settings(auth_secret=SECRET), api_setup.keys.engine)


def gateway_guest(api_setup: ApiSetup, user_id: str | None) -> Guest:
    return Guest(api_setup.tenant, user_id)


async def test_the_gateway_accepts_the_callers_of_the_api(api_setup: ApiSetup) -> None:
    known = api_doors_of(api_setup)
    before = datetime.now(UTC).timestamp()
    key = await create_key(api_setup.keys, "shop", tenant_id=api_setup.tenant, user_id="ann")

    ann = await known.authenticate_viewer(api_setup.token("ann"))
    service = await known.authenticate_viewer(api_setup.token("robot", "sessions:all", "read-only"))
    by_key = await known.authenticate_viewer(key.secret)

    assert (ann.tenant_id, ann.user_id) == (api_setup.tenant, "ann")
    assert ann.expires_at is not None
    assert ann.expires_at >= before
    assert (service.tenant_id, service.user_id) == (api_setup.tenant, None)
    assert by_key == Guest(api_setup.tenant, "ann", None)


async def test_other_viewers_are_refused(api_setup: ApiSetup) -> None:
    known = api_doors_of(api_setup)
    key = await create_key(api_setup.keys, "shop", tenant_id=api_setup.tenant)
    await api_setup.keys.revoke_key(api_setup.tenant, key.key.id)

    for token in ("", " ", "x", "a b", "a\x00b", "é", key.secret, api_setup.token("ann") + "x"):
        with pytest.raises(NotAdmitted):
            await known.authenticate_viewer(token)


async def test_without_authentication_every_viewer_is_accepted(api_setup: ApiSetup) -> None:
    known = ApiGatewayAccess(
        allow_all(),
        PostgresStreams(api_setup.keys.engine),
        api_setup.keys,
        api_setup.browser_sessions,
    )

    assert (
        await known.authenticate_viewer("")
        == await known.authenticate_viewer("whatever")
        == Guest("default", None, None)
    )


async def test_an_unreachable_provider_is_not_a_refusal(api_setup: ApiSetup) -> None:
    async def raise_unreachable(_header: str | None) -> Caller:
        raise unavailable("The identity provider")

    known = ApiGatewayAccess(
        raise_unreachable,
        PostgresStreams(api_setup.keys.engine),
        api_setup.keys,
        api_setup.browser_sessions,
    )

    with pytest.raises(StoreUnavailable, match="identity provider"):
        await known.authenticate_viewer("x")


async def test_a_session_is_watched_by_its_readers(api_setup: ApiSetup, sign_in: MakeCaller) -> None:
    """7.8.1"""
    known = api_doors_of(api_setup)
    session = UUID(await (await sign_in("ann")).create_session())
    channel = Channel(session)

    assert await known.find_stream(channel, gateway_guest(api_setup, "ann")) == session
    assert await known.find_stream(channel, gateway_guest(api_setup, None)) == session
    assert await known.find_stream(channel, gateway_guest(api_setup, "ben")) is None
    for user_id in ("ann", None):
        assert await known.find_stream(channel, Guest("elsewhere", user_id)) is None
    assert await known.find_stream(channel, None) == session
    assert await known.find_stream(Channel(session, is_session=False), None) is None
    for whoever in (None, gateway_guest(api_setup, None)):
        assert await known.find_stream(Channel(uuid4()), whoever) is None


async def test_an_execution_without_a_session_has_its_own_stream(
    api_setup: ApiSetup, sign_in: MakeCaller
) -> None:
    """7.8.1"""
    known = api_doors_of(api_setup)
    execution = UUID(await (await sign_in("ann")).start_execution("hello"))
    channel = Channel(execution, is_session=False)

    assert await known.find_stream(channel, gateway_guest(api_setup, "ann")) == execution
    assert await known.find_stream(channel, gateway_guest(api_setup, None)) == execution
    assert await known.find_stream(channel, gateway_guest(api_setup, "ben")) is None
    assert await known.find_stream(channel, Guest("elsewhere", "ann")) is None
    assert await known.find_stream(channel, None) == execution
    assert await known.find_stream(Channel(execution), None) is None


async def test_an_execution_without_an_owner_is_for_viewers_with_all_scopes(api_setup: ApiSetup) -> None:
    known = api_doors_of(api_setup)
    client = replace(api_setup.sessions.client, tenant_id=api_setup.tenant)
    execution = (await client.start("clerk", "hello")).id
    channel = Channel(execution, is_session=False)

    assert await known.find_stream(channel, gateway_guest(api_setup, None)) == execution
    assert await known.find_stream(channel, gateway_guest(api_setup, "ann")) is None


async def test_an_execution_of_a_session_is_watched_by_readers_of_the_session(
    api_setup: ApiSetup, sign_in: MakeCaller
) -> None:
    """7.8.1: it belongs to its session, regardless of the user who began it."""
    known = api_doors_of(api_setup)
    ann, service = await sign_in("ann"), await sign_in("robot", "sessions:all")
    session = await ann.create_session()
    said = await service.post_message(session, "hello")
    channel = Channel(UUID(said["execution_id"]), is_session=False)

    assert await known.find_stream(channel, gateway_guest(api_setup, "ann")) == UUID(session)
    assert await known.find_stream(channel, gateway_guest(api_setup, None)) == UUID(session)
    assert await known.find_stream(channel, gateway_guest(api_setup, "robot")) is None
    assert await known.find_stream(channel, Guest("elsewhere", None)) is None
    assert await known.find_stream(channel, None) == UUID(session)


async def test_the_gateway_and_http_permit_the_same(api_setup: ApiSetup, sign_in: MakeCaller) -> None:
    """Both ways of reading agree, for every caller."""
    known = api_doors_of(api_setup)
    people = [await sign_in("ann"), await sign_in("ben"), await sign_in("robot", "sessions:all")]
    owned = [(await person.create_session(), await person.start_execution("hello")) for person in people]

    for person, user_id in zip(people, ("ann", "ben", None), strict=True):
        for session, execution in owned:
            for path, channel in (
                (f"/agent/sessions/{session}", Channel(UUID(session))),
                (f"/agent/executions/{execution}", Channel(UUID(execution), is_session=False)),
            ):
                is_read = (await person.http.get(path)).status_code == 200
                assert is_read == (
                    await known.find_stream(channel, gateway_guest(api_setup, user_id)) is not None
                )


async def test_an_unreachable_database_is_reported(api_setup: ApiSetup) -> None:
    engine = create_engine("postgresql+psycopg://127.0.0.1:9/nothing")
    known = build_gateway_access(Settings(auth_secret=SECRET), engine)

    with pytest.raises(StoreUnavailable):
        await known.find_stream(Channel(uuid4()), gateway_guest(api_setup, "ann"))
    with pytest.raises(StoreUnavailable):
        await known.authenticate_viewer("esk_" + "x" * 43)
    await engine.dispose()


async def test_concurrent_questions_share_one_query(api_setup: ApiSetup, sign_in: MakeCaller) -> None:
    known = api_doors_of(api_setup)
    sessions = [UUID(await (await sign_in(name)).create_session()) for name in ("ann", "ben", "cid")]
    statements = list[str]()

    def note_statement(_connection: Any, _cursor: Any, statement: str, *_: Any) -> None:
        statements.append(statement)

    asked = [
        known.find_stream(Channel(each), gateway_guest(api_setup, "ben"))
        for each in (*sessions, sessions[1], uuid4())
    ]

    with listening(api_setup.keys.engine, note_statement):
        assert await asyncio.gather(*asked) == [None, sessions[1], None, sessions[1], None]
    assert len(statements) == 1


async def test_an_unreachable_database_is_reported_to_all_waiting_viewers(api_setup: ApiSetup) -> None:
    away = build_gateway_access(
        Settings(auth_secret=SECRET), create_engine("postgresql://nobody@127.0.0.1:1/none")
    )
    asked = [away.find_stream(Channel(uuid4()), gateway_guest(api_setup, None)) for _ in range(3)]

    answers = await asyncio.gather(*asked, return_exceptions=True)

    assert [type(each) for each in answers] == [DatabaseUnreachable] * 3
