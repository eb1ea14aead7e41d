"""Chat completions as sessions.

The protocol has no conversations: each request has all messages. A request that names a session adds its new
messages there. Another one continues the session whose messages and answers it repeats, if nothing was said
there since; otherwise it begins a session, with its earlier messages as what was said before.
"""

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from uuid import UUID, uuid4

from everstep.agent_domain.errors import EverstepError
from everstep.agent_domain.loop.status import ExecutionStatus
from everstep.agent_domain.loop.step_facts import CallNeed
from everstep.agent_domain.messages.messages import Role
from everstep.agent_domain.storage.executions import ExecutionRow
from everstep.agent_domain.storage.keys import StoredResponse
from everstep.agent_domain.storage.requests import RequestKind, RequestRow, RequestState
from everstep.agent_domain.storage.sessions import ExecutionFilter, OnBusy, title_from
from everstep.http_api.openai_errors import unusable
from everstep.http_api.openai_input import ConversationInput, digest_of, output_schema, typed_decision
from everstep.http_api.problems import Refusal
from everstep.http_api.schemas.openai_requests import ChatCompletionRequest
from everstep.http_api.threads import GivenAnswer, RunToFollow, ThreadMessageSent, Threads

logger = logging.getLogger(__name__)

MAX_ROOTS = 50
"""How many of the latest executions of a session are searched for the last one that is no subagent's."""


@dataclass(frozen=True)
class ChatRequestKey:
    """What tells a repeated request from a new one."""

    given: str | None
    """The `Idempotency-Key`."""
    is_retry: bool
    """Whether an SDK sends the request again on its own."""


@dataclass(frozen=True)
class ChatThreads:
    """The chats of one caller with one agent."""

    threads: Threads

    async def send(
        self, body: ChatCompletionRequest, found: ConversationInput, session: str | None, key: ChatRequestKey
    ) -> RunToFollow:
        """Send the new messages of a request, to a session or to an open question or approval.

        Args:
            body: The request.
            found: Its messages.
            session: The name of its session, if it has one.
            key: What tells it from others.
        """
        id_ = found.digest(body.model, body.response_format)
        thread_id = session or await self._recognize(found, id_, key)
        if thread_id is None:
            thread_id, history = f"chat/{key.given or uuid4()}", found.history
        else:
            history = ()
            if decided := await self._decide(thread_id, found, id_):
                return decided
        sent = ThreadMessageSent(
            id_,
            found.text,
            found.files,
            # A failed execution goes on where it failed if its message is sent again.
            run_id=str(uuid4()),
            on_busy=body.everstep.on_busy or OnBusy.ENQUEUE,
            model=body.everstep.model,
            output=output_schema(body.format, "response_format"),
            history=history,
            title=title_from(found.text or "Files"),
            notes={"request_digest": id_},
        )
        return await self.threads.send(thread_id, sent, key.given)

    async def remember(self, found: ConversationInput, run: RunToFollow, answer: str) -> None:
        """Remember the conversation with its answer, to recognize it in the next request."""
        said = [*_entries(found), *(["user", text] for text in found.texts if text), ["assistant", answer]]
        key, caller = self._key_of(said), self.threads.caller
        stored = StoredResponse(200, None, key, session_id=run.session_id, execution_id=run.execution_id)
        try:
            await self.threads.api.keys.remember(caller.tenant_id, caller.user_id, key, stored)
        except EverstepError as error:
            logger.warning("a conversation is not remembered and will begin a new session: %s", error)

    def _key_of(self, said: Sequence[Sequence[str]]) -> str:
        # Clients may trim or fold what they show.
        folded = [[role, " ".join(text.split())] for role, text in said]
        return f"chat/{digest_of([self.threads.agent, folded])}"

    async def _recognize(self, found: ConversationInput, id_: str, key: ChatRequestKey) -> str | None:
        """The session that the request continues."""
        if not any(message.is_assistant for message in found.history):
            return None
        caller = self.threads.caller
        known = await self.threads.api.keys.find_response(
            caller.tenant_id, caller.user_id, self._key_of(_entries(found))
        )
        if known is None or known.session_id is None:
            return None
        thread_id = str(known.session_id)
        last = await self._last_root(known.session_id)
        if last is not None and last.ref.execution_id == known.execution_id:
            return thread_id
        is_repeated = key.given is not None or key.is_retry
        # The first attempt of this request may have added its message.
        if is_repeated and not await self.threads.filter_new_ids(thread_id, [id_]):
            return thread_id
        return None

    async def _last_root(self, session_id: UUID) -> ExecutionRow | None:
        store = self.threads.api.sessions.store
        wanted = ExecutionFilter(session_id)
        page = await store.executions_of(self.threads.caller.scope, wanted, limit=MAX_ROOTS)
        return next((row for row in page.rows if row.parent_execution_id is None), None)

    async def _decide(self, thread_id: str, found: ConversationInput, id_: str) -> RunToFollow | None:
        """Decide about calls that wait, if the message does; None if none waits."""
        caller, keys = self.threads.caller, self.threads.api.keys
        decision, key = typed_decision(found.text), f"chat-decision/{id_}"
        if decision and (stored := await keys.find_response(caller.tenant_id, caller.user_id, key)):
            ids = [UUID(each) for each in stored.body]
            return await self._answer(thread_id, ids, decision, id_)
        session_id, row = await self.threads.find(thread_id)
        last = await self._last_root(session_id) if row is not None else None
        if last is None or last.status is not ExecutionStatus.PAUSED:
            return None
        requests = await self._open_requests(last)
        if any(request.kind is RequestKind.BUDGET for request in requests):
            detail = (
                "A budget is exhausted; the answer follows once a caller with the scope 'approve' raises it"
            )
            raise Refusal(409, "budget-exhausted", "A budget is exhausted", detail)
        waiting = [request for request in requests if request.kind is CallNeed.APPROVAL]
        if not waiting:
            return None
        calls = ", ".join(request.tool for request in waiting)
        if len(waiting) < len(requests):
            raise Refusal(
                409,
                "requests-open",
                "Requests are open",
                f"A question is open beside the approval of {calls}; answer both in the console",
            )
        if decision is None:
            raise unusable(
                "messages", f"{calls} waits for approval: answer `approve`, `deny`, or `deny: ` and a reason"
            )
        ids = [request.id for request in waiting]
        note = StoredResponse(200, [str(each) for each in ids], key, session_id=session_id)
        await keys.remember(caller.tenant_id, caller.user_id, key, note)
        return await self._answer(thread_id, ids, decision, id_)

    async def _answer(
        self, thread_id: str, ids: Sequence[UUID], decision: tuple[bool, str | None], id_: str
    ) -> RunToFollow:
        approved, reason = decision
        answers = [GivenAnswer(each, approved=approved, reason=reason) for each in ids]
        return await self.threads.answer(thread_id, answers, f"chat/{id_}")

    async def _open_requests(self, root: ExecutionRow) -> Sequence[RequestRow]:
        found = await self.threads.api.sessions.client.store.requests_within(root.ref)
        return [each for each in found if each.state is RequestState.OPEN]


def _entries(found: ConversationInput) -> list[list[str]]:
    roles = {Role.ASSISTANT: "assistant"}
    return [[roles.get(message.role, "user"), message.text] for message in found.history]
