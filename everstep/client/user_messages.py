"""Messages of users to sessions, and what becomes of them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any
from uuid import UUID, uuid4

from everstep.agent_domain.attachments import Attachable
from everstep.agent_domain.capabilities.rights import Actor
from everstep.agent_domain.loop.budget import Budget
from everstep.agent_domain.messages.messages import Messages
from everstep.agent_domain.storage.contexts import ContextCaller
from everstep.agent_domain.storage.sessions import OnBusy, Route, SessionMessageRow
from everstep.agent_domain.stream.broadcast_config import BroadcastConfig
from everstep.agent_domain.stream.session_messages import NO_CONTEXT, Context
from everstep.agent_domain.values import EMPTY


@dataclass(frozen=True, slots=True)
class UserMessage:
    """A message of a user in a session. Sending it again with the same `key` changes nothing."""

    content: str
    user_id: str
    data: Any = None
    """The answer to a form."""
    request_id: UUID | None = None
    """The question that the message answers."""
    on_busy: OnBusy = OnBusy.ENQUEUE
    context: Context = NO_CONTEXT
    agent: str | None = None
    metadata: Mapping[str, Any] = EMPTY
    debug: bool = False
    """Whether the new execution stores its full state after each step."""
    broadcast: BroadcastConfig | None = None
    """The level of detail of that execution's events; default: the agent's."""
    key: str = field(default_factory=lambda: str(uuid4()))
    initial_context_url: str | None = None
    """The initial URL of a session that is created for the message; default: `context.url`."""
    caller: ContextCaller | None = None
    """The caller for the context policy; default: the user without scopes and roles."""
    model: str | None = None
    """The preset or the model of the new execution; default: the agent's."""
    output: Any = None
    """The type or schema of the result of the new execution; default: the agent's."""
    by: Actor | None = None
    """Who sends it, to record with an answer."""
    budgets: tuple[Budget, ...] = ()
    """More budgets for the new execution; they may lower those of the agent, but not raise them."""
    attachments: Sequence[Attachable | UUID] = ()
    """Files: uploaded ones by their ids, and others, which are uploaded."""
    history: Messages = ()
    """An earlier conversation from elsewhere, which the new execution reads before the message."""


@dataclass(frozen=True, slots=True)
class SendResult:
    """The result of sending a message."""

    message: SessionMessageRow
    route: Route
    execution_id: UUID
