"""Static keys for services: shown once, stored as a digest, revoked by id."""

import hashlib
import secrets
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from uuid import uuid4

from everstep.agent_domain.ids import DEFAULT_TENANT
from everstep.agent_domain.storage.keys import ApiKey, KeyStore
from everstep.http_api.callers import KEY_USER, Caller, grants_of, require_person, valid_name

PREFIX = "esk_"
"""How a key begins, so that people and scanners recognise one."""

_LENGTH = len(PREFIX) + 43


@dataclass(frozen=True, slots=True)
class NewKey:
    """A key that was just made, and the only sight of its secret."""

    key: ApiKey
    secret: str


def digest_of(secret: str) -> str:
    """What is stored of a key: nobody guesses 256 random bits, so that no slower digest is needed."""
    return hashlib.sha256(secret.encode()).hexdigest()


async def create_key(
    store: KeyStore,
    name: str,
    *,
    tenant_id: str = DEFAULT_TENANT,
    user_id: str | None = None,
    scopes: Sequence[str] = (),
) -> NewKey:
    """Make a key; without a user it acts as itself."""
    for what, value in (
        ("name", name),
        ("tenant", tenant_id),
        ("user", name if user_id is None else user_id),
    ):
        valid_name(what, value)
    require_person("user", user_id)
    secret = PREFIX + secrets.token_urlsafe(32)
    key = ApiKey(uuid4(), tenant_id, name, user_id, grants_of(scopes), datetime.now(UTC))
    await store.create_key(key, digest_of(secret))
    return NewKey(key, secret)


async def caller_of(store: KeyStore, secret: str) -> Caller | None:
    """Whose key this is; None for one that opens nothing."""
    if len(secret) != _LENGTH or not secret.isascii():
        return None
    key = await store.key(digest_of(secret))
    if key is None or key.revoked_at is not None:
        return None
    caller = Caller.named(key.user_id or f"{KEY_USER}{key.id}", key.tenant_id, key.scopes)
    return replace(caller, key_id=key.id)
