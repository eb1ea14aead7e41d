"""The request body of Vercel's `useChat`. Unknown members are ignored: applications add their own."""

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from everstep.http_api.schemas.ag_ui_requests import MAX_MESSAGES, EverstepProps
from everstep.http_api.schemas.text import Map, StrictScalars, Text


class UiModel(StrictScalars, BaseModel):
    """The base of the protocol's objects."""

    model_config = ConfigDict(frozen=True, extra="ignore")


class UiMessage(UiModel):
    """A message of the client's copy of the conversation. Only the last ones are read."""

    id: Text
    role: Literal["system", "user", "assistant"]
    parts: Annotated[Sequence[Map], Field(max_length=10_000)]

    @property
    def last_step(self) -> Sequence[Mapping[str, Any]]:
        """The parts after the last begin of a step."""
        starts = [at for at, part in enumerate(self.parts) if part.get("type") == "step-start"]
        return self.parts[starts[-1] + 1 :] if starts else self.parts


class ChatRequest(UiModel):
    """What `DefaultChatTransport` sends."""

    model_config = ConfigDict(
        frozen=True,
        extra="ignore",
        json_schema_extra={
            "examples": [
                {
                    "id": "chat-1",
                    "trigger": "submit-message",
                    "messages": [{"id": "m-1", "role": "user", "parts": [{"type": "text", "text": "Hello"}]}],
                }
            ]
        },
    )

    id: Annotated[Text, Field(min_length=1, max_length=500)]
    messages: Annotated[Sequence[UiMessage], Field(min_length=1, max_length=MAX_MESSAGES)]
    trigger: Literal["submit-message", "regenerate-message"] = "submit-message"
    messageId: Text | None = None  # noqa: N815 -- the protocol's name
    everstep: EverstepProps = EverstepProps()

    @property
    def new_messages(self) -> Sequence[UiMessage]:
        """The messages of the user at the end: those before are known to the session."""
        found: list[UiMessage] = []
        for message in reversed(self.messages):
            if message.role != "user":
                break
            found.append(message)
        return found[::-1]
