"""Which sessions in browsers there are, who ends them, and what else does."""

import asyncio
import json
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import uuid4

import httpx2
import jwt
import pytest
from cryptography.hazmat.primitives.asymmetric import ec
from jwt.algorithms import ECAlgorithm

from everstep.agent_domain.storage.sign_ins import MAX_SESSIONS, SignIn, SignInKind
from everstep.http_api.auth import Authenticator
from everstep.http_api.authorities import Authority
from everstep.http_api.dependencies import Api
from everstep.http_api.jwks import COOLDOWN_SECONDS, KeySet
from everstep.http_api.sign_ins import PAGE_KEY_HEADER, BrowserSessions, create_code, digest_of
from everstep.http_api.tokens import Tokens, sign_token
from tests.everstep.http_api.house import SECRET, ApiSetup, assert_problem, make_app

URL = "http://api.test:8080"


@asynccontextmanager
async def signed_in(api: Api, token: str, agent: str = "Browser/1") -> AsyncGenerator[httpx2.AsyncClient]:
    """A browser whose person is signed in."""
    headers = {"Origin": URL, "User-Agent": agent}
    transport = httpx2.ASGITransport(make_app(api))
    async with httpx2.AsyncClient(transport=transport, base_url=URL, headers=headers) as http:
        answer = await http.post("/sign-in", json={"token": token})
        http.headers[PAGE_KEY_HEADER] = answer.json()["page_key"]
        yield http


async def is_signed_in(http: httpx2.AsyncClient) -> bool:
    inbox, described = await http.get("/agent/inbox"), (await http.get("/sign-in")).json()
    assert (inbox.status_code == 200) is described["signed_in"]
    return described["signed_in"]


async def test_people_end_their_own_sessions(api_setup: ApiSetup) -> None:
    """16.2.8"""
    api, ann, ben = api_setup.api, api_setup.token("ann"), api_setup.token("ben")
    async with (
        signed_in(api, ann, "One/1") as here,
        signed_in(api, ann, "Two/2") as there,
        signed_in(api, ben) as other,
    ):
        mine = (await here.get("/agent/sign-ins")).json()["items"]
        assert [(each["user_agent"], each["is_current"]) for each in mine] == [
            ("Two/2", False),
            ("One/1", True),
        ]
        theirs = (await other.get("/agent/sign-ins")).json()["items"]
        assert [each["user_id"] for each in theirs] == ["ben"]

        assert_problem(await other.delete(f"/agent/sign-ins/{mine[0]['id']}"), 404)
        for path in ("?user_id=ann", "?everyone=true"):
            assert_problem(await other.delete(f"/agent/sign-ins{path}"), 403, "sessions:all")
        assert_problem(await other.get("/agent/sign-ins?user_id=ann"), 403, "sessions:all")
        assert await is_signed_in(there)

        assert (await here.delete(f"/agent/sign-ins/{mine[0]['id']}")).status_code == 204
        assert (await is_signed_in(here), await is_signed_in(there)) == (True, False)
        assert_problem(await here.delete(f"/agent/sign-ins/{mine[0]['id']}"), 404)


async def test_a_person_signs_out_everywhere(api_setup: ApiSetup) -> None:
    """16.2.8: also with a token that is read-only; tickets end as well."""
    api, ann = api_setup.api, api_setup.token("ann", "read-only")
    async with signed_in(api, ann) as here, signed_in(api, ann) as there:
        ticket = (await there.post("/agent/gateway/ticket")).json()["ticket"]
        async with signed_in(api, api_setup.token("ben")) as other:
            await here.post("/sign-out", json={"everywhere": True})
            assert [await is_signed_in(each) for each in (here, there, other)] == [False, False, True]
            await there.post("/sign-out", json={"everywhere": True})
            assert await is_signed_in(other)
    assert await api_setup.browser_sessions.take_ticket(ticket) is None


async def test_an_operator_ends_the_sessions_of_a_tenant(api_setup: ApiSetup) -> None:
    """16.2.8: and of no other tenant."""
    api, robot = api_setup.api, api_setup.token("robot", "sessions:all")
    far = api_setup.token("ann", tenant=f"far-{uuid4().hex}")
    async with (
        signed_in(api, api_setup.token("ann")) as ann,
        signed_in(api, api_setup.token("ben")) as ben,
        signed_in(api, far) as stranger,
        httpx2.AsyncClient(
            transport=httpx2.ASGITransport(make_app(api)),
            base_url=URL,
            headers={"Authorization": f"Bearer {robot}"},
        ) as operator,
    ):
        listed = (await operator.get("/agent/sign-ins")).json()["items"]
        assert {each["user_id"] for each in listed} == {"ann", "ben"}
        named = (await operator.get("/agent/sign-ins", params={"user_id": "ann"})).json()["items"]
        assert [each["user_id"] for each in named] == ["ann"]

        ended = (await operator.delete("/agent/sign-ins", params={"user_id": "ann"})).json()["ended"]
        assert ended == [named[0]["id"]]
        assert [await is_signed_in(each) for each in (ann, ben, stranger)] == [False, True, True]
        both = {"user_id": "ann", "everyone": True}
        assert_problem(await operator.delete("/agent/sign-ins", params=both), 422, "either")
        assert len((await operator.delete("/agent/sign-ins?everyone=true")).json()["ended"]) == 1
        assert [await is_signed_in(each) for each in (ben, stranger)] == [False, True]


async def test_links_that_are_not_used_end_with_the_sessions_of_their_user(api_setup: ApiSetup) -> None:
    """16.2.8: they belong to the installation's own user."""
    store = api_setup.browser_sessions.store
    code = await create_code(store)
    await store.end_sessions("default", "local")
    assert await store.take_sign_in(SignInKind.CODE, digest_of(code)) is None


async def test_the_oldest_session_of_a_user_ends(api_setup: ApiSetup) -> None:
    """16.2.2: those of others stay."""
    store = api_setup.browser_sessions.store
    later = datetime.now(UTC) + timedelta(hours=1)
    digests = [digest_of(uuid4().hex) for _ in range(MAX_SESSIONS + 2)]
    await store.add_sign_in(
        SignInKind.SESSION, digest_of(uuid4().hex), SignIn(api_setup.tenant, "ben", later)
    )
    for digest in digests:
        await store.add_sign_in(SignInKind.SESSION, digest, SignIn(api_setup.tenant, "ann", later))
    kept = await store.sessions(api_setup.tenant, "ann")
    assert [each.id.hex for each in kept] == [digest[:32] for digest in reversed(digests[2:])]
    assert len(await store.sessions(api_setup.tenant, "ben")) == 1


@pytest.mark.parametrize(
    "changed",
    [
        {"secret": "another secret of the tests, as long"},
        {"issuer": "https://id.example"},
        {"audience": "other"},
        None,
    ],
)
async def test_a_session_ends_when_the_configuration_changes(
    api_setup: ApiSetup, changed: dict[str, Any] | None
) -> None:
    """16.2.7: and is valid again under the former one, as its token is."""
    before, after = Tokens(SECRET), None if changed is None else replace(Tokens(SECRET), **changed)
    api, store = api_setup.api, api_setup.browser_sessions.store
    other = replace(
        api,
        authenticate=Authenticator(after, api_setup.keys),
        browser_sessions=BrowserSessions(store, Authority.of(after)),
    )
    async with signed_in(api, api_setup.token("ann")) as http:
        ticket = (await http.post("/agent/gateway/ticket")).json()["ticket"]
        assert await BrowserSessions(store, Authority.of(after)).take_ticket(ticket) is not None, "a gateway"
        transport = httpx2.ASGITransport(make_app(other))
        async with httpx2.AsyncClient(transport=transport, base_url=URL) as same:
            same.headers, same.cookies = http.headers, http.cookies
            assert not await is_signed_in(same)
        assert await is_signed_in(http)
    assert Authority.of(before).digest == Authority.of(Tokens(SECRET)).digest


class Provider:
    """The keys of an identity provider."""

    def __init__(self) -> None:
        self.now = 0.0
        self.keys = {"k-1": ec.generate_private_key(ec.SECP256R1())}

    async def document(self, _url: str) -> bytes:
        """The keys, as a JWKS document."""
        entries = [
            json.loads(ECAlgorithm.to_jwk(key.public_key())) | {"kid": name, "use": "sig"}
            for name, key in self.keys.items()
        ]
        return json.dumps({"keys": entries}).encode()

    def tokens(self) -> Tokens:
        """What verifies its tokens."""
        keys = KeySet("https://id.example/keys", self.document, lambda: self.now)
        return Tokens(None, keys, "https://id.example", "everstep")

    def token(self, tenant: str, key_id: str = "k-1") -> str:
        """A token that one of the keys signed."""
        token = sign_token(SECRET, "ann", tenant)
        claims = jwt.decode(token, options={"verify_signature": False})
        claims |= {"iss": "https://id.example", "aud": "everstep"}
        return jwt.encode(claims, self.keys[key_id], "ES256", headers={"kid": key_id})


async def test_a_session_ends_when_the_provider_withdraws_the_key(api_setup: ApiSetup) -> None:
    """16.2.7: as the token does, whose key is then unknown; a session of another key stays."""
    provider = Provider()
    provider.keys["k-2"] = ec.generate_private_key(ec.SECP256R1())
    tokens = provider.tokens()
    sessions = BrowserSessions(api_setup.browser_sessions.store, Authority.of(tokens))
    authenticate = Authenticator(tokens, api_setup.keys)
    api = replace(api_setup.api, authenticate=authenticate, browser_sessions=sessions)
    async with (
        signed_in(api, provider.token(api_setup.tenant)) as http,
        signed_in(api, provider.token(api_setup.tenant, "k-2")) as other,
    ):
        assert await is_signed_in(http)
        del provider.keys["k-1"]
        provider.now += COOLDOWN_SECONDS
        await asyncio.gather(*(tokens.keys.key("k-2") for _ in range(2) if tokens.keys))
        provider.now += 3600
        assert not await is_signed_in(http)
        assert_problem(await http.post("/agent/gateway/ticket"), 401)
        assert await is_signed_in(other)


async def test_a_session_authorises_channels_for_a_minute(api_setup: ApiSetup) -> None:
    """8.10.2: after it has ended, its signature is soon useless."""
    token = api_setup.token("ann")
    async with signed_in(api_setup.api, token) as http:
        session = (await http.post("/agent/sessions", json={})).json()["id"]
        body = {"socket_id": "1.2", "channel_name": f"private-agent.session.{session}"}
        by_session = (await http.post("/broadcasting/auth", json=body)).json()
        authorization = {"Authorization": f"Bearer {token}"}
        by_token = (await http.post("/broadcasting/auth", json=body, headers=authorization)).json()
    now = datetime.now(UTC).timestamp()
    limits = [json.loads(each["channel_data"])["exp"] - now for each in (by_session, by_token)]
    assert 50 < limits[0] <= 60
    assert limits[1] > 3600
