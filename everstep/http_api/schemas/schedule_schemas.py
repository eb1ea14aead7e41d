"""Schemas of schedules."""

from typing import Annotated, Any, Self
from uuid import UUID

from pydantic import ConfigDict, Field

from everstep.agent_domain.storage.schedules import (
    MAX_CRON,
    MAX_INTERVAL,
    Cadence,
    Overlap,
    ScheduleRow,
    ScheduleSettings,
)
from everstep.client.schedules import RecentRun, ScheduleView
from everstep.http_api.callers import MAX_NAME
from everstep.http_api.schemas.request_bodies import AgentName, Content, UserName
from everstep.http_api.schemas.text import Instant, Moment, RequestModel, ResponseModel, Text

Interval = Annotated[
    int, Field(ge=1, le=MAX_INTERVAL, description="Run at this interval; alternatively, send `cron`.")
]
Cron = Annotated[
    Text,
    Field(
        max_length=MAX_CRON,
        description="Run at these times: minute, hour, day of the month, month, day of the week.",
        examples=["0 9 * * mon-fri"],
    ),
]
Timezone = Annotated[
    Text, Field(max_length=MAX_NAME, description="The time zone of `cron`.", examples=["Europe/Berlin"])
]
Jitter = Annotated[
    int, Field(ge=0, le=MAX_INTERVAL, description="Delay each run by a random time up to this.")
]
OverlapField = Annotated[
    Overlap,
    Field(
        description="What to do if the previous run has not ended: `skip` leaves the new one out, `queue` "
        "starts it afterwards, `allow` runs both, `cancel` cancels the previous one."
    ),
]
Session = Annotated[
    UUID | None, Field(description="The session that receives the messages; default: a new one for each run.")
]


class NewScheduleSent(RequestModel):
    """A new schedule."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {
                    "agent": "assistant",
                    "content": "Summarize what is new",
                    "cron": "0 9 * * mon-fri",
                    "timezone": "Europe/Berlin",
                }
            ]
        }
    )

    agent: AgentName
    content: Content
    interval_seconds: Interval | None = None
    cron: Cron | None = None
    timezone: Timezone = "UTC"
    jitter_seconds: Jitter = 0
    start_at: Instant | None = Field(default=None, description="Do not run before this time.")
    end_at: Instant | None = Field(default=None, description="Do not run after this time.")
    overlap: OverlapField = Overlap.SKIP
    session_id: Session = None
    paused: bool = False
    user_id: UserName = None

    @property
    def settings(self) -> ScheduleSettings:
        """The schedule's settings.

        Raises:
            InvalidInput: They contradict each other.
        """
        cadence = Cadence(
            self.interval_seconds, self.cron, self.timezone, self.jitter_seconds, self.start_at, self.end_at
        )
        return ScheduleSettings(self.agent, self.content, cadence, self.overlap, self.session_id, self.paused)


class ScheduleChangesSent(RequestModel):
    """Changes of a schedule; omitted fields stay unchanged."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"paused": True}]})

    agent: AgentName | None = None
    content: Content | None = None
    interval_seconds: Interval | None = None
    cron: Cron | None = None
    timezone: Timezone | None = None
    jitter_seconds: Jitter | None = None
    start_at: Instant | None = None
    end_at: Instant | None = None
    overlap: OverlapField | None = None
    session_id: Session = None
    paused: bool | None = None

    @property
    def changes(self) -> dict[str, Any]:
        """The fields that were sent; null removes a start, an end or a session."""
        removable = {"start_at", "end_at", "session_id"}
        sent = {name: getattr(self, name) for name in self.model_fields_set}
        kept = {name: value for name, value in sent.items() if value is not None or name in removable}
        return {"is_paused" if name == "paused" else name: value for name, value in kept.items()}


class BackfillSent(RequestModel):
    """A period whose runs are made up for."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [{"start_at": "2026-01-12T00:00:00Z", "end_at": "2026-01-16T00:00:00Z"}]
        }
    )

    start_at: Instant
    end_at: Instant


class BackfillResponse(ResponseModel):
    """How many runs a backfill begins."""

    runs: int = Field(description="The times of the period that have no execution yet.")


class ScheduleRunResponse(ResponseModel):
    """A run of a schedule."""

    scheduled_at: Moment
    started_at: Moment
    execution_id: UUID | None = Field(
        description="The execution; null if the message was not sent, or if the execution was deleted."
    )

    @classmethod
    def of(cls, run: RecentRun) -> Self:
        """The run as a response."""
        return cls(scheduled_at=run.scheduled_at, started_at=run.started_at, execution_id=run.execution_id)


class ScheduleResponse(ResponseModel):
    """A schedule."""

    id: UUID
    user_id: str
    agent: str
    content: str
    interval_seconds: int | None
    cron: str | None
    timezone: str
    jitter_seconds: int
    start_at: Moment | None
    end_at: Moment | None
    overlap: Overlap
    session_id: UUID | None
    paused: bool
    is_applied: bool = Field(description="Whether Temporal has the last change; otherwise it follows soon.")
    last_error: str | None = Field(description="Why the last run could not begin; null if it could.")
    created_at: Moment
    updated_at: Moment

    @classmethod
    def of(cls, row: ScheduleRow) -> Self:
        """The schedule as a response."""
        return cls(**_fields(row))


class ScheduleDetails(ScheduleResponse):
    """A schedule with its runs."""

    next_runs: list[Moment] = Field(description="The next ten; empty if Temporal cannot be reached.")
    recent_runs: list[ScheduleRunResponse] = Field(description="The last ten, newest first.")

    @classmethod
    def viewed(cls, view: ScheduleView) -> Self:
        """The schedule as a response."""
        runs = [ScheduleRunResponse.of(each) for each in view.recent_runs]
        return cls(**_fields(view.row), next_runs=list(view.next_runs), recent_runs=runs)


def _fields(row: ScheduleRow) -> dict[str, Any]:
    settings, cadence = row.settings, row.settings.cadence
    return {
        "id": row.id,
        "user_id": row.user_id,
        "agent": settings.agent,
        "content": settings.content,
        "interval_seconds": cadence.interval_seconds,
        "cron": cadence.cron,
        "timezone": cadence.timezone,
        "jitter_seconds": cadence.jitter_seconds,
        "start_at": cadence.start_at,
        "end_at": cadence.end_at,
        "overlap": settings.overlap,
        "session_id": settings.session_id,
        "paused": settings.is_paused,
        "is_applied": row.is_applied,
        "last_error": row.last_error,
        "created_at": row.created_at,
        "updated_at": row.updated_at,
    }
