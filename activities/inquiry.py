"""Asking models in the midst of a step, for tools and processors: each question is paid for once."""

import asyncio
import hashlib
from collections.abc import Callable
from functools import partial
from itertools import count
from typing import Protocol

from activities.agents import Agents
from activities.persistence import until_written
from agent_domain.cached_context import InferenceRequest
from agent_domain.drivers import unheard
from agent_domain.errors import RETRYABLE
from agent_domain.inquiry import ModelChoice
from agent_domain.ports import ExecutionRef, ExecutionStore, InnerReply
from agent_domain.steps import InferenceResponse
from agent_domain.usage import Usage
from agent_domain.values import frozen_map, json_text, thaw

ATTEMPTS = 3
"""How often a question is asked while the model cannot be reached. Its step goes on all the same."""

LONGEST_WAIT = 15.0


class Asker(Protocol):
    """The input of the activity that asks."""

    @property
    def ref(self) -> ExecutionRef:
        """Whose step it is."""
        ...

    @property
    def agent(self) -> str:
        """Whose model is asked where no other is named."""
        ...


class Inquiry:
    """Asks; what was answered before a crash is answered again. One for each call and each processing."""

    def __init__(
        self,
        store: ExecutionStore,
        agents: Agents,
        request: "Asker",
        key: str,
        *,
        wait: Callable[[int], float] = lambda failures: 0.5 * 2**failures,
    ) -> None:
        self.store = store
        self.agents = agents
        self.ref = request.ref
        self.agent = request.agent
        self.key = key
        self.wait = wait
        self.usage = Usage()
        self._asked = 0

    async def __call__(self, request: InferenceRequest, model: ModelChoice = None) -> InferenceResponse:
        """What the model says."""
        key, digest = f"{self.key}/{self._asked}", _digest(request, model)
        self._asked += 1
        known = await self.store.inner_reply(self.ref, key)
        if known is None or known.digest != digest:
            response = await self._answer(request, model)
            reply = InnerReply(key, digest, frozen_map(response.to_dict()))
            record = partial(self.store.record_inner_reply, self.ref, reply, response.usage)
            known = await until_written(record)
        response = InferenceResponse.from_dict(known.response)
        self.usage += response.usage
        return response

    async def spent_before(self) -> Usage:
        """What those cost that an attempt asked which was lost; for whoever does not ask them again."""
        usage = Usage()
        for number in count():
            known = await self.store.inner_reply(self.ref, f"{self.key}/{number}")
            if known is None:
                break
            usage += InferenceResponse.from_dict(known.response).usage
        return usage

    async def _answer(self, request: InferenceRequest, model: ModelChoice) -> InferenceResponse:
        chosen = self.agents.model(self.agent, model)
        for failures in range(ATTEMPTS - 1):
            try:
                return await chosen.respond(request, unheard)
            except RETRYABLE as error:
                wait = getattr(error, "retry_after", None) or self.wait(failures)
                await asyncio.sleep(min(wait, LONGEST_WAIT))
        return await chosen.respond(request, unheard)


def _digest(request: InferenceRequest, model: ModelChoice) -> str:
    """What makes it the same question."""
    asked = {
        "messages": [message.to_dict() for message in request.messages],
        "tools": list(request.tools),
        "toolChoice": request.tool_choice,
        "responseFormat": request.response_format and request.response_format.to_dict(),
        "model": model if model is None or isinstance(model, str) else thaw(frozen_map(model)),
    }
    return hashlib.sha256(json_text(asked).encode()).hexdigest()
