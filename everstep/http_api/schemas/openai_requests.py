"""The request bodies of OpenAI's API. Unknown members are ignored: clients send those of other providers.

What an agent's definition decides (`temperature`, `max_tokens` and others) is ignored as well. What would
change the answer in a way that its reader has to know is refused; see `openai_input`.
"""

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal, cast

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

from everstep.agent_domain.storage.sessions import OnBusy
from everstep.agent_domain.values import EMPTY
from everstep.http_api.schemas.ag_ui_requests import MAX_MESSAGES
from everstep.http_api.schemas.request_bodies import AgentName, ModelText
from everstep.http_api.schemas.text import Json, Map, RequestModel, StrictScalars, Text
from everstep.wires.event_bodies import json_map

Name = Annotated[Text, Field(min_length=1, max_length=500)]


class OpenAiModel(StrictScalars, BaseModel):
    """The base of the protocol's objects."""

    model_config = ConfigDict(frozen=True, extra="ignore")


class RunOptions(RequestModel):
    """Our own options of a request, in `everstep`."""

    on_busy: OnBusy | None = Field(
        default=None, description="What to do if the session has a running execution; default: `enqueue`."
    )
    model: ModelText = None


class ChatOptions(RunOptions):
    """Our own options of a chat completion, in `everstep`."""

    session: Name | None = Field(
        default=None,
        description="The session: its id, or any name. It stores the conversation, so only the messages "
        "of the user at the end are read. Without it, a conversation is recognized by its earlier messages.",
    )
    text: Literal["live", "complete"] = Field(
        default="live",
        description="`complete` sends the text of a step once it is stored, so that it never has to be "
        "taken back.",
    )


class StreamOptions(OpenAiModel):
    """What a stream has."""

    include_usage: bool | None = None


class OpenAiRequest(OpenAiModel):
    """What both kinds of requests have."""

    model: AgentName = Field(description="The name of an agent.")
    stream: bool | None = Field(default=None, description="Whether the answer is sent while it is written.")
    tools: Json = Field(default=None, description="Refused unless empty: tools run in workers.")
    tool_choice: Json = None


class ChatCompletionRequest(OpenAiRequest):
    """A request for a chat completion."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [{"model": "assistant", "messages": [{"role": "user", "content": "Hello"}]}]
        },
    )

    messages: Annotated[Sequence[Map], Field(min_length=1, max_length=MAX_MESSAGES)]
    stream_options: StreamOptions | None = None
    n: int | None = Field(default=None, description="Refused unless it is 1.")
    logprobs: bool | None = Field(default=None, description="Refused if it is true.")
    functions: Json = Field(default=None, description="Refused unless empty.")
    modalities: Json = Field(default=None, description="Refused unless it is text alone.")
    response_format: Map | None = Field(
        default=None, description="`json_schema` is the schema of the result, which is validated."
    )
    everstep: ChatOptions = ChatOptions()

    @property
    def format(self) -> Mapping[str, Any]:
        """The form of the answer: `{type, schema, name}`."""
        given: Mapping[str, Any] = self.response_format or EMPTY
        return {**json_map(given.get("json_schema")), "type": given.get("type", "text")}


class TextOptions(OpenAiModel):
    """The form of a response's text."""

    format: Map | None = None


class ConversationName(OpenAiModel):
    """A conversation by its id."""

    id: Name


def _is_input(given: object) -> bool:
    if isinstance(given, list):
        return all(isinstance(each, dict) for each in cast("list[object]", given))
    return given is None or isinstance(given, str)


def _check_input(given: object) -> object:
    if not _is_input(given):
        raise ValueError("send text, or a list of items, each of them an object")
    return given


class ResponseRequest(OpenAiRequest):
    """A request for a response."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"model": "assistant", "input": "Hello"}]})

    input: Annotated[
        Annotated[str | Sequence[Map], Field(max_length=4_000_000)] | None, BeforeValidator(_check_input)
    ] = None
    instructions: Text | None = Field(
        default=None, description="Read as the begin of the message: the agent has its own instructions."
    )
    previous_response_id: Name | None = None
    conversation: Name | ConversationName | None = Field(
        default=None, description="A session of the caller: its id, or any name."
    )
    background: bool | None = None
    store: bool | None = Field(default=None, description="Refused if it is false.")
    text: TextOptions | None = None
    metadata: Map | None = Field(default=None, max_length=16)
    prompt: Json = Field(default=None, description="Refused: an agent has its own instructions.")
    top_logprobs: int | None = Field(default=None, description="Refused unless it is 0.")
    everstep: RunOptions = RunOptions()

    @property
    def format(self) -> Mapping[str, Any]:
        """The form of the answer: `{type, schema, name}`."""
        given: Mapping[str, Any] = (self.text.format if self.text else None) or EMPTY
        return {**given, "type": given.get("type", "text")}

    @property
    def conversation_id(self) -> str | None:
        """The name of the conversation."""
        given = self.conversation
        return given.id if isinstance(given, ConversationName) else given


class OpenAiError(OpenAiModel):
    """Why a request failed."""

    message: str = Field(examples=["There is no agent 'clerc'; did you mean 'clerk'?"])
    type: str = Field(examples=["invalid_request_error"])
    param: str | None = Field(default=None, examples=["model"])
    code: str | None = Field(default=None, examples=["model_not_found"])


class OpenAiErrorBody(OpenAiModel):
    """An error in the form of OpenAI's API."""

    error: OpenAiError
