"""The JSON schema of a result, on a command line or in a file."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from everstep.agent_domain.errors import InvalidInput
from everstep.agent_domain.values import frozen_map, parse_json, truncate

_SHOWN = 64


def read_schema(given: str) -> Mapping[str, Any]:
    """Read a schema: text that begins like a JSON object, or else the path of a file.

    Raises:
        InvalidInput: There is no such file, or it is not a JSON object.
    """
    if given.lstrip().startswith("{"):
        return frozen_map(parse_json(given, "--output"), "--output")
    try:
        text = Path(given).read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
        raise InvalidInput(
            f"--output '{truncate(given, _SHOWN)}' cannot be read: {reason}; "
            "pass a JSON schema, or the path of its file"
        ) from None
    return frozen_map(parse_json(text, given), given)
