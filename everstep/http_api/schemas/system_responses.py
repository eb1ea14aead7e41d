"""Response models of the state of an installation."""

from datetime import datetime
from uuid import UUID

from pydantic import Field

from everstep.http_api.schemas.text import Moment, ResponseModel


class SlotsResponse(ResponseModel):
    """How many tasks a worker runs at once."""

    used: int
    total: int


class WorkerProcess(ResponseModel):
    """A process that runs workflows and activities."""

    identity: str = Field(description="Its name in Temporal: process id and host, unless it was configured.")
    host: str | None
    process_id: str | None
    version: str | None = Field(description="`EVERSTEP_BUILD_ID`, else the version of Everstep.")
    started_at: Moment | None
    seen_at: Moment = Field(description="When Temporal last heard from it.")
    is_lost: bool = Field(description="Whether it has been silent for too long.")
    workflow_slots: SlotsResponse | None = Field(
        description="Null until its first report, and if the server collects none."
    )
    activity_slots: SlotsResponse | None = Field(description="Model and tool calls that run at once.")
    cached_workflows: int | None = Field(description="Executions whose state it holds in memory.")


class GatewayProcess(ResponseModel):
    """A process that relays events to viewers."""

    id: UUID
    url: str = Field(description="Where workers and APIs connect to it.")
    seen_at: Moment
    is_lost: bool


class QueueResponse(ResponseModel):
    """A task queue in Temporal."""

    kind: str = Field(description="`workflow` or `activity`.")
    waiting: int = Field(description="About how many tasks wait for a worker.")
    oldest_seconds: float = Field(description="About how long the oldest of them has waited.")
    added_per_second: float
    started_per_second: float


class OpenExecutions(ResponseModel):
    """Executions that have not ended, of all tenants."""

    status: str
    count: int
    oldest_at: Moment


class RetentionResponse(ResponseModel):
    """For how long data are kept."""

    setting: str
    days: float | None = Field(description="Null for as long as what they belong to.")


class SystemResponse(ResponseModel):
    """The state of an installation, as its parts report it."""

    version: str = Field(description="The version of this API process.")
    temporal_version: str | None = Field(description="The version of the Temporal server; null if unknown.")
    namespace: str
    task_queue: str
    read_at: Moment
    workers: list[WorkerProcess]
    gateways: list[GatewayProcess]
    queues: list[QueueResponse]
    executions: list[OpenExecutions]
    undelivered: int = Field(description="Stored commands of people that have not reached their executions.")
    repairs: dict[str, int] = Field(description="Repairs of the reconciler of this process since it started.")
    repaired_at: Moment | None = Field(description="When the reconciler of this process last looked.")
    retention: list[RetentionResponse]
    unavailable: list[str] = Field(description="Parts that did not answer; what they would say is missing.")


class FindingResponse(ResponseModel):
    """What a check found."""

    ok: bool
    text: str


class ChecksResponse(ResponseModel):
    """What `everstep doctor` finds from this process."""

    checked_at: datetime
    findings: list[FindingResponse]
