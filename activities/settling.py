"""Writing down where an execution stands, when no model or tool call does."""

from collections.abc import Sequence
from dataclasses import replace

from activities import calls, news
from activities.agents import Agents, Ended, known
from activities.contracts import SettleInput
from activities.failpoints import Failpoint, Strike
from activities.material import answered, calls_of, errors_of, evaluation, step_state
from agent_domain.ports import EventRecord, ExecutionStore, Material, Settlement, request_id
from agent_domain.snapshots import SlimAgentStateSerializer, slim
from agent_domain.state import final_response
from agent_domain.status import AgentStatus, ExecutionStatus
from agent_domain.step_error import StepError
from agent_domain.step_facts import CallNeed
from agent_domain.tools import ToolCall
from agent_domain.values import FrozenDict, frozen_map

SNAPSHOT_STEPS = 20
"""As many steps as a slim snapshot tells of."""


class Settling:
    """Pause, resume, cancel, finish."""

    def __init__(self, store: ExecutionStore, agents: Agents, strike: Strike, ended: Ended) -> None:
        self.store = store
        self.agents = agents
        self.strike = strike
        self.ended = ended

    async def settle(self, request: SettleInput) -> None:
        """Where the execution stands, with all that its readers are told; a key settles once."""
        material = await self.store.material(request.ref)
        answer = final_response(material.messages, calls_of(material.messages))
        error = await self._error_message(request)
        self.strike(Failpoint.SETTLE_BEFORE_COMMIT)
        await self.store.settle(
            Settlement(
                request.ref,
                request.key,
                request.status,
                step=request.step,
                errors=_failures(request),
                outcome=evaluation(request.outcome),
                stop_reason=request.stop_reason,
                step_count=request.step_count,
                usage=request.usage,
                error_message=error,
                output=_output(request, answer),
                snapshot=await self._snapshot(request, material),
                is_final=request.stop_reason is not None,
                events=await self._news(request, answer, error, material),
            )
        )
        if request.stop_reason is not None:
            await self.ended(request.ref)
        self.strike(Failpoint.SETTLE_BEFORE_REPORT)

    async def _error_message(self, request: SettleInput) -> str | None:
        """What went wrong, for people, once the execution has failed."""
        if request.agent_status is not AgentStatus.FAILED:
            return None
        steps = await self.store.steps(request.ref, last=1)
        errors = [error.message for step in steps for error in errors_of(step)]
        return request.failure or "\n".join(errors) or f"stopped: {request.stop_reason}"

    async def _snapshot(self, request: SettleInput, material: Material) -> FrozenDict | None:
        """The final snapshot, and one of each pause."""
        if request.stop_reason is None and request.status is not ExecutionStatus.PAUSED:
            return None
        state = step_state(request.ref, request.step_count + 1, material)
        facts = replace(state.facts, status=request.agent_status, usage=request.usage)
        rows = await self.store.steps(request.ref, last=SNAPSHOT_STEPS)
        steps = [slim(answered(row, row.facts), row.duration_ms) for row in rows if row.facts]
        return frozen_map(SlimAgentStateSerializer().serialize(replace(state, facts=facts), steps))

    async def _news(
        self, request: SettleInput, answer: str | None, error: str | None, material: Material
    ) -> Sequence[EventRecord]:
        if request.asks:
            await self._ask(request)
        requests = await self.store.open_requests(request.ref) if request.waiting else ()
        waiting = [row for row in requests if row.call_id in request.waiting]
        return news.settled(request, waiting, answer, error, material)

    async def _ask(self, request: SettleInput) -> None:
        """Open the questions of calls that people have just allowed; other questions are open already."""
        definition = known(self.agents, request.agent)
        for call_id in request.waiting:
            allowed = await self.store.request(request.ref, request_id(request.ref.execution_id, call_id))
            if allowed and allowed.kind is CallNeed.APPROVAL:
                asked = ToolCall(call_id, allowed.tool, allowed.args)
                edited, _, _ = calls.by_people(asked, allowed.resolution)
                asked = asked if definition.tools.refusal(edited) else edited
                await self.store.ask(request.ref, call_id, asked.args)


def _failures(request: SettleInput) -> Sequence[StepError]:
    """The errors of a step that only the workflow knows, with their message."""
    if request.step is None or request.failure is None:
        return ()
    return [replace(error, message=request.failure) for error in request.step.own_errors]


def _output(request: SettleInput, answer: str | None) -> FrozenDict | None:
    if request.stop_reason is None:
        return None
    return frozen_map({"response": answer, "stop_reason": request.stop_reason})
