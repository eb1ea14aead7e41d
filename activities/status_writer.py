"""Records status changes of executions that do not follow from a model or tool call."""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from datetime import datetime, timedelta

from everstep.activities import call_records, execution_events
from everstep.activities.agents import AgentProvider, OnEnd, find_agent
from everstep.activities.call_records import DEFAULT_DISCLOSURE, now
from everstep.activities.contracts import SettleInput, StoredEnd
from everstep.activities.failpoints import Failpoint, Strike
from everstep.activities.snapshots import STEPS_OF_SNAPSHOT, Snapshots, has_snapshot
from everstep.activities.step_state import errors_of, evaluation, failures
from everstep.agent_domain.capabilities.questions import request_data
from everstep.agent_domain.errors import UnknownName
from everstep.agent_domain.ids import budget_request_id, request_id
from everstep.agent_domain.loop.boundary import Boundary
from everstep.agent_domain.loop.compact_outcomes import compact, expand
from everstep.agent_domain.loop.status import AgentStatus, ExecutionStatus, StopReason
from everstep.agent_domain.loop.step_error import StepError
from everstep.agent_domain.loop.step_facts import CallNeed
from everstep.agent_domain.messages.disclosure import Disclosure, with_public_reasons
from everstep.agent_domain.messages.leak_guard import calls_in, final_response
from everstep.agent_domain.messages.messages import Messages
from everstep.agent_domain.messages.response_format import as_response_format
from everstep.agent_domain.storage.budget_ledger import BudgetRequest
from everstep.agent_domain.storage.execution_store import ExecutionStore
from everstep.agent_domain.storage.executions import CancelComesFirst, Settlement, execution_output
from everstep.agent_domain.storage.requests import RequestRow
from everstep.agent_domain.storage.steps import StepInput, StepRow
from everstep.agent_domain.stream.records import EventRecord
from everstep.agent_domain.tools.tools import ToolCall
from everstep.agent_domain.values import FrozenDict, frozen_map
from everstep.steps.outputs import find_output


class StatusWriter:
    """Records pauses, resumes, cancels and ends."""

    def __init__(
        self,
        store: ExecutionStore,
        agents: AgentProvider,
        strike: Strike,
        on_end: OnEnd,
        disclosure: Disclosure = DEFAULT_DISCLOSURE,
    ) -> None:
        self.disclosure = disclosure
        self.store = store
        self.snapshots = Snapshots(store)
        self.agents = agents
        self.strike = strike
        self.on_end = on_end

    async def settle(self, request: SettleInput) -> bool | StoredEnd:
        """Record the status of an execution with its events, once per key.

        Returns:
            Whether the execution has to end as cancelled instead: a cancel was stored before this end. Or the
            end that the store has, if it is another one than this.
        """
        request = self._redact(request)
        material, steps = await self._load(request)
        messages = _execution_messages(material)
        answer = final_response(messages, calls_in(messages))
        output = self._output(request, material, answer)
        errors = self._load_errors(request, steps)
        error = _error_text(request, (each.message for each in errors))
        public_error = _error_text(request, (each.told for each in errors))
        self.strike(Failpoint.SETTLE_BEFORE_COMMIT)
        settlement = Settlement(
            request.ref,
            request.key,
            request.status,
            step=request.step,
            errors=failures(request, self.disclosure),
            outcome=evaluation(request.outcome),
            stop_reason=request.stop_reason,
            step_count=request.step_count,
            usage=request.usage,
            error_message=error,
            error_told=public_error,
            output=output,
            snapshot=await self.snapshots.build_for_settlement(request, material, steps),
            is_final=request.stop_reason is not None,
            is_debug=material.is_debug,
            worked_seconds=request.info.cumulative_execution_seconds + request.seconds_under_way,
            events=await self._prepare_events(request, answer, public_error, material, output),
            budget_request=_budget_request(request),
            replaces_outcome=request.budget is not None and request.stop_reason is not None,
            boundary=_boundary(request),
            yields_to_cancel=request.status in (ExecutionStatus.COMPLETED, ExecutionStatus.FAILED),
        )
        try:
            settled = await self.store.settle(settlement)
        except CancelComesFirst:
            return True
        if request.stop_reason is not None or (settled and settled.frees_place):
            await self.on_end(request.ref, settled)
        self.strike(Failpoint.SETTLE_BEFORE_REPORT)
        is_refused = settled is None and request.stop_reason is not None
        return (await self._find_other_end(request) if is_refused else None) or False

    async def _find_other_end(self, request: SettleInput) -> StoredEnd | None:
        """The stored end of an execution, unless it is the one that an earlier attempt recorded."""
        row = await self.store.execution(request.ref)
        if row is None or row.status is request.status or not row.status.is_terminal:
            return None
        return StoredEnd(row.status, row.stop_reason or _USUAL_REASONS[row.status])

    async def _load(self, request: SettleInput) -> tuple[StepInput, Sequence[StepRow]]:
        if has_snapshot(request):
            return await self.store.material_with_steps(request.ref, STEPS_OF_SNAPSHOT)
        return await self.store.material(request.ref), ()

    def _load_errors(self, request: SettleInput, steps: Sequence[StepRow]) -> Sequence[StepError]:
        """The errors of the last step, if the execution has failed."""
        if request.agent_status is not AgentStatus.FAILED:
            return ()
        if request.failure:
            return failures(request, self.disclosure) or [
                StepError(self.disclosure.redaction(request.failure))
            ]
        return [error for step in steps[-1:] for error in errors_of(step)]

    def _redact(self, request: SettleInput) -> SettleInput:
        """Redact secrets in the workflow's error, and replace its message in the votes."""
        if request.failure is None:
            return request
        failure, outcome = request.failure, request.outcome
        redacted = replace(request, failure=self.disclosure.redaction(failure))
        public_texts = [error.told for error in failures(redacted, self.disclosure)]
        if outcome is not None and public_texts:
            outcome = compact(with_public_reasons(expand(outcome), failure, public_texts[0]))
        return replace(redacted, outcome=outcome)

    def _output(self, request: SettleInput, material: StepInput, answer: str | None) -> FrozenDict | None:
        """The answer of an ended execution, with its structured result if the agent has one."""
        if request.stop_reason is None:
            return None
        result_format = as_response_format(material.spec.cached_context.get("responseFormat"))
        if result_format is None or not result_format.is_checked:
            return frozen_map({"response": answer, "stop_reason": request.stop_reason})
        try:
            definition = self.agents.definition(request.agent)
        except UnknownName:
            # This worker does not have the agent's type; the stored schema is enough.
            definition = None
        return execution_output(answer, request.stop_reason, find_output(definition, result_format, answer))

    async def _prepare_events(
        self,
        request: SettleInput,
        answer: str | None,
        error: str | None,
        material: StepInput,
        output: FrozenDict | None,
    ) -> Sequence[EventRecord]:
        if request.asks:
            await self._open_questions(request)
        requests = await self.store.open_requests(request.ref) if request.waiting else ()
        waiting = [(row, _expiry(row, material)) for row in requests if row.call_id in request.waiting]
        result = output if output is not None and output.get("data") is not None else None
        return execution_events.settlement_events(request, waiting, answer, error, material, output=result)

    async def _open_questions(self, request: SettleInput) -> None:
        """Open the questions of calls that were just approved; other questions are open already."""
        definition = find_agent(self.agents, request.agent)
        for call_id in request.waiting:
            approval = await self.store.request(request.ref, request_id(request.ref.execution_id, call_id))
            if approval and approval.kind is CallNeed.APPROVAL:
                call = ToolCall(call_id, approval.tool, approval.args)
                edited, _, _ = call_records.apply_decision(call, approval.resolution)
                call = call if definition.tools.refusal(edited) else edited
                await self.store.ask(request.ref, call_id, request_data(call.args))


_USUAL_REASONS = {
    ExecutionStatus.COMPLETED: StopReason.COMPLETED,
    ExecutionStatus.FAILED: StopReason.ERROR,
    ExecutionStatus.CANCELLED: StopReason.USER_REQUESTED,
}


def _budget_request(request: SettleInput) -> BudgetRequest | None:
    """The request to raise the budget that a pausing execution waits for."""
    if request.budget is None or request.status is not ExecutionStatus.PAUSED:
        return None
    identity = budget_request_id(request.ref.execution_id, request.key)
    # The number of the settlement keeps several requests of one step in order, before those of its calls.
    place = int(request.key.split("/")[1]) - FIRST_CALL_PLACE
    return BudgetRequest(identity, request.budget, request.step_count + 1, place)


FIRST_CALL_PLACE = 10**6
"""No execution has as many settlements before the first call of a step."""


def _execution_messages(material: StepInput) -> Messages:
    """Cut the conversation to the messages of this execution; answers before them belong to earlier ones."""
    starts = (
        index
        for index in range(len(material.messages) - 1, -1, -1)
        if material.messages[index].is_user and material.messages[index].text == material.task
    )
    return material.messages[next(starts, 0) :]


def _error_text(request: SettleInput, texts: Iterable[str]) -> str | None:
    """Join error texts; None unless the execution has failed."""
    if request.agent_status is not AgentStatus.FAILED:
        return None
    return "\n".join(texts) or f"stopped: {request.stop_reason}"


def _expiry(row: RequestRow, material: StepInput) -> datetime | None:
    """When a question expires; None for never."""
    planned = (tool for tool in material.plan.get("tools", ()) if tool["name"] == row.tool)
    seconds = next((tool.get("wait_seconds") for tool in planned), None)
    return None if seconds is None else now() + timedelta(seconds=seconds)


def _boundary(request: SettleInput) -> Boundary | None:
    """What the decision to end the execution has read."""
    if request.elapsed_seconds is None:
        return None
    worked = request.info.cumulative_execution_seconds
    return Boundary(request.elapsed_seconds, round(worked, 6), request.steered, request.budget)
