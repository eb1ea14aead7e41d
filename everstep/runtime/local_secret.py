"""The secret that signs a local installation's tokens, generated once and stored in a private file."""

import secrets
from pathlib import Path

from everstep.agent_domain.errors import InvalidInput
from everstep.runtime.embedded import write_private

SECRET_FILE = "api-secret"  # noqa: S105 -- the name of a file


def find_local_secret(data: Path) -> str | None:
    """Return the secret, or None if the installation was never started."""
    try:
        return (data / SECRET_FILE).read_text(encoding="ascii").strip() or None
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        raise InvalidInput(
            f"{data / SECRET_FILE} cannot be read: {error}; remove it, and `everstep up` creates a new one"
        ) from None


def make_local_secret(data: Path) -> str:
    """Return the secret, generated if there is none. Only its owner may read the file."""
    if known := find_local_secret(data):
        return known
    write_private(data / SECRET_FILE, secrets.token_urlsafe(48) + "\n")
    return find_local_secret(data) or make_local_secret(data)
