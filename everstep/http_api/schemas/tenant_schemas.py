"""Schemas of tenants."""

from dataclasses import asdict
from typing import Annotated, Self

from pydantic import ConfigDict, Field

from everstep.agent_domain.fairness.fairness_keys import LARGEST_WEIGHT, LEAST_WEIGHT
from everstep.agent_domain.fairness.tenant_limits import LARGEST_LIMIT, TenantLimits
from everstep.http_api.schemas.text import RequestModel, ResponseModel

Weight = Annotated[
    float | None,
    Field(ge=LEAST_WEIGHT, le=LARGEST_WEIGHT, description="The share of the tenant; default: 1."),
]
Running = Annotated[
    int | None, Field(ge=0, le=LARGEST_LIMIT, description="Executions at once; with 0 none starts.")
]
ModelCalls = Annotated[
    int | None, Field(ge=0, le=LARGEST_LIMIT, description="Model calls at once, in each worker.")
]
Requests = Annotated[
    float | None, Field(gt=0, le=LARGEST_LIMIT, description="Requests per second to each API process.")
]
Tokens = Annotated[
    int | None,
    Field(gt=0, le=LARGEST_LIMIT, description="Tokens per minute of the model calls of all workers."),
]


class TenantLimitsSent(RequestModel):
    """All limits of a tenant or of a user; what is omitted is not limited."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"max_running": 10, "weight": 2}]})

    weight: Weight = None
    max_running: Running = None
    max_model_calls: ModelCalls = None
    requests_per_second: Requests = None
    tokens_per_minute: Tokens = None

    def limits_of(self, tenant_id: str, user_id: str | None) -> TenantLimits:
        """The limits.

        Raises:
            InvalidInput: A name is blank, or a user has a weight.
        """
        return TenantLimits(tenant_id, user_id, **self.model_dump())


class TenantLimitsResponse(ResponseModel):
    """The limits of a tenant, or of a user of it; null is no limit."""

    tenant_id: str = Field(description="`*`: each tenant without limits of its own.")
    user_id: str | None = Field(
        description="Null: of the tenant as a whole; `*`: each user without limits of their own."
    )
    weight: float | None
    max_running: int | None
    max_model_calls: int | None
    requests_per_second: float | None
    tokens_per_minute: int | None

    @classmethod
    def of(cls, limits: TenantLimits) -> Self:
        """The limits as a response."""
        return cls(**asdict(limits))


class TenantLimitsList(ResponseModel):
    """The limits of tenants and users."""

    items: list[TenantLimitsResponse]
