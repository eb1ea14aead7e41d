"""Checks of the numbers in policies, and readable texts of validation errors."""

import math
from collections.abc import Iterable
from typing import Any, Self, cast

from pydantic import BaseModel, ConfigDict, ModelWrapValidatorHandler, ValidationError, model_validator
from pydantic_core import InitErrorDetails, PydanticCustomError

from everstep.agent_domain.errors import InvalidInput
from everstep.agent_domain.nearest import did_you_mean


def require_integer_at_least(name: str, value: object, minimum: int) -> None:
    """Raise `InvalidInput` unless the value is a whole number of at least `minimum`."""
    if isinstance(value, bool) or not isinstance(value, int) or value < minimum:
        problem = f"{name} is {value!r}; pass a whole number of at least {minimum}"
        raise InvalidInput(problem)


def require_integer(name: str, value: object) -> None:
    """Raise `InvalidInput` unless the value is a whole number.

    Policies use this where zero or a negative number switches something off.
    """
    if isinstance(value, bool) or not isinstance(value, int):
        problem = f"{name} is {value!r}; pass a whole number"
        raise InvalidInput(problem)


def require_finite(name: str, value: object) -> None:
    """Raise `InvalidInput` unless the value is a finite number."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        problem = f"{name} is {value!r}; pass a finite number"
        raise InvalidInput(problem)


_UNKNOWN_ARGUMENT = "unexpected_keyword_argument"
_UNKNOWN_KEY = "extra_forbidden"

MAX_LISTED = 40
"""A model with more keys does not list them when it refuses an unknown one."""


MAX_SUGGESTED = 20
"""So many faults have a suggestion: each takes some time, and a body can have thousands of unknown keys."""


class StrictModel(BaseModel):
    """The base of models that people write; the refusal of an unknown key names the known keys."""

    model_config = ConfigDict(extra="forbid")

    @model_validator(mode="wrap")
    @classmethod
    def _suggest_keys(cls, value: Any, handler: ModelWrapValidatorHandler[Self]) -> Self:
        try:
            return handler(value)
        except ValidationError as error:
            details = error.errors(include_url=False)
            if not any(detail["type"] == _UNKNOWN_KEY and len(detail["loc"]) == 1 for detail in details):
                raise
            lines = [
                cls._with_suggestion(cast("dict[str, Any]", detail), is_listed=place < MAX_SUGGESTED)
                for place, detail in enumerate(details)
            ]
            raise ValidationError.from_exception_data(error.title, lines) from None

    @classmethod
    def _with_suggestion(cls, detail: dict[str, Any], *, is_listed: bool) -> InitErrorDetails:
        text = str(detail["msg"])
        if is_listed and detail["type"] == _UNKNOWN_KEY and len(detail["loc"]) == 1:
            keys = [field.alias or name for name, field in cls.model_fields.items()]
            listed = f"; choose from: {', '.join(keys)}" if 0 < len(keys) <= MAX_LISTED else ""
            text = f"there is no such key{listed}{did_you_mean(str(detail['loc'][0]), keys)}"
        kind = PydanticCustomError(detail["type"], cast("Any", text), detail.get("ctx"))
        return InitErrorDetails(type=kind, loc=detail["loc"], input=detail["input"])


MAX_FAULTS = 10
"""At most this many faults are listed: enough to correct an answer, without filling a page."""


def faults(error: ValidationError, known: Iterable[str] = ()) -> str:
    """List the faults with their locations, without the input and links to pydantic's documentation.

    Args:
        error: The error.
        known: The arguments of a validated function, to suggest the nearest one for an unknown one.
    """
    details = error.errors(include_url=False, include_context=False, include_input=False)
    names = tuple(known)
    shown = [
        f"{_place(detail['loc'])}{detail['msg']}"
        f"{did_you_mean(str(detail['loc'][-1]), names) if detail['type'] == _UNKNOWN_ARGUMENT else ''}"
        for detail in details[:MAX_FAULTS]
    ]
    more = [f"and {len(details) - MAX_FAULTS} more"] if len(details) > MAX_FAULTS else []
    return "; ".join([*shown, *more])


def _place(location: tuple[int | str, ...]) -> str:
    return f"{'.'.join(map(str, location))}: " if location else ""
