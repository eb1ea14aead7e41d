"""The activities for child executions: accept a child, report its end to the parent, close a lost one.

The workflow runs the child itself, as a child workflow; these activities are the store's side of it. The
child's id is derived from its call, so a second spawn finds the first child.
"""

from dataclasses import replace

from temporalio import activity

from everstep.activities import call_records, execution_events
from everstep.activities.agents import Agents, known
from everstep.activities.call_records import Came, now
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
from everstep.activities.error_redaction import discreet
from everstep.activities.failpoints import Failpoint, Strike, inert
from everstep.activities.heartbeat import pulse
from everstep.activities.tool_calls import Outcome, reported, spawned
from everstep.agent_domain.agents.definition import AgentDefinition
from everstep.agent_domain.agents.spawning import (
    Spawn,
    brought,
    child_end,
    child_execution,
    child_plan,
    child_ref,
    path,
)
from everstep.agent_domain.errors import InvalidInput, NotFound
from everstep.agent_domain.ids import request_id
from everstep.agent_domain.loop.status import ExecutionStatus
from everstep.agent_domain.loop.step_error import StepError
from everstep.agent_domain.loop.step_facts import Besides
from everstep.agent_domain.messages.disclosure import Disclosure
from everstep.agent_domain.storage.calls import CallRow, Reservation
from everstep.agent_domain.storage.execution_store import ExecutionStore
from everstep.agent_domain.storage.executions import ExecutionRow
from everstep.agent_domain.storage.forced_end import closed
from everstep.agent_domain.tools.inquiry import nobody_answers
from everstep.agent_domain.tools.tools import ToolExecution

FROM_OUTSIDE = "Its workflow was ended from outside"


class SubagentActivities:
    """Accepts, reports and closes child executions."""

    def __init__(
        self,
        store: ExecutionStore,
        agents: Agents,
        strike: Strike = inert,
        *,
        disclosure: Disclosure = call_records.USUAL,
    ) -> None:
        self.disclosure = disclosure
        self.store = store
        self.agents = agents
        self.strike = strike

    @activity.defn(name=SPAWN)
    @discreet
    async def spawn(self, request: SpawnInput) -> SpawnOutput:
        """Accept the child of a call without starting it; returns the call's result if there is no child."""
        with pulse():
            return await self._spawned(request)

    async def _spawned(self, request: SpawnInput) -> SpawnOutput:
        definition = known(self.agents, request.agent)
        reserved = await self.store.reserve_call(
            request.ref, request.call_id, activity.info().attempt, execution_events.call_begins
        )
        if reserved.recorded:
            return SpawnOutput(answered=call_records.output(reserved.call, reserved.recorded))
        self.strike(Failpoint.SPAWN_AFTER_RESERVE)
        execution = call_records.without_running(definition, reserved, now())
        if execution is None:
            asked = await self._asked(request, definition, reserved)
            if isinstance(asked, SpawnOutput):
                self.strike(Failpoint.SPAWN_BEFORE_REPORT)
                return asked
            execution = asked
        came = Came(execution, is_denied=call_records.is_denied(reserved.resolution))
        return SpawnOutput(answered=await self._answered(request, reserved.index, came))

    async def _asked(
        self, request: SpawnInput, definition: AgentDefinition, reserved: Reservation
    ) -> SpawnOutput | ToolExecution:
        call, note, _ = call_records.by_people(reserved.call, reserved.resolution)
        context, started = (
            call_records.context(request.ref, replace(reserved, call=call), nobody_answers),
            now(),
        )
        spawn = await spawned(definition.tools, call, context)
        if isinstance(spawn, Outcome):
            return ToolExecution(call, spawn.result, spawn.error, started, now(), note)
        try:
            return await self._accepted(request, definition, spawn)
        except InvalidInput as error:
            return ToolExecution(call, None, StepError.of(error, call.name), started, now(), note)

    async def _accepted(self, request: SpawnInput, definition: AgentDefinition, spawn: Spawn) -> SpawnOutput:
        own = brought(definition, spawn.agent)
        agent = path(request.agent, spawn.agent) if own else spawn.agent
        child = own or known(self.agents, agent)
        plan = child_plan(spawn, child, agent, request.tokens_left).told(request.broadcast)
        plan.rules()
        ref = child_ref(request.ref, request.call_id)
        new = child_execution(spawn, child, plan, ref, request.ref.execution_id)
        seconds = request.session_seconds
        await self.store.accept(replace(new, task_queue=activity.info().task_queue, session_seconds=seconds))
        return SpawnOutput(plan)

    @activity.defn(name=REPORT)
    @discreet
    async def report(self, request: ReportInput) -> ToolOutput:
        """Record the end of the child as the result of its call."""
        with pulse():
            return await self._reported(request)

    async def _reported(self, request: ReportInput) -> ToolOutput:
        definition = known(self.agents, request.agent)
        told = await self._told(request)
        if told.record:
            return call_records.output(told.call, told.record)
        asked = await self.store.request(request.ref, request_id(request.ref.execution_id, request.call_id))
        call, note, _ = call_records.by_people(told.call, asked and asked.resolution)
        child = await self.store.execution(child_ref(request.ref, request.call_id))
        reads_at, read = now(), await reported(definition.tools, call, child_end(child))
        started = child.created_at if child else reads_at
        execution = ToolExecution(call, read.result, read.error, started, now(), note)
        seconds, tokens = request.seconds, request.tokens
        if request.is_lost:
            seconds, tokens = await self._used(child)
        self.strike(Failpoint.REPORT_BEFORE_RECORD)
        came = Came(execution, besides=Besides(child_tokens=tokens), seconds=seconds)
        output = await self._answered(request, told.index, came)
        self.strike(Failpoint.REPORT_BEFORE_REPORT)
        return output

    async def _told(self, request: ReportInput) -> CallRow:
        steps = await self.store.steps(request.ref, last=1)
        found = (call for step in steps for call in step.calls if call.call.id == request.call_id)
        call = next(found, None)
        if call is None:
            raise NotFound("call", request.call_id)
        return call

    async def _used(self, child: ExecutionRow | None) -> tuple[float, int]:
        """The recorded seconds and tokens of a child whose workflow is gone."""
        if child is None:
            return 0.0, 0
        seconds, tokens = 0.0, int(child.usage.get("total", 0))
        for step in await self.store.steps(child.ref):
            records = [call.record for call in step.calls if call.record]
            seconds += step.facts.seconds if step.facts else 0.0
            seconds += max((record.seconds for record in records), default=0.0)
            tokens += sum(record.besides.child_tokens for record in records)
        return round(seconds, 6), tokens

    async def _answered(
        self,
        request: SpawnInput | ReportInput,
        index: int,
        came: Came,
    ) -> ToolOutput:
        driver = self.agents.driver(request.agent, None)
        place = call_records.Place(request.ref, request.number, index)
        record = await call_records.record(self.store, driver, place, came, disclosure=self.disclosure)
        return call_records.output(came.execution.call, record)

    @activity.defn(name=CLOSE)
    @discreet
    async def close(self, request: CloseInput) -> None:
        """Close a child that never started or whose workflow is gone; does nothing if it has ended."""
        why = FROM_OUTSIDE if request.status is ExecutionStatus.FAILED else None
        with pulse():
            row = await self.store.execution(request.ref)
            if row:
                await self.store.settle(
                    closed(request.ref, request.status, step_count=row.step_count, why=why)
                )
