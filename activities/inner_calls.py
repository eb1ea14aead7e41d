"""Model calls that tools and processors make during a step; each one is paid for once."""

import hashlib
from functools import partial
from itertools import count
from typing import Protocol

from everstep.activities.agents import AgentProvider
from everstep.activities.store_retry import write_with_retry
from everstep.agent_domain.agents.drivers import ignore_text
from everstep.agent_domain.agents.plan import ExecutionPlan
from everstep.agent_domain.errors import ModelError
from everstep.agent_domain.ids import ExecutionRef
from everstep.agent_domain.loop.retries import DURABLE_SECONDS
from everstep.agent_domain.loop.usage import Usage, take_usage
from everstep.agent_domain.messages.cached_context import InferenceRequest
from everstep.agent_domain.state.steps import InferenceResponse
from everstep.agent_domain.storage.budget_ledger import BudgetTerms
from everstep.agent_domain.storage.calls import InnerReply
from everstep.agent_domain.storage.execution_store import ExecutionStore
from everstep.agent_domain.tools.inquiry import ModelChoice
from everstep.agent_domain.values import frozen_map, json_text, thaw
from everstep.steps.budgeted_calls import BudgetedCalls
from everstep.steps.provider_retry import ModelRetry, log_pause


class InquiryInput(Protocol):
    """The input of an activity whose tool or processor asks a model."""

    @property
    def ref(self) -> ExecutionRef:
        """The execution."""
        ...

    @property
    def agent(self) -> str:
        """The agent whose default model is used where no other is named."""
        ...


class RecordedInquiry:
    """Asks models, and replays replies recorded before a crash; one per call and per processing."""

    def __init__(
        self,
        store: ExecutionStore,
        agents: AgentProvider,
        request: "InquiryInput",
        key: str,
        *,
        plan: ExecutionPlan | None = None,
    ) -> None:
        self.store = store
        self.agents = agents
        self.ref = request.ref
        self.agent = request.agent
        self.key = key
        self.model_retry = ModelRetry(plan or ExecutionPlan(model_attempts=None), DURABLE_SECONDS)
        self.usage = Usage()
        self._count = 0

    async def __call__(self, request: InferenceRequest, model: ModelChoice = None) -> InferenceResponse:
        """Return the model's reply."""
        key, digest = f"{self.key}/{self._count}", _question_digest(request, model)
        self._count += 1
        recorded, terms = await self.store.preview_inner_call(self.ref, key)
        if recorded is None or recorded.digest != digest:
            calls = self._budgeted_calls(terms, key) if terms.units else None
            try:
                response = await self._ask_model(request, model, calls)
            except ModelError as error:
                self.usage += take_usage(error)
                raise
            reply = InnerReply(key, digest, frozen_map(response.to_dict()))
            spending = calls.spending() if calls else None
            record = partial(self.store.record_inner_reply, self.ref, reply, response.usage, spending)
            recorded = await write_with_retry(record)
        response = InferenceResponse.from_dict(recorded.response)
        self.usage += response.usage
        return response

    async def load_crashed_usage(self) -> Usage:
        """Return the usage of the replies that a crashed attempt recorded.

        For a caller that does not repeat the questions.
        """
        usage = Usage()
        for number in count():
            recorded = await self.store.inner_reply(self.ref, f"{self.key}/{number}")
            if recorded is None:
                break
            usage += InferenceResponse.from_dict(recorded.response).usage
        return usage

    def _budgeted_calls(self, terms: BudgetTerms, key: str) -> BudgetedCalls:
        return BudgetedCalls(
            self.store,
            terms,
            f"inner/{key}",
            steps=0,
            find_model=lambda name: self.agents.model(self.agent, name),
            patience=None,
        )

    async def _ask_model(
        self, request: InferenceRequest, choice: ModelChoice, calls: BudgetedCalls | None
    ) -> InferenceResponse:
        own = self.agents.model(self.agent, choice)
        model = calls.around(own) if calls else own
        try:
            return await self.model_retry.retry(own, lambda: model.respond(request, ignore_text), log_pause)
        except Exception:
            if calls:
                await calls.settle()
            raise


def _question_digest(request: InferenceRequest, model: ModelChoice) -> str:
    question = {
        "messages": [message.to_dict() for message in request.messages],
        "tools": list(request.tools),
        "toolChoice": request.tool_choice,
        "responseFormat": request.response_format and request.response_format.to_dict(),
        "model": model if model is None or isinstance(model, str) else thaw(frozen_map(model)),
    }
    return hashlib.sha256(json_text(question).encode()).hexdigest()
