"""Titles of sessions, written by a model in the background. A session works without one."""

import asyncio
import logging
from dataclasses import dataclass, field
from typing import Final
from uuid import UUID

from everstep.agent_domain.agents.drivers import Model
from everstep.agent_domain.background import note_failure
from everstep.agent_domain.errors import EverstepError
from everstep.agent_domain.ids import Scope
from everstep.agent_domain.messages.cached_context import InferenceRequest
from everstep.agent_domain.messages.messages import system, user
from everstep.agent_domain.storage.session_store import SessionStore
from everstep.agent_domain.storage.sessions import (
    MAX_TITLE,
    title_from,
)

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
TIMEOUT_SECONDS: Final = 20.0
"""The time limit in seconds; without an answer, the first words stay the title."""


@dataclass
class Titles:
    """Replaces the default title, the first words of a session, with one by a model.

    A title that a user has changed is kept.
    """

    model: Model
    store: SessionStore
    _tasks: set[asyncio.Task[None]] = field(default_factory=set[asyncio.Task[None]])

    def ask(self, scope: Scope, session_id: UUID, content: str) -> None:
        """Start a background task that asks for a title."""
        task = asyncio.create_task(self._entitle(scope, session_id, content))
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

    async def _entitle(self, scope: Scope, session_id: UUID, content: str) -> None:
        try:
            async with asyncio.timeout(TIMEOUT_SECONDS):
                title = await self._title(content)
            if title:
                await self.store.retitle(scope, session_id, title_from(content), title)
        except (EverstepError, TimeoutError) as error:
            log.info("the session %s keeps its default title: %s", session_id, type(error).__name__)
        except Exception as error:  # noqa: BLE001 -- anyone's model; nothing depends on a title
            note_failure("the titles of sessions", error, log)

    async def _title(self, content: str) -> str:
        request = InferenceRequest((system(PROMPT), user(content[:MAX_READ_CHARS])))
        response = await self.model.respond(request, _ignore_text)
        return " ".join(response.text.split()).strip("\"'“”„«».")[:MAX_TITLE]


def _ignore_text(_text: str) -> None:
    """Ignore streamed text."""
