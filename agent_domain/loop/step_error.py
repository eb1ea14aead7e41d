"""Errors as values, as steps record them and the error policy reads them."""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final

from everstep.agent_domain.errors import InvalidInput, InvalidModelOutput, ModelError, RateLimited, ToolFailed
from everstep.agent_domain.values import escape_unstorable, read_optional, require_map, truncate

LONGEST_MESSAGE: Final = 20_000
"""The most characters of an error's message; it is stored, shown, and read by the model."""


class ErrorType(StrEnum):
    """The kinds of failures that the error policy distinguishes."""

    TOOL = "tool"
    MODEL = "model"
    VALIDATION = "validation"
    RATE_LIMIT = "rate_limit"
    TIMEOUT = "timeout"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class StepError:
    """An error of a step. `type` is set if the exception determines it."""

    message: str
    type: ErrorType | None = None
    tool_name: str | None = None
    exception: str | None = None
    """The name of the exception's class, for the operator."""
    advice: str | None = None
    """What to change about the installation; may be shown to every viewer, also in Temporal."""
    is_public: bool = False
    """Whether the message may be shown to every viewer."""
    ref: str | None = None
    """A reference shown in place of the message; the operator finds the message by it."""

    @classmethod
    def of(cls, error: BaseException, tool_name: str | None = None) -> "StepError":
        """Make a step error from an exception; without a message the class name is used."""
        # Every viewer reads the name, and a class that was created at run time may have any name.
        name = next(kind.__name__ for kind in type(error).__mro__ if kind.__name__.isidentifier())
        advice = error.advice if isinstance(error, ModelError) else None
        is_public = isinstance(error, ToolFailed | InvalidInput)
        return cls(
            escape_unstorable(truncate(_message_text(error), LONGEST_MESSAGE)) or name,
            _error_type(error),
            tool_name,
            name,
            advice,
            is_public,
        )

    @property
    def is_effect_unknown(self) -> bool:
        """Whether it is unknown if the call had its effect."""
        return self.type is ErrorType.UNKNOWN

    @property
    def told(self) -> str:
        """The text that every viewer may read: the message if it is public, else only the kind of error.

        A tool makes its message public by raising `ToolError`. An error without an exception has a message
        written by Everstep.
        """
        if self.is_public or self.exception is None:
            return self.message
        if self.advice is not None:
            return self.advice
        return self.exception if self.ref is None else f"{self.exception} (ref {self.ref})"

    @property
    def kind_text(self) -> str:
        """The kind of error with its reference, without anything that a tool or a provider wrote."""
        kind = self.advice or self.exception or self.type or ErrorType.UNKNOWN
        return kind if self.ref is None else f"{kind} (ref {self.ref})"

    def to_dict(self) -> dict[str, Any]:
        """Convert to JSON data."""
        return {
            "message": self.message,
            "type": self.type,
            "toolName": self.tool_name,
            "exception": self.exception,
            **({} if self.advice is None else {"advice": self.advice}),
            **({"isPublic": True} if self.is_public else {}),
            **({} if self.ref is None else {"ref": self.ref}),
        }

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> "StepError":
        """Read the JSON form; unknown keys are ignored."""
        require_map(data, "the error")
        return cls(
            str(data.get("message", "")),
            read_optional(data, "type", ErrorType),
            data.get("toolName"),
            data.get("exception"),
            data.get("advice"),
            bool(data.get("isPublic")),
            data.get("ref"),
        )


def _message_text(error: BaseException) -> str:
    try:
        text = str(error)
        # The notes say why the model is not called again, and how its fallback models failed.
        notes = getattr(error, "__notes__", ()) if isinstance(error, ModelError) else ()
        return ". ".join([text.rstrip("."), *notes]) if notes else text
    except Exception:  # noqa: BLE001 -- exceptions are user code, and `__str__` may raise; the text is then empty
        return ""


def _error_type(error: BaseException) -> ErrorType | None:
    match error:
        case RateLimited():
            return ErrorType.RATE_LIMIT
        case TimeoutError():
            return ErrorType.TIMEOUT
        case InvalidModelOutput():
            return ErrorType.VALIDATION
        case _:
            return None
