"""When the requests of an agent are compacted, and who writes the summary."""

from collections.abc import Mapping
from typing import Annotated, Any, Self

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError, model_validator

from everstep.agent_domain.checks import faults
from everstep.agent_domain.errors import InvalidInput
from everstep.agent_domain.values import FrozenDict, frozen_map


def _choice(given: str | Mapping[str, Any] | None) -> str | FrozenDict | None:
    return frozen_map(given, "the model of the summary") if isinstance(given, Mapping) else given


class CompactionPolicy(BaseModel):
    """How requests are kept within the model's context window. Shares are of what fits into a request."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    at: float = Field(default=0.8, gt=0, le=1)
    """A request with more than this share is compacted."""
    to: float = Field(default=0.5, gt=0, lt=1)
    """The share that it has afterwards."""
    model: Annotated[str | Mapping[str, Any] | None, AfterValidator(_choice)] = None
    """The preset or the model that writes summaries; None: the agent's own."""

    @model_validator(mode="after")
    def _is_lower(self) -> Self:
        if self.to >= self.at:
            raise ValueError("'to' must be smaller than 'at'")
        return self

    @classmethod
    def read(cls, given: object) -> "CompactionPolicy | None":
        """Read the setting of an agent file: `on`, `off`, or a map with `at`, `to` and `model`.

        Raises:
            InvalidInput: It is neither.
        """
        match given:
            case True | "on":
                return cls()
            case False | "off":
                return None
            case Mapping():
                unknown = sorted(map(str, given.keys() - cls.model_fields.keys()))  # pyright: ignore[reportUnknownArgumentType, reportUnknownMemberType, reportUnknownVariableType] -- any map
                if unknown:
                    raise InvalidInput(f"it has no key '{unknown[0]}'; its keys are at, to and model")
                try:
                    return cls.model_validate(given)
                except ValidationError as error:
                    raise InvalidInput(faults(error)) from None
            case _:
                raise InvalidInput("it is 'on', 'off', or a map with the keys at, to and model")


DEFAULT_COMPACTION = CompactionPolicy()
