"""Which streams a viewer may watch over the gateway."""

import asyncio
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any
from uuid import UUID, uuid4

import pytest
from sqlalchemy import event

from everstep.agent_domain.errors import StoreUnavailable
from everstep.agent_domain.stream.channels import Channel
from everstep.broadcast_gateway.ports import Guest, NotAdmitted
from everstep.http_api.api_keys import create_key
from everstep.http_api.auth import open_door
from everstep.http_api.callers import Caller
from everstep.http_api.problems import unavailable
from everstep.runtime.authorization import ApiDoors, doors
from everstep.runtime.settings import Settings
from everstep.store.engine import create_engine
from everstep.store.errors import DatabaseUnreachable
from everstep.store.streams import PostgresStreams
from tests.everstep.http_api.house import SECRET, House, Let


def doors_of(house: House) -> ApiDoors:
    """Authentication with the parts that the gateway's process has."""
    return doors(Settings(auth_secret=SECRET), house.keys.engine)


def guest(house: House, user_id: str | None) -> Guest:
    return Guest(house.tenant, user_id)


async def test_the_gateway_accepts_the_callers_of_the_api(house: House) -> None:
    known = doors_of(house)
    before = datetime.now(UTC).timestamp()
    key = await create_key(house.keys, "shop", tenant_id=house.tenant, user_id="ann")

    ann = await known.guest(house.token("ann"))
    service = await known.guest(house.token("robot", "sessions:all", "read-only"))
    by_key = await known.guest(key.secret)

    assert (ann.tenant_id, ann.user_id) == (house.tenant, "ann")
    assert ann.expires_at is not None
    assert ann.expires_at >= before
    assert (service.tenant_id, service.user_id) == (house.tenant, None)
    assert by_key == Guest(house.tenant, "ann", None)


async def test_other_viewers_are_refused(house: House) -> None:
    known = doors_of(house)
    key = await create_key(house.keys, "shop", tenant_id=house.tenant)
    await house.keys.revoke_key(house.tenant, key.key.id)

    for token in ("", " ", "x", "a b", "a\x00b", "é", key.secret, house.token("ann") + "x"):
        with pytest.raises(NotAdmitted):
            await known.guest(token)


async def test_without_authentication_every_viewer_is_accepted(house: House) -> None:
    known = ApiDoors(open_door(), PostgresStreams(house.keys.engine), house.keys)

    assert await known.guest("") == await known.guest("whatever") == Guest("default", None, None)


async def test_an_unreachable_provider_is_not_a_refusal(house: House) -> None:
    async def away(_header: str | None) -> Caller:
        raise unavailable("The identity provider")

    known = ApiDoors(away, PostgresStreams(house.keys.engine), house.keys)

    with pytest.raises(StoreUnavailable, match="identity provider"):
        await known.guest("x")


async def test_a_session_is_watched_by_its_readers(house: House, let: Let) -> None:
    """7.8.1"""
    known = doors_of(house)
    session = UUID(await (await let("ann")).session())
    channel = Channel(session)

    assert await known.stream(channel, guest(house, "ann")) == session
    assert await known.stream(channel, guest(house, None)) == session
    assert await known.stream(channel, guest(house, "ben")) is None
    for user_id in ("ann", None):
        assert await known.stream(channel, Guest("elsewhere", user_id)) is None
    assert await known.stream(channel, None) == session
    assert await known.stream(Channel(session, is_session=False), None) is None
    for whoever in (None, guest(house, None)):
        assert await known.stream(Channel(uuid4()), whoever) is None


async def test_an_execution_without_a_session_has_its_own_stream(house: House, let: Let) -> None:
    """7.8.1"""
    known = doors_of(house)
    execution = UUID(await (await let("ann")).starts("hello"))
    channel = Channel(execution, is_session=False)

    assert await known.stream(channel, guest(house, "ann")) == execution
    assert await known.stream(channel, guest(house, None)) == execution
    assert await known.stream(channel, guest(house, "ben")) is None
    assert await known.stream(channel, Guest("elsewhere", "ann")) is None
    assert await known.stream(channel, None) == execution
    assert await known.stream(Channel(execution), None) is None


async def test_an_execution_without_an_owner_is_for_viewers_with_all_scopes(house: House) -> None:
    known = doors_of(house)
    client = replace(house.sessions.client, tenant_id=house.tenant)
    execution = (await client.start("clerk", "hello")).id
    channel = Channel(execution, is_session=False)

    assert await known.stream(channel, guest(house, None)) == execution
    assert await known.stream(channel, guest(house, "ann")) is None


async def test_an_execution_of_a_session_is_watched_by_readers_of_the_session(house: House, let: Let) -> None:
    """7.8.1: it belongs to its session, regardless of the user who began it."""
    known = doors_of(house)
    ann, service = await let("ann"), await let("robot", "sessions:all")
    session = await ann.session()
    said = await service.says(session, "hello")
    channel = Channel(UUID(said["execution_id"]), is_session=False)

    assert await known.stream(channel, guest(house, "ann")) == UUID(session)
    assert await known.stream(channel, guest(house, None)) == UUID(session)
    assert await known.stream(channel, guest(house, "robot")) is None
    assert await known.stream(channel, Guest("elsewhere", None)) is None
    assert await known.stream(channel, None) == UUID(session)


async def test_the_gateway_and_http_permit_the_same(house: House, let: Let) -> None:
    """Both ways of reading agree, for every caller."""
    known = doors_of(house)
    people = [await let("ann"), await let("ben"), await let("robot", "sessions:all")]
    owned = [(await person.session(), await person.starts("hello")) for person in people]

    for person, user_id in zip(people, ("ann", "ben", None), strict=True):
        for session, execution in owned:
            for path, channel in (
                (f"/agent/sessions/{session}", Channel(UUID(session))),
                (f"/agent/executions/{execution}", Channel(UUID(execution), is_session=False)),
            ):
                is_read = (await person.http.get(path)).status_code == 200
                assert is_read == (await known.stream(channel, guest(house, user_id)) is not None)


async def test_an_unreachable_database_is_reported(house: House) -> None:
    engine = create_engine("postgresql+psycopg://127.0.0.1:9/nothing")
    known = doors(Settings(auth_secret=SECRET), engine)

    with pytest.raises(StoreUnavailable):
        await known.stream(Channel(uuid4()), guest(house, "ann"))
    with pytest.raises(StoreUnavailable):
        await known.guest("esk_" + "x" * 43)
    await engine.dispose()


async def test_concurrent_questions_share_one_query(house: House, let: Let) -> None:
    known = doors_of(house)
    sessions = [UUID(await (await let(name)).session()) for name in ("ann", "ben", "cid")]
    statements = list[str]()

    @event.listens_for(house.keys.engine.sync_engine, "before_cursor_execute")
    def _asked(_connection: Any, _cursor: Any, statement: str, *_: Any) -> None:  # pyright: ignore[reportUnusedFunction]
        statements.append(statement)

    asked = [known.stream(Channel(each), guest(house, "ben")) for each in (*sessions, sessions[1], uuid4())]

    assert await asyncio.gather(*asked) == [None, sessions[1], None, sessions[1], None]
    assert len(statements) == 1


async def test_an_unreachable_database_is_reported_to_all_waiting_viewers(house: House) -> None:
    away = doors(Settings(auth_secret=SECRET), create_engine("postgresql://nobody@127.0.0.1:1/none"))
    asked = [away.stream(Channel(uuid4()), guest(house, None)) for _ in range(3)]

    answers = await asyncio.gather(*asked, return_exceptions=True)

    assert [type(each) for each in answers] == [DatabaseUnreachable] * 3
