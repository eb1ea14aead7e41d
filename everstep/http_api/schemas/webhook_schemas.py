"""Schemas of webhooks."""

from typing import Annotated, Any, Self
from uuid import UUID

from pydantic import AfterValidator, ConfigDict, Field

from everstep.agent_domain.storage.webhooks import (
    MAX_URL,
    DeliveryRow,
    DeliveryState,
    WebhookEvent,
    WebhookRow,
    WebhookSettings,
)
from everstep.agent_domain.values import thaw
from everstep.http_api.schemas.text import Moment, RequestModel, ResponseModel, Text

Url = Annotated[
    Text,
    Field(
        min_length=1,
        max_length=MAX_URL,
        description="The address that receives the events, with https.",
        examples=["https://shop.example/hooks/agents"],
    ),
]
Events = Annotated[
    tuple[WebhookEvent, ...],
    Field(min_length=1, max_length=50, description="The events to receive; default: all."),
    AfterValidator(lambda events: tuple(dict.fromkeys(events))),
]
IncludeContent = Annotated[
    bool, Field(description="Whether deliveries contain what agents answer and ask; default: only ids.")
]


class NewWebhookSent(RequestModel):
    """A new webhook."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {"url": "https://shop.example/hooks/agents", "events": ["execution.failed"]},
            ]
        }
    )

    url: Url
    events: Events = tuple(WebhookEvent)
    include_content: IncludeContent = False
    enabled: bool = True

    @property
    def settings(self) -> WebhookSettings:
        """The webhook's settings."""
        return WebhookSettings(self.url, self.events, self.include_content, self.enabled)


class WebhookChangesSent(RequestModel):
    """Changes of a webhook; omitted fields stay unchanged."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"enabled": True}]})

    url: Url | None = None
    events: Events | None = None
    include_content: IncludeContent | None = None
    enabled: bool | None = None

    @property
    def changes(self) -> dict[str, Any]:
        """The fields that were sent."""
        sent = {name: getattr(self, name) for name in self.model_fields_set}
        kept = {name: value for name, value in sent.items() if value is not None}
        return {"is_enabled" if name == "enabled" else name: value for name, value in kept.items()}


class WebhookResponse(ResponseModel):
    """A webhook; its secret is only in the responses that create it."""

    id: UUID
    url: str
    events: list[WebhookEvent]
    include_content: bool
    enabled: bool
    disabled_reason: str | None = Field(description="Why it was disabled, if no caller did that.")
    failing_since: Moment | None = Field(description="The first failure since the last success.")
    created_at: Moment
    updated_at: Moment

    @classmethod
    def of(cls, row: WebhookRow) -> Self:
        """The webhook as a response."""
        return cls(**_fields(row))


class WebhookWithSecret(WebhookResponse):
    """A webhook with its new secret, which is shown only here."""

    secret: str = Field(description="Verifies signatures; store it now.")

    @classmethod
    def revealed(cls, row: WebhookRow, secret: str) -> Self:
        """The webhook as a response, with its secret."""
        return cls(**_fields(row), secret=secret)


class DeliveryResponse(ResponseModel):
    """The delivery of an event."""

    id: UUID
    event_id: str = Field(description="The `webhook-id` of each attempt.")
    type: str
    data: dict[str, Any]
    state: DeliveryState = Field(description="`dead`: all attempts failed; it can be replayed.")
    attempts: int
    response_status: int | None
    last_error: str | None
    next_attempt_at: Moment | None = Field(description="Null unless it is pending.")
    created_at: Moment
    completed_at: Moment | None

    @classmethod
    def of(cls, row: DeliveryRow) -> Self:
        """The delivery as a response."""
        return cls(
            id=row.id,
            event_id=row.event_id,
            type=row.type,
            data=thaw(row.data),
            state=row.state,
            attempts=row.attempts,
            response_status=row.response_status,
            last_error=row.last_error,
            next_attempt_at=row.next_at if row.state is DeliveryState.PENDING else None,
            created_at=row.created_at,
            completed_at=row.completed_at,
        )


def _fields(row: WebhookRow) -> dict[str, Any]:
    settings = row.settings
    return {
        "id": row.id,
        "url": settings.url,
        "events": list(settings.events),
        "include_content": settings.include_content,
        "enabled": settings.is_enabled,
        "disabled_reason": row.disabled_reason,
        "failing_since": row.failing_since,
        "created_at": row.created_at,
        "updated_at": row.updated_at,
    }
