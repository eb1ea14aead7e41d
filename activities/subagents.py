"""The activities for child executions: accept a child, report its end to the parent, close a lost one.

The workflow runs the child itself, as a child workflow; these activities are the store's side of it. The
child's id is derived from its call, so a second spawn finds the first child.
"""

from dataclasses import replace

from temporalio import activity
from temporalio.client import WorkflowExecutionStatus
from temporalio.exceptions import ApplicationError, ApplicationErrorCategory
from temporalio.service import RPCError, RPCStatusCode

from everstep.activities import call_records, execution_events
from everstep.activities.agents import AgentProvider, find_agent
from everstep.activities.call_records import now
from everstep.activities.contracts import (
    CLOSE,
    REPORT,
    SPAWN,
    CloseInput,
    ReportInput,
    SpawnInput,
    SpawnOutput,
    ToolOutput,
)
from everstep.activities.error_redaction import redact_errors
from everstep.activities.failpoints import Failpoint, Strike, inert
from everstep.activities.heartbeat import heartbeat
from everstep.agent_domain.agents.definition import AgentDefinition
from everstep.agent_domain.agents.spawning import (
    Spawn,
    child_end,
    child_execution,
    child_plan,
    child_ref,
)
from everstep.agent_domain.errors import InvalidInput, NotFound
from everstep.agent_domain.ids import request_id
from everstep.agent_domain.loop.run_context import RunContext
from everstep.agent_domain.loop.status import ExecutionStatus
from everstep.agent_domain.loop.step_error import StepError
from everstep.agent_domain.loop.step_facts import NOTHING_BESIDES, Besides
from everstep.agent_domain.messages.disclosure import Disclosure
from everstep.agent_domain.storage.calls import CallRow, Reservation
from everstep.agent_domain.storage.execution_store import ExecutionStore
from everstep.agent_domain.storage.executions import ExecutionRow
from everstep.agent_domain.storage.forced_end import closing_settlement
from everstep.agent_domain.tools.inquiry import refuse_model_call
from everstep.agent_domain.tools.tools import ToolExecution
from everstep.steps.subagents import find_child, report_child, spawn_child
from everstep.steps.tool_calls import Outcome
from everstep.steps.tool_runs import ToolRun

FROM_OUTSIDE = "Its workflow was ended from outside"

SUBAGENT_IS_RUNNING = "SubagentIsRunning"
"""The type with which attempts to close a child fail while its workflow is running."""


class SubagentActivities:
    """Accepts, reports and closes child executions."""

    def __init__(
        self,
        store: ExecutionStore,
        agents: AgentProvider,
        strike: Strike = inert,
        *,
        disclosure: Disclosure = call_records.DEFAULT_DISCLOSURE,
    ) -> None:
        self.disclosure = disclosure
        self.store = store
        self.agents = agents
        self.strike = strike

    @activity.defn(name=SPAWN)
    @redact_errors
    async def spawn(self, request: SpawnInput) -> SpawnOutput:
        """Accept the child of a call without starting it; returns the call's result if there is no child."""
        with heartbeat():
            return await self._spawn(request)

    async def _spawn(self, request: SpawnInput) -> SpawnOutput:
        definition = find_agent(self.agents, request.agent)
        reserved = await self.store.reserve_call(
            request.ref, request.call_id, activity.info().attempt, execution_events.call_start_events
        )
        if reserved.recorded:
            return SpawnOutput(answered=call_records.output_from(reserved.call, reserved.recorded))
        self.strike(Failpoint.SPAWN_AFTER_RESERVE)
        execution = call_records.result_of_decision(definition, reserved)
        if execution is None:
            result = await self._call_spawn(request, definition, reserved)
            if isinstance(result, SpawnOutput):
                self.strike(Failpoint.SPAWN_BEFORE_REPORT)
                return result
            execution = result
        run = ToolRun(execution, is_denied=reserved.is_denied)
        return SpawnOutput(answered=await self._record_run(request, reserved.index, run))

    async def _call_spawn(
        self, request: SpawnInput, definition: AgentDefinition, reserved: Reservation
    ) -> SpawnOutput | ToolExecution:
        call, note, _ = call_records.apply_decision(reserved.call, reserved.resolution)
        given, attempt = replace(reserved, call=call), activity.info().attempt
        context = call_records.build_context(
            request.ref, given, refuse_model_call, self.agents.resources, attempt
        )
        started = now()
        spawn = await spawn_child(definition.tools, call, context)
        if isinstance(spawn, Outcome):
            return spawn.execution(call, started, now(), note)
        try:
            return await self._accept(request, definition, spawn, reserved.run)
        except InvalidInput as error:
            return ToolExecution(call, None, StepError.of(error, call.name), started, now(), note)

    async def _accept(
        self, request: SpawnInput, definition: AgentDefinition, spawn: Spawn, run: RunContext
    ) -> SpawnOutput:
        agent, child = find_child(
            definition, request.agent, spawn.agent, lambda name: find_agent(self.agents, name)
        )
        plan = child_plan(spawn, child, agent, request.tokens_left, request.budgets)
        plan = plan.told(request.broadcast)
        plan.rules()
        ref = child_ref(request.ref, request.call_id)
        new = child_execution(spawn, child, plan, ref, request.ref.execution_id)
        seconds = request.session_seconds
        await self.store.accept(replace(new, task_queue=activity.info().task_queue, session_seconds=seconds))
        return SpawnOutput(plan, run=run.ids if plan.criteria else None)

    @activity.defn(name=REPORT)
    @redact_errors
    async def report(self, request: ReportInput) -> ToolOutput:
        """Record the end of the child as the result of its call."""
        with heartbeat():
            return await self._report(request)

    async def _report(self, request: ReportInput) -> ToolOutput:
        definition = find_agent(self.agents, request.agent)
        row = await self._load_call(request)
        if row.record:
            return call_records.output_from(row.call, row.record)
        open_request = await self.store.request(
            request.ref, request_id(request.ref.execution_id, request.call_id)
        )
        call, note, _ = call_records.apply_decision(row.call, open_request and open_request.resolution)
        child = await self.store.execution(child_ref(request.ref, request.call_id))
        reported_at, report = now(), await report_child(definition.tools, call, child_end(child))
        started = child.created_at if child else reported_at
        execution = report.execution(call, started, now(), note)
        seconds, used = request.seconds, Besides(child_tokens=request.tokens, child_cost_usd=request.cost_usd)
        if request.is_lost:
            seconds, used = await self._load_usage(child)
        self.strike(Failpoint.REPORT_BEFORE_RECORD)
        run = ToolRun(execution, besides=used, seconds=seconds)
        output = await self._record_run(request, row.index, run)
        self.strike(Failpoint.REPORT_BEFORE_REPORT)
        return output

    async def _load_call(self, request: ReportInput) -> CallRow:
        steps = await self.store.steps(request.ref, last=1)
        found = (call for step in steps for call in step.calls if call.call.id == request.call_id)
        call = next(found, None)
        if call is None:
            raise NotFound("call", request.call_id)
        return call

    async def _load_usage(self, child: ExecutionRow | None) -> tuple[float, Besides]:
        """The recorded seconds of a child whose workflow is gone, and what it used."""
        if child is None:
            return 0.0, NOTHING_BESIDES
        tokens = int(child.usage.get("total", 0))
        seconds, used = 0.0, Besides(child_tokens=tokens, child_cost_usd=child.cost_usd)
        for step in await self.store.steps(child.ref):
            records = [call.record for call in step.calls if call.record]
            seconds += step.facts.seconds if step.facts else 0.0
            seconds += max((record.seconds for record in records), default=0.0)
            for record in records:
                inner = record.besides
                used += Besides(child_tokens=inner.child_tokens, child_cost_usd=inner.child_cost_usd)
        return round(seconds, 6), used

    async def _record_run(
        self,
        request: SpawnInput | ReportInput,
        index: int,
        run: ToolRun,
    ) -> ToolOutput:
        driver = self.agents.driver(request.agent, None)
        place = call_records.CallPlace(request.ref, request.number, index)
        record = await call_records.record_run(self.store, driver, place, run, disclosure=self.disclosure)
        return call_records.output_from(run.execution.call, record)

    @activity.defn(name=CLOSE)
    @redact_errors
    async def close(self, request: CloseInput) -> None:
        """Close a child that never started or whose workflow is gone; does nothing if it has ended.

        A parent that an operator has reset finds its child running. Attempts of this activity then wait for
        the child's own end, with the pauses of the retry policy and without an event in the parent's history.

        Raises:
            ApplicationError: The workflow of the child is running; it is cancelled if its parent is.
        """
        why = FROM_OUTSIDE if request.status is ExecutionStatus.FAILED else None
        with heartbeat():
            row = await self.store.execution(request.ref)
            if row and row.status.is_terminal:
                return
            if request.workflow_id and await self.is_running(request):
                raise ApplicationError(
                    "the subagent is running; its parent waits for its end",
                    type=SUBAGENT_IS_RUNNING,
                    category=ApplicationErrorCategory.BENIGN,
                )
            if row:
                await self.store.settle(
                    closing_settlement(
                        request.ref, request.status, step_count=row.step_count, error_message=why
                    )
                )

    async def is_running(self, request: CloseInput) -> bool:
        """Whether the workflow of a child is running; if the child is to be cancelled, request that."""
        workflow = activity.client().get_workflow_handle(request.workflow_id)
        try:
            is_running = (await workflow.describe()).status is WorkflowExecutionStatus.RUNNING
            if is_running and request.status is ExecutionStatus.CANCELLED:
                await workflow.cancel(reason="its parent was cancelled")
        except RPCError as error:
            if error.status is not RPCStatusCode.NOT_FOUND:
                raise
            return False
        return is_running
