"""Response models of comparisons of two executions."""

from typing import Any, Generic, Self, TypeVar
from uuid import UUID

from pydantic import Field

from everstep.agent_domain.loop.status import ExecutionStatus, StopReason
from everstep.agent_domain.storage.comparison import Comparison
from everstep.http_api.schemas.text import ResponseModel

ValueT = TypeVar("ValueT")


class SidesResponse(ResponseModel, Generic[ValueT]):
    """A value of both executions; null where there is none."""

    a: ValueT | None
    b: ValueT | None


class DifferenceResponse(ResponseModel):
    """A place at which two values differ; a side that does not have the place has no key."""

    path: str = Field(examples=["items[0].price"])
    a: Any = None
    b: Any = None


class DecisionTaken(ResponseModel):
    """The decision after a step."""

    decision: str | None
    resolved_by: str | None
    stop_reason: str | None = Field(description="Null if another step followed.")


class VoteDifference(SidesResponse[str]):
    """A criterion with different votes."""

    criterion: str


class CallComparison(ResponseModel):
    """A call of both executions, or of one."""

    same: bool
    tool: SidesResponse[str]
    args: list[DifferenceResponse] = Field(description="The arguments that differ.")
    result: SidesResponse[str] | None = Field(
        description="The texts that the models read; null if they are equal."
    )


class StepComparison(ResponseModel):
    """A step of both executions, or of one."""

    a: int | None = Field(description="Its number in the execution that ran it; null without such a step.")
    b: int | None
    shared: bool = Field(description="Whether it is one step, which belongs to both executions.")
    same: bool = Field(description="Whether the same was said, called and decided, at whatever cost.")
    calls: list[CallComparison]
    text: SidesResponse[str] | None = Field(description="What the models wrote; null if it is equal.")
    model: SidesResponse[str]
    error: SidesResponse[str] | None = Field(description="The errors of the step; null if they are equal.")
    decision: SidesResponse[DecisionTaken]
    votes: list[VoteDifference]
    tokens: SidesResponse[int]
    cost_usd: SidesResponse[float]
    seconds: SidesResponse[float] = Field(description="The working time of the step.")


class ComparedSide(ResponseModel):
    """One of the two executions."""

    id: UUID
    agent: str
    definition_hash: str | None
    models: list[str]
    status: ExecutionStatus
    stop_reason: StopReason | None
    steps: int
    compared_steps: int = Field(description="How many of its own steps were compared.")
    tokens: int
    cost_usd: float | None
    seconds: float = Field(description="The working time of its steps.")


class ComparisonResponse(ResponseModel):
    """Two executions side by side."""

    version: int = Field(description="The version of this form.")
    executions: SidesResponse[ComparedSide]
    shared_steps: int = Field(description="How many steps belong to both executions, as with a fork.")
    differing_steps: int
    settings: list[DifferenceResponse] = Field(
        description="What differs in agent, model, definition and plan."
    )
    steps: list[StepComparison]
    notes: list[str] = Field(description="What could not be compared, one sentence each.")

    @classmethod
    def of(cls, comparison: Comparison) -> Self:
        """Convert a comparison."""
        return cls.model_validate(comparison.to_dict())
