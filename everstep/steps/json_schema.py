"""Checks data against a JSON schema. Models write schemas, so references in them are never fetched."""

from collections.abc import Mapping
from typing import Any, NoReturn

import jsonschema_rs

from everstep.agent_domain.errors import InvalidInput
from everstep.agent_domain.values import thaw

MAX_REPORTED = 3
"""How many errors are reported: enough to correct an answer, and not a page."""

UNUSABLE = "the schema itself cannot be used: "


def check(schema: Mapping[str, Any], data: Any) -> str | None:
    """Validate data; return the errors as one text, including those of the schema itself, or None."""
    try:
        # Patterns are matched in linear time: models write them.
        validator = jsonschema_rs.validator_for(
            thaw(schema), retriever=_fetch_nothing, pattern_options=jsonschema_rs.RegexOptions()
        )
    except jsonschema_rs.ValidationError as error:
        return f"{UNUSABLE}{error.message}"
    except (ValueError, jsonschema_rs.ReferencingError) as error:
        return f"{UNUSABLE}{error}"
    faults = [
        _error_text(error)
        for _, error in zip(range(MAX_REPORTED), validator.iter_errors(thaw(data)), strict=False)
    ]
    return "; ".join(faults) or None


def require_usable(schema: Mapping[str, Any], where: str) -> None:
    """Refuse a schema that no data can be checked against.

    Args:
        schema: The schema.
        where: What it is, for the message.

    Raises:
        InvalidInput: It is invalid.
    """
    problem = check(schema, None) or ""
    if problem.startswith(UNUSABLE):
        raise InvalidInput(f"{where} cannot be used: {problem.removeprefix(UNUSABLE)}")


def _error_text(error: jsonschema_rs.ValidationError) -> str:
    place = "/".join(str(part) for part in error.instance_path)
    return f"{place}: {error.message}" if place else error.message


def _fetch_nothing(uri: str) -> NoReturn:
    raise ValueError(f"{uri} is not fetched; write the schema out in full")
