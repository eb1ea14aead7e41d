"""The secret that signs a local installation's tokens, generated once and stored in a private file."""

import secrets
from pathlib import Path

from everstep.agent_domain.errors import InvalidInput
from everstep.runtime.embedded import write_private

SECRET = "api-secret"  # noqa: S105 -- the name of a file


def local_secret(data: Path) -> str | None:
    """Return the secret, or None if the installation was never started."""
    try:
        return (data / SECRET).read_text(encoding="ascii").strip() or None
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        raise InvalidInput(
            f"{data / SECRET} cannot be read: {error}; remove it, and `everstep up` creates a new one"
        ) from None


def made_secret(data: Path) -> str:
    """Return the secret, generated if there is none. Only its owner may read the file."""
    if known := local_secret(data):
        return known
    write_private(data / SECRET, secrets.token_urlsafe(48) + "\n")
    return local_secret(data) or made_secret(data)
