"""The ids of what messages create."""

from uuid import UUID, uuid5

from everstep.agent_domain.values import json_text

NAMESPACE = UUID("b7f3a1de-3b1c-4c1e-8a55-0f5c8f3a9d21")
"""The namespace of ids that derive from idempotency keys; it must never change."""


def message_id(tenant_id: str, user_id: str, key: str, what: str) -> UUID:
    """Return the id of what a message creates, which derives from the message's idempotency key."""
    owner = f"{tenant_id}/{user_id}"
    if owner.count("/") > 1:
        # Names with a slash would be ambiguous.
        owner = json_text([tenant_id, user_id])
    return uuid5(NAMESPACE, f"{owner}/{key}/{what}")
