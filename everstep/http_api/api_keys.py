"""Static keys for services: shown once, stored as a digest, revoked by id."""

import hashlib
import secrets
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from uuid import uuid4

from everstep.agent_domain.ids import DEFAULT_TENANT
from everstep.agent_domain.storage.keys import ApiKey, KeyStore
from everstep.http_api.callers import KEY_USER_PREFIX, Caller, require_person, validate_name, validate_scopes

PREFIX = "esk_"
"""The prefix of every key, so that people and secret scanners recognise one."""

_LENGTH = len(PREFIX) + 43


@dataclass(frozen=True, slots=True)
class NewKey:
    """A new key with its secret, which is not stored."""

    key: ApiKey
    secret: str


def digest_of(secret: str) -> str:
    """The stored digest of a key. 256 random bits cannot be guessed, so a fast hash is sufficient."""
    return hashlib.sha256(secret.encode()).hexdigest()


async def create_key(
    store: KeyStore,
    name: str,
    *,
    tenant_id: str = DEFAULT_TENANT,
    user_id: str | None = None,
    scopes: Sequence[str] = (),
) -> NewKey:
    """Create a key.

    Args:
        store: Where the key is stored.
        name: A name for people.
        tenant_id: The tenant that the key gives access to.
        user_id: The user that the key acts for; by default a user of the key.
        scopes: The key's scopes, of `Grant`.

    Raises:
        InvalidInput: A name or a scope is invalid.
    """
    for what, value in (
        ("name", name),
        ("tenant", tenant_id),
        ("user", name if user_id is None else user_id),
    ):
        validate_name(what, value)
    require_person("user", user_id)
    secret = PREFIX + secrets.token_urlsafe(32)
    key = ApiKey(uuid4(), tenant_id, name, user_id, validate_scopes(scopes), datetime.now(UTC))
    await store.create_key(key, digest_of(secret))
    return NewKey(key, secret)


async def find_caller(store: KeyStore, secret: str) -> Caller | None:
    """The caller that a key identifies; None if the key is unknown or revoked."""
    if len(secret) != _LENGTH or not secret.isascii():
        return None
    key = await store.key(digest_of(secret))
    if key is None or key.revoked_at is not None:
        return None
    caller = Caller.from_claims(key.user_id or f"{KEY_USER_PREFIX}{key.id}", key.tenant_id, key.scopes)
    return replace(caller, key_id=key.id)
