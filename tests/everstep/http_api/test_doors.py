"""Authentication: tokens, keys, and pages in browsers."""

import base64
import hmac
import json
import logging
import re
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import uuid4

import jwt
import pytest
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.hazmat.primitives.asymmetric.rsa import RSAPrivateKey
from jwt.algorithms import ECAlgorithm, RSAAlgorithm

from everstep.agent_domain.errors import InvalidInput
from everstep.agent_domain.ids import DEFAULT_TENANT
from everstep.http_api.api_keys import PREFIX, create_key, digest_of
from everstep.http_api.auth import ANONYMOUS, READ_MARKER, Authenticator, allow_all
from everstep.http_api.callers import Caller, Grant
from everstep.http_api.jwks import COOLDOWN_SECONDS, MAX_AGE_SECONDS, KeySet
from everstep.http_api.pages import PUBLIC_ROUTES
from everstep.http_api.problems import Refusal
from everstep.http_api.tokens import ANY, LATEST, LEEWAY, Tokens
from tests.everstep.http_api.house import (
    ORIGIN,
    SECRET,
    ApiCaller,
    ApiSetup,
    assert_problem,
    assert_refused,
    http_client,
)

RSA_KEYS = [rsa.generate_private_key(65537, 2048) for _ in range(2)]
EC_KEY = ec.generate_private_key(ec.SECP256R1())
URL = "https://id.example/jwks"


def claims(**given: Any) -> dict[str, Any]:
    soon = datetime.now(UTC) + timedelta(minutes=5)
    return {"sub": "ann", "tenant": "acme", "exp": soon} | given


def token_signed_with_secret(
    payload: Mapping[str, Any], secret: str = SECRET, algorithm: str = "HS256"
) -> str:
    return jwt.encode({**payload}, secret, algorithm)


async def refusal_of(tokens: Tokens, token: str) -> str:
    with pytest.raises(Refusal) as raised:
        await tokens.caller(token)
    assert raised.value.status == 401
    return raised.value.detail


async def test_a_token_names_its_user() -> None:
    caller = await Tokens(SECRET).caller(
        token_signed_with_secret(claims(scope="openid sessions:all profile"))
    )

    assert caller == Caller("ann", "acme", frozenset({Grant.ALL_SESSIONS}))


async def test_scopes_may_be_a_list_and_a_tenant_may_be_left_out() -> None:
    payload = claims(scope=["read-only"])
    del payload["tenant"]

    caller = await Tokens(SECRET).caller(token_signed_with_secret(payload))

    assert caller == Caller("ann", DEFAULT_TENANT, frozenset({Grant.READ_ONLY}))


@pytest.mark.parametrize(
    ("payload", "words"),
    [
        ({"exp": datetime.now(UTC) - timedelta(seconds=LEEWAY + 5)}, "expired"),
        ({"exp": None}, "not valid"),
        ({"exp": "soon"}, "not valid"),
        ({"exp": 1e300}, "sub"),
        ({"sub": None}, "not valid"),
        ({"sub": ""}, "sub"),
        ({"sub": "x" * 201}, "sub"),
        ({"sub": "a\x00"}, "sub"),
        ({"sub": ["ann"]}, "not valid"),
        ({"tenant": 7}, "tenant"),
        ({"roles": 7}, "roles"),
        ({"tenant": None}, "tenant"),
        ({"scope": 7}, "scope"),
        ({"nbf": datetime.now(UTC) + timedelta(hours=1)}, "not valid"),
    ],
)
async def test_a_token_without_the_required_claims_is_refused(payload: dict[str, Any], words: str) -> None:
    told = claims(**payload)
    if payload == {"exp": 1e300}:
        told["sub"] = ""

    token = token_signed_with_secret(
        {name: value for name, value in told.items() if value is not None or name == "tenant"}
    )
    assert words in await refusal_of(Tokens(SECRET), token)


async def test_a_token_is_accepted_within_the_clock_skew() -> None:
    late = claims(exp=datetime.now(UTC) - timedelta(seconds=LEEWAY - 10))

    assert (await Tokens(SECRET).caller(token_signed_with_secret(late))).user_id == "ann"


@pytest.mark.parametrize(
    "token",
    [
        "",
        "x",
        "a.b.c",
        "é" * 20,
        token_signed_with_secret(claims(), "another secret that is long enough for it"),
        token_signed_with_secret(claims(), SECRET * 2, algorithm="HS384"),
        jwt.encode(claims(), "", "none"),
        jwt.encode(claims(), RSA_KEYS[0], "RS256"),
        "eyJhbGciOiJIUzI1NiJ9" + "." + "W" * 4000 + ".x",
        "x" * 9000,
    ],
    # With ids, because most of these tokens differ in each run.
    ids=["none", "short", "parts", "no ascii", "secret", "method", "unsigned", "key", "long part", "long"],
)
async def test_a_token_with_another_signature_is_refused(token: str) -> None:
    await refusal_of(Tokens(SECRET), token)


async def test_issuer_and_audience_are_checked_if_configured() -> None:
    tokens = Tokens(SECRET, issuer="https://id.example", audience="everstep")
    right = {"iss": "https://id.example", "aud": "everstep"}

    assert (await tokens.caller(token_signed_with_secret(claims(**right)))).user_id == "ann"
    for wrong in ({}, {**right, "iss": "https://evil.example"}, {**right, "aud": "shop"}):
        await refusal_of(tokens, token_signed_with_secret(claims(**wrong)))


@pytest.mark.parametrize("given", [{}, {"issuer": "x"}, {"audience": "x"}, {"issuer": "", "audience": "x"}])
def test_keys_of_a_provider_need_an_issuer_and_an_audience(given: dict[str, str]) -> None:
    """8.9.1"""
    with pytest.raises(InvalidInput, match=r"EVERSTEP_AUTH_(ISSUER|AUDIENCE)=any"):
        Tokens(SECRET, KeySet(URL, Provider().fetch), **given)


async def test_a_providers_token_for_another_application_is_refused() -> None:
    """8.9.1"""
    provider = Provider(("one", RSA_KEYS[0]))
    keys = KeySet(URL, provider.fetch, lambda: 0.0)
    strict = Tokens(keys=keys, issuer="https://id.example", audience="everstep")
    right: dict[str, Any] = {"iss": "https://id.example", "aud": "everstep"}
    wrongs: tuple[dict[str, Any], ...] = (
        {"aud": "shop"},
        {"aud": ["shop"]},
        {"iss": "https://evil.example"},
        {"aud": None},
        {"iss": None},
    )

    assert (await strict.caller(token_signed_with_key(RSA_KEYS[0], "one", **right))).user_id == "ann"
    for wrong in wrongs:
        named: dict[str, Any] = {name: value for name, value in (right | wrong).items() if value is not None}
        await refusal_of(strict, token_signed_with_key(RSA_KEYS[0], "one", scope="sessions:all", **named))
    any_audience = Tokens(keys=keys, issuer="https://id.example", audience=ANY)
    assert (
        await any_audience.caller(token_signed_with_key(RSA_KEYS[0], "one", **right | {"aud": "shop"}))
    ).user_id == "ann"


@pytest.mark.parametrize("sub", ["key:", "key:0190b4a6-4a53-7c2e-9a0e-0c7f6f1f7a10", "local", "anybody"])
async def test_a_token_does_not_name_a_reserved_user(sub: str) -> None:
    """8.9.2"""
    assert "choose another name" in await refusal_of(
        Tokens(SECRET), token_signed_with_secret(claims(sub=sub))
    )


async def test_a_token_with_all_scopes_may_name_the_service_user() -> None:
    """8.9.2"""
    token = token_signed_with_secret(claims(sub="local", scope="sessions:all"))
    assert (await Tokens(SECRET).caller(token)).user_id == "local"


async def test_a_key_acts_for_itself_only(api_setup: ApiSetup, ann: ApiCaller) -> None:
    """8.9.2: neither for a service, nor for another key."""
    made = await create_key(api_setup.keys, "shop", tenant_id=api_setup.tenant, scopes=["sessions:all"])
    theirs = f"key:{uuid4()}"
    headers = {"Authorization": f"Bearer {made.secret}"}
    async with http_client(ann.app, headers) as service:
        assert_problem(
            await service.post("/agent/sessions", json={"user_id": theirs}), 422, "reserved for keys"
        )
        own = await service.post("/agent/sessions", json={"user_id": f"key:{made.key.id}"})
        assert own.status_code == 201
    with pytest.raises(InvalidInput, match="reserved for keys"):
        await create_key(api_setup.keys, "shop", user_id=theirs)


def test_a_short_secret_is_refused() -> None:
    with pytest.raises(InvalidInput, match="32 bytes"):
        Tokens("x" * 31)


async def test_a_caller_is_cached_until_the_token_expires() -> None:
    soon = datetime.now(UTC).replace(microsecond=0) + timedelta(minutes=5)

    caller = await Tokens(SECRET).caller(token_signed_with_secret(claims(exp=soon)))
    for_good = await Tokens(SECRET).caller(token_signed_with_secret(claims(exp=10**400)))

    assert caller.expires_at == soon.timestamp() + LEEWAY
    assert for_good.expires_at == LATEST + LEEWAY
    assert caller == for_good
    assert ANONYMOUS.expires_at is None


# Keys of an identity provider.


class Provider:
    """Publishes keys, and counts the requests for them."""

    def __init__(self, *keys: tuple[str, Any]) -> None:
        self.keys = [*keys]
        self.looks = 0
        self.now = 0.0
        self.is_down = False

    async def fetch(self, url: str) -> bytes:
        assert url == URL
        self.looks += 1
        if self.is_down:
            raise OSError("nobody answers")
        return json.dumps(
            {"keys": [{**json.loads(_jwk(key)), "kid": kid} for kid, key in self.keys]}
        ).encode()

    @property
    def tokens(self) -> Tokens:
        return Tokens(keys=KeySet(URL, self.fetch, lambda: self.now), issuer=ANY, audience=ANY)


def _jwk(key: Any) -> str:
    public = key.public_key()
    return RSAAlgorithm.to_jwk(public) if isinstance(key, RSAPrivateKey) else ECAlgorithm.to_jwk(public)


def token_signed_with_key(key: Any, kid: str | None, algorithm: str = "RS256", **given: Any) -> str:
    return jwt.encode(claims(**given), key, algorithm, headers={"kid": kid} if kid else None)


async def test_a_providers_keys_are_fetched_once() -> None:
    provider = Provider(("one", RSA_KEYS[0]), ("two", EC_KEY))
    tokens = provider.tokens

    for _ in range(3):
        assert (await tokens.caller(token_signed_with_key(RSA_KEYS[0], "one"))).user_id == "ann"
        assert (await tokens.caller(token_signed_with_key(EC_KEY, "two", "ES256"))).user_id == "ann"

    assert provider.looks == 1


async def test_a_new_key_is_fetched_at_once_but_with_a_rate_limit() -> None:
    provider = Provider(("one", RSA_KEYS[0]))
    tokens = provider.tokens
    await tokens.caller(token_signed_with_key(RSA_KEYS[0], "one"))
    provider.keys = [("two", RSA_KEYS[1])]

    await refusal_of(tokens, token_signed_with_key(RSA_KEYS[1], "two"))
    provider.now += COOLDOWN_SECONDS
    assert (await tokens.caller(token_signed_with_key(RSA_KEYS[1], "two"))).user_id == "ann"
    for number in range(20):
        await refusal_of(tokens, token_signed_with_key(RSA_KEYS[1], f"unknown {number}"))

    assert provider.looks == 2


async def test_a_withdrawn_key_is_refused_after_a_while() -> None:
    provider = Provider(("one", RSA_KEYS[0]), ("two", RSA_KEYS[1]))
    tokens = provider.tokens
    await tokens.caller(token_signed_with_key(RSA_KEYS[0], "one"))
    provider.keys = [("two", RSA_KEYS[1])]
    provider.now += MAX_AGE_SECONDS

    await refusal_of(tokens, token_signed_with_key(RSA_KEYS[0], "one"))


async def test_cached_keys_are_accepted_while_the_provider_is_unreachable() -> None:
    provider = Provider(("one", RSA_KEYS[0]))
    tokens = provider.tokens
    await tokens.caller(token_signed_with_key(RSA_KEYS[0], "one"))
    provider.is_down, provider.now = True, MAX_AGE_SECONDS

    assert (await tokens.caller(token_signed_with_key(RSA_KEYS[0], "one"))).user_id == "ann"


async def test_without_any_key_the_provider_is_reported_as_unreachable() -> None:
    provider = Provider()
    provider.is_down = True

    with pytest.raises(Refusal) as raised:
        await provider.tokens.caller(token_signed_with_key(RSA_KEYS[0], "one"))

    assert raised.value.status == 503


async def test_a_public_key_is_not_a_signing_secret() -> None:
    """The algorithm confusion attack: a token that is signed with the public key as its secret."""
    provider = Provider(("one", RSA_KEYS[0]))
    public = _jwk(RSA_KEYS[0]).encode()
    # Built by hand: the library does not sign with a public key.
    head, body, _ = token_signed_with_secret(claims()).split(".")
    signature = hmac.new(public, f"{head}.{body}".encode(), "sha256").digest()
    forged = f"{head}.{body}.{base64.urlsafe_b64encode(signature).decode().rstrip('=')}"

    assert "not valid" in await refusal_of(provider.tokens, forged)
    await refusal_of(provider.tokens, token_signed_with_key(RSA_KEYS[0], "one", "RS512"))
    await refusal_of(provider.tokens, token_signed_with_key(RSA_KEYS[0], None))
    await refusal_of(provider.tokens, token_signed_with_secret(claims()))


@pytest.mark.parametrize(
    "document",
    [b"", b"[]", b'{"keys": 1}', b'{"keys": [1, {"kid": "x"}, {"kty": "RSA", "kid": "y"}]}', b"[" * 9000],
)
async def test_a_document_that_holds_no_keys_authenticates_no_caller(document: bytes) -> None:
    async def fetch(_url: str) -> bytes:
        return document

    with pytest.raises(Refusal):
        await Tokens(keys=KeySet(URL, fetch), issuer=ANY, audience=ANY).caller(
            token_signed_with_key(RSA_KEYS[0], "one")
        )


# Keys of services.


async def test_a_key_is_shown_once_and_stored_as_a_digest(api_setup: ApiSetup) -> None:
    made = await create_key(api_setup.keys, "shop", tenant_id=api_setup.tenant, scopes=["sessions:all"])

    kept = (await api_setup.keys.keys(api_setup.tenant))[0]
    assert made.secret.startswith(PREFIX)
    assert kept.name == "shop"
    assert kept.last_used_at is None
    assert made.secret not in str(kept)
    assert await api_setup.keys.key(digest_of(made.secret))
    caller = await Authenticator(None, api_setup.keys)(f"Bearer {made.secret}")
    assert caller == Caller(f"key:{made.key.id}", api_setup.tenant, frozenset({Grant.ALL_SESSIONS}))
    assert (await api_setup.keys.keys(api_setup.tenant))[0].last_used_at is not None


async def test_a_key_may_act_for_one_user(api_setup: ApiSetup) -> None:
    made = await create_key(api_setup.keys, "phone", tenant_id=api_setup.tenant, user_id="ann")

    assert await Authenticator(None, api_setup.keys)(f"bearer  {made.secret}") == Caller(
        "ann", api_setup.tenant
    )


async def test_a_revoked_key_is_refused(api_setup: ApiSetup) -> None:
    made = await create_key(api_setup.keys, "shop", tenant_id=api_setup.tenant)
    door = Authenticator(None, api_setup.keys)
    await door(f"Bearer {made.secret}")

    assert not await api_setup.keys.revoke_key("another tenant", made.key.id)
    await door(f"Bearer {made.secret}")
    assert await api_setup.keys.revoke_key(api_setup.tenant, made.key.id)
    with pytest.raises(Refusal, match="unknown or revoked"):
        await door(f"Bearer {made.secret}")


@pytest.mark.parametrize(
    ("name", "given", "words"),
    [
        ("x", {"scopes": ["all"]}, "unknown scope 'all'"),
        ("x", {"scopes": ["approve", "approve:edti"]}, "unknown scope 'approve:edti'"),
        ("x", {"scopes": ["shop:"]}, "unknown scope 'shop:'"),
        ("x", {"scopes": ["shop:pay back"]}, "unknown scope 'shop:pay back'"),
        ("x" * 201, {}, "name"),
        (" ", {}, "name"),
        ("x", {"tenant_id": ""}, "tenant"),
        ("x", {"user_id": "a\x00"}, "NUL"),
    ],
)
async def test_a_key_needs_known_scopes(api_setup: ApiSetup, name: str, given: Any, words: str) -> None:
    with pytest.raises(InvalidInput, match=words):
        await create_key(api_setup.keys, name, **given)


@pytest.mark.parametrize(
    "header",
    [
        None,
        "",
        "Bearer",
        "Bearer ",
        "Basic YTpi",
        "x",
        f"Bearer {PREFIX}x",
        f"Bearer {PREFIX}{'x' * 43}",
        "Bearer x",
    ],
)
async def test_a_request_without_a_key_or_token_is_refused(api_setup: ApiSetup, header: str | None) -> None:
    with pytest.raises(Refusal) as raised:
        await Authenticator(None, api_setup.keys)(header)

    assert raised.value.status == 401


async def test_an_api_without_authentication_says_so(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        caller = await allow_all()(None)

    assert caller is ANONYMOUS
    assert "EVERSTEP_AUTH=off" in caplog.text


# The middleware of the API.


async def test_every_address_that_is_not_public_requires_authentication(ann: ApiCaller) -> None:
    async with http_client(ann.app) as stranger:
        for path, operations in (await ann.get("/openapi.json"))["paths"].items():
            for method in operations:
                answer = await stranger.request(method.upper(), path.replace("{", "").replace("}", ""))
                if (path, method) == ("/sign-in", "post"):
                    assert_problem(answer, 422)
                elif path in PUBLIC_ROUTES:
                    assert answer.status_code == 200
                else:
                    assert_refused(answer, path, 401, "Authorization: Bearer")
                    assert answer.headers["www-authenticate"].startswith("Bearer")


async def test_a_read_only_token_changes_nothing(ann: ApiCaller, api_setup: ApiSetup) -> None:
    session = await ann.create_session()
    token = api_setup.token("ann", "read-only")
    async with http_client(ann.app, {"Authorization": f"Bearer {token}"}) as reader:
        for path, operations in (await ann.get("/openapi.json"))["paths"].items():
            for method in operations.keys() - {"get"}:
                if READ_MARKER not in operations[method] and path not in PUBLIC_ROUTES:
                    names = dict.fromkeys(re.findall(r"{(\w+)}", path), str(uuid4()))
                    address = path.format(**names | {"session_id": session})
                    refused = await reader.request(method.upper(), address, json={})
                    assert_refused(refused, path, 403, "read-only")
        assert (await reader.get(f"/agent/sessions/{session}")).status_code == 200
        channel = {"socket_id": "1.2", "channel_name": f"private-agent.session.{session}"}
        assert (await reader.post("/broadcasting/auth", json=channel)).status_code == 200


@pytest.mark.parametrize(
    "origin", ["https://evil.example", "null", f"{ORIGIN}.evil.example", "http://shop.example", "x"]
)
async def test_a_page_of_another_origin_is_refused(ann: ApiCaller, origin: str) -> None:
    answer = await ann.http.get("/agent/sessions", headers={"Origin": origin})

    assert_problem(answer, 403, "EVERSTEP_ALLOWED_ORIGINS")
    assert "access-control-allow-origin" not in answer.headers


@pytest.mark.parametrize(
    "origin", [ORIGIN, "https://SHOP.example", "http://api.test", "https://api.test:443"]
)
async def test_pages_of_allowed_origins_may_use_the_api(ann: ApiCaller, origin: str) -> None:
    answer = await ann.http.get("/agent/sessions", headers={"Origin": origin})

    assert answer.status_code == 200
    if "shop" in origin.lower():
        assert answer.headers["access-control-allow-origin"] == origin.lower()
        assert "Idempotency-Replayed" in answer.headers["access-control-expose-headers"]


async def test_a_browser_may_send_a_preflight_request(ann: ApiCaller) -> None:
    async with http_client(ann.app) as browser:
        answer = await browser.options("/agent/sessions", headers={"Origin": ORIGIN})

    assert answer.status_code == 204
    assert "Idempotency-Key" in answer.headers["access-control-allow-headers"]
