"""The request body of AG-UI, `RunAgentInput`. Unknown members are ignored, as the protocol asks."""

from collections.abc import Sequence
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

from everstep.agent_domain.storage.sessions import OnBusy
from everstep.http_api.schemas.request_bodies import ModelText
from everstep.http_api.schemas.text import Json, RequestModel, StrictScalars, Text
from everstep.wires.event_bodies import json_map

MAX_MESSAGES = 10_000


class AgUiModel(StrictScalars, BaseModel):
    """The base of the protocol's objects."""

    model_config = ConfigDict(frozen=True, extra="ignore")


class AgUiMessage(AgUiModel):
    """A message of the client's copy of the conversation. Only new messages of the user are read."""

    id: Text
    role: Literal["developer", "system", "assistant", "user", "tool", "activity", "reasoning"]
    content: Json = Field(default=None, description="Text, or a list of parts.")


class ResumeEntry(AgUiModel):
    """The answer to an interrupt."""

    interruptId: Text  # noqa: N815 -- the protocol's name
    status: Literal["resolved", "cancelled"]
    payload: Json = None


class EverstepProps(RequestModel):
    """Our own options of a run, in `forwardedProps.everstep`."""

    on_busy: OnBusy = Field(
        default=OnBusy.ENQUEUE, description="What to do if the thread has a running execution."
    )
    model: ModelText = None


class RunErrorEvent(AgUiModel):
    """Why a request was refused, as the protocol's last event of a run."""

    type: Literal["RUN_ERROR"]
    message: str = Field(examples=["There is no agent 'clerc'; check its name"])
    code: str = Field(examples=["not-found"])


class RunAgentInput(AgUiModel):
    """A request to run an agent."""

    model_config = ConfigDict(
        frozen=True,
        extra="ignore",
        json_schema_extra={
            "examples": [
                {
                    "threadId": "t-1",
                    "runId": "r-1",
                    "protocolVersion": "1.0",
                    "messages": [{"id": "m-1", "role": "user", "content": "Hello"}],
                }
            ]
        },
    )

    threadId: Annotated[Text, Field(min_length=1, max_length=500)]  # noqa: N815 -- the protocol's name
    runId: Annotated[Text, Field(min_length=1, max_length=500)]  # noqa: N815 -- the protocol's name
    protocolVersion: Text | None = None  # noqa: N815 -- the protocol's name
    messages: Annotated[Sequence[AgUiMessage], Field(max_length=MAX_MESSAGES)]
    forwardedProps: Json = None  # noqa: N815 -- the protocol's name
    resume: Annotated[Sequence[ResumeEntry], Field(max_length=100)] | None = None
    tools: Json = None
    context: Json = None
    state: Json = None

    @property
    def options(self) -> EverstepProps:
        """Our own options."""
        return EverstepProps.model_validate(json_map(self.forwardedProps).get("everstep") or {})

    @property
    def new_messages(self) -> Sequence[AgUiMessage]:
        """The messages of the user at the end: those before are known to the session."""
        found: list[AgUiMessage] = []
        for message in reversed(self.messages):
            if message.role != "user":
                break
            found.append(message)
        return found[::-1]
