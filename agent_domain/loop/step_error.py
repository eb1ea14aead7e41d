"""Errors as values: what a step records of an exception, and what the error policy sees of it."""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from everstep.agent_domain.errors import InvalidInput, InvalidModelOutput, ModelError, RateLimited, ToolFailed
from everstep.agent_domain.values import read_optional, require_map, storable


class ErrorType(StrEnum):
    """What kind of failure the error policy deals with."""

    TOOL = "tool"
    MODEL = "model"
    VALIDATION = "validation"
    RATE_LIMIT = "rate_limit"
    TIMEOUT = "timeout"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class StepError:
    """An error of a step. `type` is set where the error itself says what it is."""

    message: str
    type: ErrorType | None = None
    tool_name: str | None = None
    exception: str | None = None
    """The name of the exception's class, for the operator."""
    advice: str | None = None
    """What to change about the installation: a sentence that may be shown to anyone, also in Temporal."""
    is_public: bool = False
    """Whether its own words may be shown to anyone."""
    ref: str | None = None
    """What stands for its words where they are not shown; the operator finds them by it."""

    @classmethod
    def of(cls, error: BaseException, tool_name: str | None = None) -> "StepError":
        """What is kept of an exception; without a message its class has to do."""
        # Everyone reads it, and a class that was made while the program ran may have any name.
        name = next(kind.__name__ for kind in type(error).__mro__ if kind.__name__.isidentifier())
        advice = error.advice if isinstance(error, ModelError) else None
        is_public = isinstance(error, ToolFailed | InvalidInput)
        return cls(storable(_words(error)) or name, _type_of(error), tool_name, name, advice, is_public)

    @property
    def is_effect_unknown(self) -> bool:
        """Whether the call may have had its effect, and nothing says so."""
        return self.type is ErrorType.UNKNOWN

    @property
    def told(self) -> str:
        """What anyone may read: its words where they are meant to be read, else what kind it is.

        A tool says them by raising `ToolError`; what has no exception is a sentence of Everstep's own.
        """
        if self.is_public or self.exception is None:
            return self.message
        if self.advice is not None:
            return self.advice
        return self.exception if self.ref is None else f"{self.exception} (ref {self.ref})"

    def to_dict(self) -> dict[str, Any]:
        """The written form."""
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
        """Read the written form; what it does not know is ignored."""
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


def _words(error: BaseException) -> str:
    try:
        words = str(error)
        # Why a model is not asked again, and what its stand-ins said.
        notes = getattr(error, "__notes__", ()) if isinstance(error, ModelError) else ()
        return ". ".join([words.rstrip("."), *notes]) if notes else words
    except Exception:  # noqa: BLE001 -- exceptions are anybody's code; one that cannot say what it is has no words
        return ""


def _type_of(error: BaseException) -> ErrorType | None:
    match error:
        case RateLimited():
            return ErrorType.RATE_LIMIT
        case TimeoutError():
            return ErrorType.TIMEOUT
        case InvalidModelOutput():
            return ErrorType.VALIDATION
        case _:
            return None
