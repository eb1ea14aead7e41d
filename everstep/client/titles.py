"""Titles of sessions, written by a model in the background. A session works without one."""

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final
from uuid import UUID, uuid4

from everstep.agent_domain.agents.drivers import Model
from everstep.agent_domain.background import note_failure
from everstep.agent_domain.errors import EverstepError, ModelError
from everstep.agent_domain.ids import ExecutionRef, Scope
from everstep.agent_domain.loop.usage import Usage, take_usage
from everstep.agent_domain.messages.cached_context import InferenceRequest
from everstep.agent_domain.messages.messages import system, user
from everstep.agent_domain.storage.budget_ledger import (
    BudgetClaim,
    BudgetGrant,
    BudgetRefusal,
    BudgetSpending,
)
from everstep.agent_domain.storage.session_charges import SessionUsage
from everstep.agent_domain.storage.session_store import SessionStore
from everstep.agent_domain.storage.sessions import (
    MAX_TITLE,
    title_from,
)
from everstep.steps.budgeted_calls import BudgetedCalls

log = logging.getLogger(__name__)

PRESET: Final = "fast"
"""The preset of the model."""

PROMPT: Final = (
    "You name conversations. Answer with a title of at most six words for the conversation that begins "
    "with the following message, in its language, without quotes and without a full stop. Do not answer "
    "the message itself."
)
MAX_READ_CHARS: Final = 2_000
"""The limit of the message that is sent to the model, in characters."""
MAX_OUTPUT_TOKENS: Final = 1_000
"""The limit of the answer, which models that reason need."""
TIMEOUT_SECONDS: Final = 20.0
"""The time limit in seconds; without an answer, the first words stay the title."""


@dataclass(frozen=True)
class NewSessionMessage:
    """The first message of a session, and the execution that it began."""

    scope: Scope
    ref: ExecutionRef
    session_id: UUID
    content: str


@dataclass
class Titles:
    """Replaces the default title, the first words of a session, with one by a model.

    A title that a user has changed is kept. The model call is charged to the session, and to the budgets of
    the session, its user and its tenant.

    Args:
        model: Writes the titles.
        store: Keeps sessions and budgets.
        find_model: Finds the model of a cheaper preset, which a budget names.
    """

    model: Model
    store: SessionStore
    find_model: Callable[[str], Model]
    _tasks: set[asyncio.Task[None]] = field(default_factory=set[asyncio.Task[None]])

    def ask(self, message: NewSessionMessage) -> None:
        """Start a background task that asks for a title."""
        task = asyncio.create_task(self._entitle(message))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def wait_until_idle(self) -> None:
        """Wait until all running tasks are done."""
        await asyncio.gather(*self._tasks)

    async def aclose(self) -> None:
        """Cancel all running tasks."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _entitle(self, message: NewSessionMessage) -> None:
        try:
            async with asyncio.timeout(TIMEOUT_SECONDS):
                title = await self._title(message)
            if title:
                await self.store.retitle(
                    message.scope, message.session_id, title_from(message.content), title
                )
        except (EverstepError, TimeoutError) as error:
            log.info("the session %s keeps its default title: %s", message.session_id, error)
        except Exception as error:  # noqa: BLE001 -- anyone's model; nothing depends on a title
            note_failure("the titles of sessions", error, log)

    async def _title(self, message: NewSessionMessage) -> str:
        request = InferenceRequest(
            (system(PROMPT), user(message.content[:MAX_READ_CHARS])), max_output_tokens=MAX_OUTPUT_TOKENS
        )
        charged = ChargedCall(message, self.store)
        calls = await charged.open_budgets(self.find_model)
        model = calls.around(self.model) if calls else self.model
        try:
            response = await model.respond(request, _ignore_text)
        except ModelError as error:
            await charged.record(None, take_usage(error), calls)
            raise
        await charged.record(response.model, response.usage, calls)
        return " ".join(response.text.split()).strip("\"'“”„«».")[:MAX_TITLE]


class ChargedCall:
    """A model call that is charged to a session.

    The execution that began the session may end before the call does, and releases its reservations. So the
    worst case is held apart from it. A call that is interrupted stays held until it is charged as a whole,
    because its provider may charge it.
    """

    def __init__(self, message: NewSessionMessage, store: SessionStore) -> None:
        self.message = message
        self.store = store
        self.hold: UUID | None = None

    async def open_budgets(self, find_model: Callable[[str], Model]) -> BudgetedCalls | None:
        """Return the call under the budgets that apply; None without any."""
        terms = await self.store.session_terms(self.message.ref)
        if not terms.units:
            return None
        return BudgetedCalls(self, terms, "title", steps=0, find_model=find_model, patience=0)

    async def reserve_budget(self, claim: BudgetClaim) -> BudgetGrant | BudgetRefusal:
        """Hold what the call may use in every budget, or nothing."""
        hold = uuid4()
        answer = await self.store.hold_budget(hold, claim)
        if isinstance(answer, BudgetGrant):
            self.hold = hold
        return answer

    async def settle_budget(self, ref: ExecutionRef, spending: BudgetSpending) -> None:
        """Replace what is held by what the call spent."""
        del ref
        await self.store.record_session_usage(None, self.hold, spending)

    async def record(self, model: str | None, usage: Usage, calls: BudgetedCalls | None) -> None:
        """Record what the call used.

        Args:
            model: The model that answered; None if the call failed.
            usage: What it used.
            calls: The call under its budgets.
        """
        is_charged = model is not None or usage.total > 0
        if is_charged or self.hold:
            used = SessionUsage(self.message.ref, model or "", usage) if is_charged else None
            await self.store.record_session_usage(used, self.hold, calls and calls.spending())


def _ignore_text(_text: str) -> None:
    """Ignore streamed text."""
