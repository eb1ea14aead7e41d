"""What signs the tokens of a local installation: drawn once, in a file of its owner."""

import secrets
from pathlib import Path

from everstep.agent_domain.errors import InvalidInput
from everstep.runtime.embedded import write_private

SECRET = "api-secret"  # noqa: S105 -- the name of a file


def local_secret(data: Path) -> str | None:
    """What signs the tokens of a local installation, if it has begun once."""
    try:
        return (data / SECRET).read_text(encoding="ascii").strip() or None
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        raise InvalidInput(
            f"{data / SECRET} cannot be read: {error}; remove it, and `everstep up` makes another"
        ) from None


def made_secret(data: Path) -> str:
    """The same, drawn when there is none. Only its owner may read it."""
    if known := local_secret(data):
        return known
    write_private(data / SECRET, secrets.token_urlsafe(48) + "\n")
    return local_secret(data) or made_secret(data)
