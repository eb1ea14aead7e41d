"""Secrets in files, as containers mount them: `DATABASE_URL_FILE=/run/secrets/database` sets `DATABASE_URL`.

The variable is set for this process, so that everything that reads it, hides it or passes it on works as if
it had been given directly.
"""

import re
from collections.abc import MutableMapping
from pathlib import Path

from everstep.agent_domain.errors import InvalidInput

SUFFIX = "_FILE"
MAX_BYTES = 65_536

_SECRETS = re.compile(
    r"((EVERSTEP_)?DATABASE_((DIRECT|REPLICA)_)?URL|EVERSTEP_(PAYLOAD_KEY|AUTH_SECRET|BROADCAST_SECRET|CONSOLE_CLIENT_SECRET"
    r"|API_TOKEN|NATS_URL)|AWS_SECRET_ACCESS_KEY|[A-Z0-9_]*API_KEY)"
)
"""The variables that may be in files: secrets of Everstep, and keys of providers."""


def read_secret_files(environ: MutableMapping[str, str]) -> None:
    """Set the variables whose values are in files.

    Raises:
        InvalidInput: A file cannot be read, is empty, or its variable is set as well.
    """
    for name in sorted(environ):
        variable = name.removesuffix(SUFFIX)
        if variable == name or not _SECRETS.fullmatch(variable) or not environ[name]:
            continue
        if environ.get(variable):
            raise InvalidInput(f"{variable} and {name} are both set; set one of them")
        environ[variable] = _read(name, Path(environ[name]))


def is_secret_file(name: str) -> bool:
    """Whether an environment variable names the file of a secret."""
    return name.endswith(SUFFIX) and _SECRETS.fullmatch(name.removesuffix(SUFFIX)) is not None


def _read(name: str, path: Path) -> str:
    try:
        with path.open("rb") as file:
            content = file.read(MAX_BYTES + 1)
        text = content.decode()
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not text"
        raise InvalidInput(f"{name} names '{path}', which cannot be read: {reason}") from None
    secret = text.strip()
    if not secret or len(content) > MAX_BYTES or "\0" in secret:
        raise InvalidInput(f"{name} names '{path}', which is empty or holds no secret")
    return secret
