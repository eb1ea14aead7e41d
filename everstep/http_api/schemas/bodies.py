"""What clients send."""

import hashlib
from typing import Annotated, Any, Literal
from uuid import UUID

from pydantic import AfterValidator, BeforeValidator, ConfigDict, Field, WithJsonSchema

from everstep.agent_domain.errors import InvalidInput
from everstep.agent_domain.storage.sessions import MAX_CONTENT, MAX_TITLE, OnBusy, SessionStatus
from everstep.agent_domain.stream.reader import MAX_DRAFTS, MAX_EPOCH, MAX_NUMBER, Position
from everstep.agent_domain.stream.session_messages import MAX_CONTEXT, Context
from everstep.agent_domain.values import EMPTY, parse_json
from everstep.http_api.callers import MAX_NAME
from everstep.http_api.schemas.text import Json, Map, Sent, Text

Title = Annotated[Text, Field(max_length=MAX_TITLE)]
Content = Annotated[Text, Field(max_length=MAX_CONTENT)]
AgentName = Annotated[Text, Field(max_length=MAX_NAME, description="One of GET /agent/agents.")]
UserName = Annotated[
    Text | None,
    Field(max_length=MAX_NAME, description="For services with the scope `sessions:all`: for whom they act."),
]
Debug = Annotated[
    bool, Field(description="Whether the execution that begins keeps its full state after each step.")
]
Broadcast = Annotated[
    Literal["minimal", "standard", "debug"] | None,
    Field(
        description="How much viewers of the execution that begins are told, instead of what its agent says: "
        "`minimal` leaves out the text while it is written, `debug` adds the arguments of tools and the "
        "votes after each step."
    ),
]
ContextText = Annotated[Text | None, Field(max_length=MAX_CONTEXT)]


def _id_text(value: object) -> object:
    """An id may be a whole number; it is kept as text."""
    if isinstance(value, int) and not isinstance(value, bool):
        return str(value)
    if value is None or isinstance(value, str):
        return value
    raise ValueError("send text or a whole number")


RelatedId = Annotated[
    ContextText,
    BeforeValidator(_id_text, json_schema_input_type=ContextText | int),
]


class _AboutSomething(Sent):
    """What names the thing that it is about."""

    related_type: ContextText = Field(default=None, description="Which kind of thing it is about.")
    related_id: RelatedId = Field(
        default=None, description="Which one: text, or a whole number; needs a `related_type`."
    )
    context_url: ContextText = Field(
        default=None,
        description="The page on which it was said: http(s), or a path that begins with one `/`.",
    )

    @property
    def context(self) -> Context:
        """What it is about."""
        return Context(self.related_type, self.related_id, self.context_url)


class _BeginsSession(_AboutSomething):
    """What makes a session."""

    initial_context_url: ContextText = Field(
        default=None, description="The page on which the session begins; without one, `context_url`."
    )


class NewSessionSent(_BeginsSession):
    """A session to be made."""

    model_config = ConfigDict(
        json_schema_extra={"examples": [{"title": "A trip to Bergen", "agent": "assistant"}]}
    )

    title: Title | None = Field(
        default=None, description="Without one, the first words of the first message."
    )
    agent: AgentName | None = Field(default=None, description="Whom messages go to that name no agent.")
    metadata: Map = EMPTY
    user_id: UserName = None


class SessionChangesSent(Sent):
    """What is to be different about a session; what is left out stays."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"status": "archived"}]})

    title: Title | None = None
    status: SessionStatus | None = None
    agent: AgentName | None = None
    metadata: Map | None = Field(default=None, description="Merged into what is there; a null removes a key.")


class _MessageSent(_AboutSomething):
    content: Content = Field(examples=["Book me a train to Bergen"])
    on_busy: OnBusy = Field(
        default=OnBusy.ENQUEUE, description="What to do while an execution of the session is under way."
    )
    agent: AgentName | None = None
    metadata: Map = EMPTY
    user_id: UserName = None
    debug: Debug = False
    broadcast: Broadcast = None


class MessageSent(_MessageSent):
    """Something said in a session: the beginning of an execution, or the answer to a question."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {"content": "Book me a train to Bergen"},
                {"content": "Rather on Friday", "on_busy": "steer"},
            ]
        }
    )

    content: Content = ""
    data: Json = Field(default=None, description="The answer to a form.")
    request_id: UUID | None = Field(default=None, description="The question that it answers.")


class FirstMessageSent(_MessageSent, _BeginsSession):
    """Something said in a session that is made for it."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"content": "Book me a train to Bergen"}]})

    title: Title | None = None


class NewExecutionSent(Sent):
    """An execution without a session."""

    model_config = ConfigDict(
        json_schema_extra={"examples": [{"agent": "assistant", "content": "Summarise the news"}]}
    )

    content: Content
    agent: AgentName | None = None
    metadata: Map = EMPTY
    user_id: UserName = None
    debug: Debug = False
    broadcast: Broadcast = None

    @property
    def digest(self) -> str:
        """What tells it from another one; fields that later versions add do not change it."""
        return hashlib.sha256(self.model_dump_json(exclude_defaults=True).encode()).hexdigest()


class AnswerSent(Sent):
    """The answer to a question."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"text": "Friday"}]})

    text: Content = ""
    data: Json = Field(default=None, description="The answer to a form; its text may then be left out.")
    request_id: UUID | None = Field(default=None, description="Which question; without it the oldest.")


class SteerSent(Sent):
    """Something to be heard before the next step."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"content": "Rather on Friday"}]})

    content: Content = Field(min_length=1)


class ForkSent(Sent):
    """From where on another execution is to go its own way."""

    model_config = ConfigDict(
        json_schema_extra={"examples": [{"step": 2, "content": "And if I fly instead?"}]}
    )

    step: int = Field(ge=0, le=1_000_000, description="The last step that both share.")
    content: Content | None = Field(default=None, description="What is said instead of the last words.")


def _position(since: Any) -> Position | None:
    """A form has text only, and an empty one for nothing."""
    read = parse_json(since or "null", "since") if isinstance(since, str) else since
    return None if read is None else Position.from_dict(read)


_PLACE = {
    "type": "object",
    "properties": {
        "execution_id": {"type": "string", "format": "uuid"},
        "step_number": {"type": "integer", "minimum": 0, "maximum": MAX_NUMBER},
        "attempt": {"type": "integer", "minimum": 1, "maximum": MAX_NUMBER},
        "next_index": {"type": "integer", "minimum": 0, "maximum": MAX_NUMBER},
    },
    "required": ["execution_id", "step_number", "attempt", "next_index"],
}
_POSITION = {
    "type": "object",
    "properties": {
        "epoch": {"anyOf": [{"type": "string", "maxLength": MAX_EPOCH}, {"type": "null"}]},
        "seq": {"type": "integer", "minimum": 0, "maximum": MAX_NUMBER},
        "drafts": {"type": "array", "items": _PLACE, "maxItems": MAX_DRAFTS},
    },
    "required": ["seq"],
    "examples": [{"epoch": "5d41", "seq": 7}],
}
_SINCE = {"anyOf": [_POSITION, {"type": "string", "contentMediaType": "application/json"}, {"type": "null"}]}


class ChannelSent(Sent):
    """A browser that wants to join a channel of the gateway."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {
                    "socket_id": "1234.5678",
                    "channel_name": "private-agent.session.0190b4a6-4a53-7c2e-9a0e-0c7f6f1f7a10",
                }
            ]
        }
    )

    socket_id: Text = Field(max_length=50)
    channel_name: Text = Field(max_length=200)
    since: Annotated[Any, AfterValidator(_position), WithJsonSchema(_SINCE)] = Field(
        default=None,
        description="The position to go on from, or its JSON as text; without it from now on.",
    )


def require_words(content: str, what: str = "content") -> str:
    """Text that says something."""
    if not content.strip():
        raise InvalidInput(f"{what} is empty; say something")
    return content
