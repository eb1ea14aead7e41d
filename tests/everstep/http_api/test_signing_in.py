"""Signing in with a browser: codes, tokens and providers become a cookie, which other pages cannot use."""

import re
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any
from urllib.parse import parse_qs
from uuid import uuid4

import httpx2
import pytest
from fastapi import FastAPI
from sqlalchemy import text
from starlette.requests import Request
from starlette.responses import JSONResponse

from everstep.agent_domain.errors import InvalidInput
from everstep.agent_domain.storage.sign_ins import SignIn, SignInKind
from everstep.http_api.api_keys import create_key
from everstep.http_api.identity_provider import IdentityProvider
from everstep.http_api.sign_ins import PAGE_KEY_HEADER, create_code, digest_of
from everstep.runtime.authorization import build_identity_provider
from everstep.runtime.settings import Settings
from everstep.store.sign_ins import PostgresSignIns
from tests.everstep.http_api.house import ORIGIN, ApiSetup, assert_problem, make_app

URL = "http://api.test:8080"
SAME = {"Origin": URL}


@asynccontextmanager
async def browser(app: FastAPI, url: str = URL) -> AsyncGenerator[httpx2.AsyncClient]:
    """A client with cookies and without a token."""
    async with httpx2.AsyncClient(transport=httpx2.ASGITransport(app), base_url=url) as http:
        yield http


@pytest.fixture
def app(api_setup: ApiSetup) -> FastAPI:
    return make_app(api_setup.api)


def store_of(api_setup: ApiSetup) -> PostgresSignIns:
    return PostgresSignIns(api_setup.keys.engine)


async def sign_in(http: httpx2.AsyncClient, **sent: Any) -> httpx2.Response:
    """Sign in as the page does: its later requests have the page key."""
    answer = await http.post("/sign-in", json=sent, headers=SAME)
    if answer.is_success:
        http.headers[PAGE_KEY_HEADER] = answer.json()["page_key"]
    return answer


async def test_a_link_signs_in_once(api_setup: ApiSetup, app: FastAPI) -> None:
    """16.2.1: only the POST of the page spends its code, and the cookie is not for scripts or other sites."""
    code = await create_code(store_of(api_setup))
    async with browser(app) as http, browser(app) as other:
        assert (await http.get("/sign-in")).json()["signed_in"] is False
        answer = await sign_in(http, code=code)

        assert len(answer.json()["page_key"]) > 40
        assert answer.json() | {"expires_at": None, "page_key": None} == {
            "signed_in": True,
            "required": True,
            "user_id": "local",
            "tenant_id": "default",
            "scopes": ["sessions:all", "approve", "approve:edit", "admin"],
            "expires_at": None,
            "page_key": None,
            "provider": None,
            "temporal_workflows_url": None,
        }
        (cookie,) = [each for each in answer.headers.get_list("set-cookie") if "Max-Age=0" not in each]
        name, *attributes = cookie.split("; ")
        assert re.match("everstep-[0-9a-f]{16}=", name)
        assert {"HttpOnly", "SameSite=strict"} < set(attributes)
        assert not any(each.startswith("Path") for each in attributes)
        assert (await http.get("/agent/inbox")).status_code == 200
        assert (await http.get("/sign-in")).json()["page_key"] is None

        assert_problem(await sign_in(other, code=code), 401, "used or has expired", "everstep console")
        assert_problem(await other.get("/agent/inbox"), 401)


async def test_a_code_expires(api_setup: ApiSetup, app: FastAPI) -> None:
    """16.2.1"""
    late = SignIn("default", "local", datetime.now(UTC) - timedelta(seconds=1), ("approve",))
    code = uuid4().hex
    await store_of(api_setup).add_sign_in(SignInKind.CODE, digest_of(code), late)
    async with browser(app) as http:
        assert_problem(await sign_in(http, code=code), 401)


async def test_a_token_is_exchanged_and_its_rights_stay(api_setup: ApiSetup, app: FastAPI) -> None:
    """16.2.2: every process of the API knows the session, which ends with the token."""
    soon = int((datetime.now(UTC) + timedelta(minutes=5)).timestamp())
    token = api_setup.token("ann", "read-only", roles=["clerk"], exp=soon)
    async with browser(app) as http:
        signed_in = (await sign_in(http, token=token)).json()
        assert (signed_in["user_id"], signed_in["scopes"]) == ("ann", ["read-only"])
        assert datetime.fromisoformat(signed_in["expires_at"]).timestamp() == soon

        assert (await http.get("/agent/inbox")).status_code == 200
        refused = await http.post("/agent/sessions", json={}, headers=SAME)
        assert_problem(refused, 403, "read-only")
        async with browser(make_app(api_setup.api)) as elsewhere:
            elsewhere.cookies, elsewhere.headers = http.cookies, http.headers
            assert (await elsewhere.get("/sign-in")).json()["user_id"] == "ann"

        assert_problem(await sign_in(http, token="nothing"), 401, "token")  # noqa: S106 -- no token


async def test_signing_out_ends_the_session_everywhere(api_setup: ApiSetup, app: FastAPI) -> None:
    """16.2.2"""
    async with browser(app) as http, browser(app) as copied:
        await sign_in(http, token=api_setup.token("ann"))
        copied.cookies.update(http.cookies)
        copied.headers.update(http.headers)
        assert (await copied.get("/agent/inbox")).status_code == 200

        assert (await http.post("/sign-out", json={}, headers=SAME)).json()["signed_in"] is False
        for each in (http, copied):
            assert (await each.get("/sign-in")).json()["signed_in"] is False
        assert_problem(await copied.get("/agent/inbox"), 401, "sign in again")


async def test_a_revoked_key_ends_its_sessions(api_setup: ApiSetup, app: FastAPI) -> None:
    """16.2.2"""
    made = await create_key(api_setup.keys, "desk", tenant_id=api_setup.tenant, scopes=["approve"])
    async with browser(app) as http:
        assert (await sign_in(http, token=made.secret)).json()["user_id"] == f"key:{made.key.id}"
        assert (await http.get("/agent/inbox")).status_code == 200
        ticket = (await http.post("/agent/gateway/ticket", headers=SAME)).json()["ticket"]

        await api_setup.keys.revoke_key(api_setup.tenant, made.key.id)
        assert_problem(await http.get("/agent/inbox"), 401)
        assert await api_setup.browser_sessions.take_ticket(ticket) is None


async def test_a_ticket_is_not_stored_with_the_key_of_its_request(api_setup: ApiSetup, app: FastAPI) -> None:
    """16.2.4"""
    made = await create_key(api_setup.keys, "desk", tenant_id=api_setup.tenant, scopes=["approve"])
    keyed = {**SAME, "Idempotency-Key": "k-1"}
    async with browser(app) as http:
        await sign_in(http, token=made.secret)
        tickets = [
            (await http.post("/agent/gateway/ticket", headers=keyed)).json()["ticket"] for _ in range(2)
        ]
    assert tickets[0] != tickets[1]
    async with api_setup.keys.engine.connect() as connection:
        stored = await connection.scalars(text("SELECT CAST(k.* AS text) FROM agent_answers AS k"))
        assert not [row for row in stored if any(ticket in row for ticket in tickets)]


@pytest.mark.parametrize("has_cookie", [True, False])
async def test_one_of_the_two_secrets_is_useless(api_setup: ApiSetup, app: FastAPI, has_cookie: bool) -> None:
    """16.2.2: another port of the host receives the cookie, and a script can read the page key."""
    async with browser(app) as http, browser(app) as thief, browser(app) as other:
        await sign_in(http, token=api_setup.token("ann"))
        await sign_in(other, token=api_setup.token("ben"))
        if has_cookie:
            thief.cookies.update(http.cookies)
        else:
            thief.headers[PAGE_KEY_HEADER] = http.headers[PAGE_KEY_HEADER]
        for _ in range(2):
            for path in ("/agent/inbox", "/agent/gateway/ticket", "/agent/sessions"):
                method = "GET" if path == "/agent/inbox" else "POST"
                assert_problem(await thief.request(method, path, headers=SAME), 401)
            assert (await thief.get("/sign-in")).json()["signed_in"] is False
            await thief.post("/sign-out", json={}, headers=SAME)
            assert (await http.get("/agent/inbox")).status_code == 200
            # Also together with the other secret of another session.
            if has_cookie:
                thief.cookies.update(http.cookies)
                thief.headers[PAGE_KEY_HEADER] = other.headers[PAGE_KEY_HEADER]
            else:
                thief.cookies.update(other.cookies)


@pytest.mark.parametrize("origin", [None, "null", "http://api.test:9090", "http://evil.test", ORIGIN])
async def test_another_page_cannot_use_the_session(
    api_setup: ApiSetup, app: FastAPI, origin: str | None
) -> None:
    """16.2.3: also not a page whose origin may use the API with a token of its own."""
    headers = {} if origin is None else {"Origin": origin}
    async with browser(app) as http:
        await sign_in(http, token=api_setup.token("ann"))
        assert_problem(await http.post("/agent/sessions", json={}, headers=headers), 403)
        if origin is not None:
            token = {"token": api_setup.token("mallory")}
            assert_problem(await http.post("/sign-in", json=token, headers=headers), 403)
            assert_problem(await http.post("/sign-out", json={}, headers=headers), 403)
        assert (await http.post("/agent/sessions", json={}, headers=SAME)).status_code == 201

        # A page with a token needs no cookie, and a token wins over it.
        authorization = {"Authorization": f"Bearer {api_setup.token('ben')}"}
        answer = await http.post("/agent/sessions", json={}, headers=authorization)
        assert answer.json()["user_id"] == "ben"


async def test_the_cookie_is_secure_over_https(api_setup: ApiSetup, app: FastAPI) -> None:
    """16.2.2: also where a proxy ends TLS, and only its page knows."""
    for url, origin in (("https://api.test", "https://api.test"), ("http://api.test", "https://api.test")):
        async with browser(app, url) as http:
            sent = {"token": api_setup.token("ann")}
            answer = await http.post("/sign-in", json=sent, headers={"Origin": origin})
            (cookie,) = answer.headers.get_list("set-cookie")
            assert re.match("__Host-everstep-[0-9a-f]{16}=", cookie)
            assert {"Secure", "Path=/", "HttpOnly"} < set(cookie.split("; "))
            assert "Domain" not in cookie
            # The jar of the client sends it over https only; a proxy passes it on.
            passed_on = {"Cookie": cookie.partition(";")[0], PAGE_KEY_HEADER: answer.json()["page_key"]}
            assert (await http.get("/agent/inbox", headers=passed_on)).status_code == 200
            left = await http.post("/sign-out", json={}, headers={"Origin": origin, **passed_on})
            assert cookie.partition("=")[0] + '=""; ' in left.headers["set-cookie"]


async def test_a_ticket_is_good_for_one_connection(api_setup: ApiSetup) -> None:
    """16.2.4: and for nothing else."""
    sessions, api = api_setup.browser_sessions, api_setup.api
    caller = await api.authenticate(f"Bearer {api_setup.token('ann', 'approve')}")
    ticket = await sessions.create_ticket(caller)

    async with browser(make_app(api)) as http:
        answer = await http.get("/agent/inbox", headers={"Authorization": f"Bearer {ticket}"})
        assert_problem(answer, 401)
        assert_problem(await sign_in(http, code=ticket), 401)
    found = await sessions.take_ticket(ticket)
    assert found is not None
    assert (found.user_id, found.tenant_id, found.scopes) == ("ann", api_setup.tenant, ("approve",))
    assert await sessions.take_ticket(ticket) is None


@pytest.mark.parametrize(
    "sent", [{}, {"code": "a", "token": "b"}, {"token": "x" * 9000}, {"code": "a\0"}, {"who": 1}]
)
async def test_unusable_sign_ins_are_refused(app: FastAPI, sent: dict[str, Any]) -> None:
    async with browser(app) as http:
        assert_problem(await sign_in(http, **sent), 422)


async def test_an_api_without_authentication_needs_no_sign_in(api_setup: ApiSetup) -> None:
    """16.2.5"""
    api = replace(api_setup.api, requires_sign_in=False)
    async with browser(make_app(api)) as http:
        answer = (await http.get("/sign-in")).json()
        assert (answer["signed_in"], answer["required"], answer["user_id"]) == (True, False, "anybody")


def a_provider(tokens: dict[str, str]) -> tuple[FastAPI, list[dict[str, str]]]:
    """An identity provider that issues these tokens, and the forms that it received."""
    app, forms = FastAPI(), list[dict[str, str]]()

    async def describe(request: Request) -> JSONResponse:
        base = str(request.base_url)
        return JSONResponse({"authorization_endpoint": f"{base}authorize", "token_endpoint": f"{base}token"})

    async def token(request: Request) -> JSONResponse:
        form = {name: values[0] for name, values in parse_qs((await request.body()).decode()).items()}
        forms.append(form)
        good = form["code"] == "right" and form["code_verifier"] == "v" * 43
        return JSONResponse(tokens if good else {"error": "invalid_grant"}, 200 if good else 400)

    app.add_route("/.well-known/openid-configuration", describe)
    app.add_route("/token", token, methods=["POST"])
    return app, forms


async def test_a_code_of_an_identity_provider_becomes_a_session(api_setup: ApiSetup) -> None:
    """16.2.5: with PKCE; the ID token counts where the access token is not for this API."""
    tokens = {"access_token": "opaque", "id_token": api_setup.token("ann", "approve")}
    provider, forms = a_provider(tokens)

    def open_client() -> httpx2.AsyncClient:
        return httpx2.AsyncClient(transport=httpx2.ASGITransport(provider))

    known = IdentityProvider("https://id.example", "everstep-console", "hush", open_client=open_client)
    app = make_app(replace(api_setup.api, identity_provider=known))
    answer = {"code": "right", "verifier": "v" * 43, "redirect_uri": f"{URL}/console/signed-in"}
    async with browser(app) as http:
        described = (await http.get("/sign-in")).json()["provider"]
        assert described == {
            "authorization_endpoint": "https://id.example/authorize",
            "client_id": "everstep-console",
            "scope": "openid profile email",
        }
        wrong = await sign_in(http, provider={**answer, "code": "wrong"})
        assert_problem(wrong, 401, "sign in again")
        signed_in = (await sign_in(http, provider=answer)).json()
        assert (signed_in["user_id"], signed_in["scopes"]) == ("ann", ["approve"])
    assert forms[-1] == {
        "grant_type": "authorization_code",
        "client_id": "everstep-console",
        "client_secret": "hush",
        "code": "right",
        "code_verifier": "v" * 43,
        "redirect_uri": f"{URL}/console/signed-in",
    }


async def test_a_provider_has_to_be_configured(app: FastAPI) -> None:
    """16.2.5"""
    answer = {"code": "right", "verifier": "v" * 43, "redirect_uri": URL}
    async with browser(app) as http:
        assert_problem(await sign_in(http, provider=answer), 422, "send a token")
    secret = "x" * 32
    assert build_identity_provider(Settings(auth_secret=secret)) is None
    for issuer in (None, "any"):
        with pytest.raises(InvalidInput, match="EVERSTEP_CONSOLE_CLIENT_ID"):
            build_identity_provider(
                Settings(auth_secret=secret, auth_issuer=issuer, console_client_id="console")
            )
