"""Request models."""

import hashlib
from collections.abc import Sequence
from typing import Annotated, Any, Literal
from uuid import UUID

from pydantic import AfterValidator, BeforeValidator, ConfigDict, Field, WithJsonSchema

from everstep.agent_domain.agents.budget_arguments import parse_budgets
from everstep.agent_domain.errors import InvalidInput
from everstep.agent_domain.loop.budget import Budget
from everstep.agent_domain.storage.feedback import MAX_FEEDBACK, Rating
from everstep.agent_domain.storage.sessions import MAX_CONTENT, MAX_TITLE, OnBusy, SessionStatus
from everstep.agent_domain.stream.reader import MAX_DRAFTS, MAX_EPOCH, MAX_NUMBER, Position
from everstep.agent_domain.stream.session_messages import MAX_CONTEXT, Context
from everstep.agent_domain.values import EMPTY, parse_json
from everstep.http_api.callers import MAX_NAME
from everstep.http_api.schemas.text import Json, Map, RequestModel, Text

Title = Annotated[Text, Field(max_length=MAX_TITLE)]
Content = Annotated[Text, Field(max_length=MAX_CONTENT)]
AgentName = Annotated[
    Text, Field(max_length=MAX_NAME, description="The name of an agent of GET /agent/agents.")
]
UserName = Annotated[
    Text | None,
    Field(max_length=MAX_NAME, description="The user to act for; requires the scope `sessions:all`."),
]
ModelText = Annotated[
    Text | None,
    Field(
        max_length=MAX_NAME,
        description="The model of the new execution, instead of its agent's: a preset, or, with the "
        "scope `sessions:all`, a model in one line such as `openai:gpt-5.5`.",
    ),
]
Output = Annotated[
    Map | None,
    Field(
        description="The JSON schema of the result of the new execution, instead of its agent's: "
        "`output.data` of the ended execution satisfies it."
    ),
]
Debug = Annotated[bool, Field(description="Whether the new execution stores its full state after each step.")]
Broadcast = Annotated[
    Literal["minimal", "standard", "debug"] | None,
    Field(
        description="The level of detail of the new execution's events, instead of its agent's: `minimal` "
        "omits the streamed text, `debug` adds the arguments of tools and the votes after each step."
    ),
]


class BudgetSent(RequestModel):
    """What the model calls of a new execution may use, with its subagents; it can only lower the agent's."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"usd": 0.5, "on_exhausted": "ask"}]})

    usd: float | None = Field(default=None, ge=0, allow_inf_nan=False, description="In US dollars.")
    tokens: int | None = Field(default=None, ge=0, description="In tokens, of input and output.")
    steps: int | None = Field(default=None, ge=0, description="In steps.")
    on_exhausted: Literal["stop", "ask"] | None = Field(
        default=None,
        description="`stop` ends the execution; `ask` pauses it until a caller with the scope `approve` "
        "raises the budget.",
    )

    @property
    def budgets(self) -> tuple[Budget, ...]:
        """One budget for each amount."""
        return parse_budgets(self.model_dump(), "budget")


BudgetField = Annotated[
    BudgetSent | None,
    Field(description="What the model calls of the new execution may use; it can only lower the agent's."),
]
ContextText = Annotated[Text | None, Field(max_length=MAX_CONTEXT)]


def _id_text(value: object) -> object:
    # A number is stored as text.
    if isinstance(value, int) and not isinstance(value, bool):
        return str(value)
    if value is None or isinstance(value, str):
        return value
    raise ValueError("send text or a whole number")


RelatedId = Annotated[
    ContextText,
    BeforeValidator(_id_text, json_schema_input_type=ContextText | int),
]


class _WithContext(RequestModel):
    """Base of models with a context."""

    related_type: ContextText = Field(default=None, description="The type of the object that this is about.")
    related_id: RelatedId = Field(
        default=None, description="The id of the object: text or an integer; requires `related_type`."
    )
    context_url: ContextText = Field(
        default=None,
        description="The URL of the current page: http(s), or a path that begins with one `/`.",
    )

    @property
    def context(self) -> Context:
        """The context of the request."""
        return Context(self.related_type, self.related_id, self.context_url)


class _WithInitialContext(_WithContext):
    """Base of models that create a session."""

    initial_context_url: ContextText = Field(
        default=None, description="The URL of the page on which the session starts; default: `context_url`."
    )


class NewSessionSent(_WithInitialContext):
    """A new session."""

    model_config = ConfigDict(
        json_schema_extra={"examples": [{"title": "A trip to Bergen", "agent": "assistant"}]}
    )

    title: Title | None = Field(default=None, description="Default: the first words of the first message.")
    agent: AgentName | None = Field(default=None, description="The agent for messages that name none.")
    metadata: Map = EMPTY
    user_id: UserName = None


class SessionChangesSent(RequestModel):
    """Changes of a session; omitted fields stay unchanged."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"status": "archived"}]})

    title: Title | None = None
    status: SessionStatus | None = None
    agent: AgentName | None = None
    metadata: Map | None = Field(
        default=None, description="Merged into the existing metadata; null removes a key."
    )


Files = Annotated[
    tuple[UUID, ...],
    Field(max_length=100, description="The ids of uploaded files: see POST /agent/attachments."),
]


class _MessageSent(_WithContext):
    content: Content = Field(examples=["Book me a train to Bergen"])
    on_busy: OnBusy = Field(
        default=OnBusy.ENQUEUE, description="What to do while an execution of the session is running."
    )
    agent: AgentName | None = None
    metadata: Map = EMPTY
    user_id: UserName = None
    model: ModelText = None
    output: Output = None
    debug: Debug = False
    broadcast: Broadcast = None
    budget: BudgetField = None
    attachments: Files = ()


class MessageSent(_MessageSent):
    """A message of a session: starts an execution, or answers a question."""

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
    request_id: UUID | None = Field(default=None, description="The id of the question that this answers.")


class FirstMessageSent(_MessageSent, _WithInitialContext):
    """The first message of a new session."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"content": "Book me a train to Bergen"}]})

    title: Title | None = None


class FileUrlSent(RequestModel):
    """The URL of a file."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"url": "https://example.com/ticket.png"}]})

    url: Text = Field(max_length=2_000, description="The address, http or https, of a public host.")
    name: Text | None = Field(default=None, max_length=1_000, description="Default: the name in the URL.")
    user_id: UserName = None


class NewExecutionSent(RequestModel):
    """An execution without a session."""

    model_config = ConfigDict(
        json_schema_extra={"examples": [{"agent": "assistant", "content": "Summarise the news"}]}
    )

    content: Content
    agent: AgentName | None = None
    metadata: Map = EMPTY
    user_id: UserName = None
    model: ModelText = None
    output: Output = None
    debug: Debug = False
    broadcast: Broadcast = None
    budget: BudgetField = None
    attachments: Files = ()

    @property
    def digest(self) -> str:
        """A digest of the content; fields that later versions add do not change it."""
        return hashlib.sha256(self.model_dump_json(exclude_defaults=True).encode()).hexdigest()


class AnswerSent(RequestModel):
    """The answer to a question."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"text": "Friday"}]})

    text: Content = ""
    data: Json = Field(default=None, description="The answer to a form; `text` is then optional.")
    request_id: UUID | None = Field(
        default=None, description="The id of the question; default: the oldest open one."
    )


class SteerSent(RequestModel):
    """A message for the next step of an execution."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"content": "Rather on Friday"}]})

    content: Content = Field(min_length=1)
    attachments: Files = ()


class NewTotalSent(RequestModel):
    """The new total of a budget."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"usd": 2.5}]})

    usd: float | None = Field(default=None, ge=0, allow_inf_nan=False, description="In US dollars.")
    tokens: int | None = Field(default=None, ge=0, description="In tokens.")
    steps: int | None = Field(default=None, ge=0, description="In steps.")
    scope: Literal["execution", "session", "user", "tenant"] | None = Field(
        default=None,
        description="Whose budget; default: the one that the execution waits for, or else the narrowest.",
    )


class FeedbackSent(RequestModel):
    """Feedback on an answer; without a rating and without words, earlier feedback is removed."""

    model_config = ConfigDict(
        json_schema_extra={"examples": [{"rating": "up", "text": "Just what I needed"}]}
    )

    rating: Rating | None = None
    text: Annotated[Text, Field(max_length=MAX_FEEDBACK)] | None = None


class ForkSent(RequestModel):
    """Where to fork an execution."""

    model_config = ConfigDict(
        json_schema_extra={"examples": [{"step": 2, "content": "And if I fly instead?"}]}
    )

    step: int = Field(ge=0, le=1_000_000, description="The last step that both executions share.")
    content: Content | None = Field(default=None, description="Replaces the last message of the user.")


def _position(since: Any) -> Position | None:
    # A form sends the position as JSON text, or as an empty text.
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


class ChannelSent(RequestModel):
    """A request of a browser to join a channel of the gateway."""

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
        description="The position to resume from, as an object or as JSON text; default: only new events.",
    )


def require_text(content: str, what: str = "content", attachments: Sequence[UUID] = ()) -> str:
    """Return the text.

    Raises:
        InvalidInput: It is blank, and no files are attached.
    """
    if not content.strip() and not attachments:
        raise InvalidInput(f"{what} is empty; say something")
    return content
