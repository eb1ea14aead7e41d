"""What signs the tokens of a local installation: drawn once, in a file of its owner."""

import os
import secrets
from pathlib import Path

from agent_domain.errors import InvalidInput

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
    """The same, drawn when there is none. Nobody but its owner may read it."""
    if known := local_secret(data):
        return known
    drawn = data / f"{SECRET}.{os.getpid()}"
    drawn.unlink(missing_ok=True)
    with open(drawn, "x", encoding="ascii", opener=_private) as file:
        file.write(secrets.token_urlsafe(48) + "\n")
    drawn.replace(data / SECRET)
    return local_secret(data) or made_secret(data)


def _private(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)
