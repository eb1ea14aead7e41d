"""Access to the API of an installation: its settings, and the secret of a local one."""

import stat
from pathlib import Path
from typing import cast

import pytest

from everstep.agent_domain.errors import InvalidInput
from everstep.agent_domain.storage.keys import KeyStore
from everstep.agent_domain.stream.channels import derived_secret
from everstep.http_api.auth import ANONYMOUS
from everstep.http_api.callers import Caller, Grant
from everstep.http_api.problems import Refusal
from everstep.http_api.tokens import sign_token
from everstep.runtime.authorization import LOCAL_USER, build_authenticator, channel_signer, local_token
from everstep.runtime.local_secret import SECRET_FILE, find_local_secret, make_local_secret
from everstep.runtime.settings import Settings

NO_KEYS = cast("KeyStore", None)
A_SECRET = "x" * 32


def test_a_secret_is_generated_once_and_is_readable_only_by_its_owner(tmp_path: Path) -> None:
    assert find_local_secret(tmp_path) is None
    drawn = make_local_secret(tmp_path)

    assert make_local_secret(tmp_path) == find_local_secret(tmp_path) == drawn
    assert len(drawn) >= 32
    assert [path.name for path in tmp_path.iterdir()] == [SECRET_FILE]
    assert stat.S_IMODE((tmp_path / SECRET_FILE).stat().st_mode) == 0o600


def test_an_empty_secret_is_generated_again(tmp_path: Path) -> None:
    (tmp_path / SECRET_FILE).write_text("\n")

    assert make_local_secret(tmp_path)


@pytest.mark.parametrize("content", [b"\xff\xfe", None])
def test_an_unreadable_secret_is_reported(tmp_path: Path, content: bytes | None) -> None:
    if content is None:
        (tmp_path / SECRET_FILE).mkdir()
    else:
        (tmp_path / SECRET_FILE).write_bytes(content)

    with pytest.raises(InvalidInput, match="remove it"):
        find_local_secret(tmp_path)


async def test_a_local_token_has_all_scopes_of_the_local_tenant() -> None:
    settings = Settings(auth_secret=A_SECRET)
    token = local_token(settings)

    caller = await build_authenticator(settings, NO_KEYS)(f"Bearer {token}")

    grants = frozenset({Grant.ALL_SESSIONS, Grant.APPROVE, Grant.EDIT, Grant.ADMIN})
    assert caller == Caller(LOCAL_USER, "default", grants)
    assert set(caller.scopes) == {"sessions:all", "approve", "approve:edit", "admin"}
    assert local_token(Settings()) is None


async def test_a_local_token_has_the_configured_issuer_and_audience() -> None:
    settings = Settings(auth_secret=A_SECRET, auth_issuer="https://id.example", auth_audience="any")

    caller = await build_authenticator(settings, NO_KEYS)(f"Bearer {local_token(settings)}")

    assert caller.user_id == LOCAL_USER


def test_an_identity_provider_needs_an_issuer_and_an_audience() -> None:
    """8.9.1"""
    with pytest.raises(InvalidInput, match="EVERSTEP_AUTH_AUDIENCE=any"):
        build_authenticator(
            Settings(auth_jwks_url="https://id.example/jwks", auth_issuer="https://id.example"), NO_KEYS
        )


async def test_without_a_secret_only_keys_are_accepted(caplog: pytest.LogCaptureFixture) -> None:
    opens = build_authenticator(Settings(), NO_KEYS)

    with pytest.raises(Refusal, match="everstep keys create"):
        await opens(f"Bearer {sign_token(A_SECRET, 'ann')}")
    assert "EVERSTEP_AUTH_SECRET" in caplog.text


async def test_authentication_is_disabled_only_on_request(caplog: pytest.LogCaptureFixture) -> None:
    assert await build_authenticator(Settings(auth="off"), NO_KEYS)(None) is ANONYMOUS
    assert "EVERSTEP_AUTH=off" in caplog.text


def test_the_gateways_secret_is_configured_or_derived() -> None:
    assert channel_signer(Settings()) is None
    told = channel_signer(Settings(auth_secret=A_SECRET, broadcast_key="shop"))
    assert told
    assert (told.key, told.secret) == ("shop", derived_secret(A_SECRET))
    told = channel_signer(Settings(auth_secret=A_SECRET, broadcast_secret="hush" * 10))
    assert told
    assert told.secret == "hush" * 10


def test_settings_are_read_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EVERSTEP_ALLOWED_ORIGINS", "https://a.example, https://b.example,")
    monkeypatch.setenv("EVERSTEP_RELATED_TYPES", "order")
    monkeypatch.setenv("EVERSTEP_HTTP_PORT", "0")

    settings = Settings.read()

    assert settings.allowed_origins == ("https://a.example", "https://b.example")
    assert settings.related_types == ("order",)
    assert settings.with_ports(http_port=None).http_port == 0
    assert settings.with_ports(http_port=80).http_port == 80


@pytest.mark.parametrize(
    ("name", "value"),
    [("EVERSTEP_AUTH", "maybe"), ("EVERSTEP_AUTH_SECRET", "short"), ("EVERSTEP_HTTP_PORT", "70000")],
)
def test_invalid_settings_are_refused(monkeypatch: pytest.MonkeyPatch, name: str, value: str) -> None:
    monkeypatch.setenv(name, value)

    with pytest.raises(InvalidInput, match="cannot be used"):
        Settings.read()
