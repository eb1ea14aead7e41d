"""What people did in a recorded run, at the step and the time at which they did it."""

from collections.abc import Awaitable, Callable, Iterator
from contextlib import suppress
from datetime import datetime, timedelta
from decimal import Decimal
from typing import Any
from uuid import UUID

from everstep.activities.contracts import (
    INFER,
    PROCESS,
    RUN_TOOL,
    SETTLE,
    SPAWN,
    InferInput,
    ProcessInput,
    SettleInput,
    SpawnInput,
    ToolInput,
)
from everstep.activities.step_state import evaluation
from everstep.agent_domain.ids import ExecutionRef
from everstep.agent_domain.loop.budget import BudgetUnit
from everstep.agent_domain.loop.status import ExecutionStatus
from everstep.agent_domain.storage.commands import Command, CommandKind
from everstep.agent_domain.storage.forced_end import closing_settlement
from everstep.agent_domain.storage.requests import RequestKind, RequestRow, RequestState
from everstep.agent_domain.storage.run_record import RunRecord, RunRequest, RunStep
from everstep.agent_domain.storage.steps import BeginStep
from everstep.client.client import Client
from everstep.client.errors import Refused
from everstep.client.execution import Execution
from everstep.runtime.replay.host import TemporalHost
from everstep.runtime.replay.recorded import Recorded, is_interrupted, is_terminated
from everstep.runtime.replay.recorded_store import RecordedStore
from everstep.workflows.contracts import workflow_id

_BY_NO_ONE = frozenset({"default"})
"""Kinds of resolutions that a timeout made."""


class RecordedPeople:
    """Directs a replay: when activities complete, and what people do until then."""

    host: TemporalHost
    client: Client

    def __init__(self, record: RunRecord, recorded: Recorded, store: RecordedStore) -> None:
        self._record = record
        self._recorded = recorded
        self._store = store
        self._resolved: set[tuple[UUID, str, str]] = set()
        self._ended: set[UUID] = set()
        self._last_moment = max(_moments(record), default=record.started_at)

    def begin(self) -> None:
        """Plan the pauses, resumes and cancels."""
        for run in self._record.each_run():
            for command in run.commands:
                self.host.at(command.sent_at, self._command(run.ref, command.kind))

    @property
    def has_ended(self) -> bool:
        """Whether the record has nothing more to answer with."""
        return bool(self._recorded.findings.ends)

    def is_beyond(self, moment: datetime) -> bool:
        """Whether a timer is later than everything in a record that ends in the middle of a run."""
        return not self._record.status.is_terminal and moment > self._last_moment

    def _run_of(self, request: Any) -> RunRecord | None:
        """The run of an activity's request; one without a request belongs to none."""
        ref = getattr(request, "ref", None)
        return self._recorded.runs.get(ref.execution_id) if isinstance(ref, ExecutionRef) else None

    # Time.

    def completion(self, name: str, request: Any, now: datetime) -> datetime | None:  # noqa: PLR0911 -- one for each activity
        """When an activity that begins now completes; None for never."""
        run = self._run_of(request)
        if run is None:
            return now
        match name:
            case _ if name == INFER and isinstance(request, InferInput):
                return self._reply_completion(run, request, now)
            case _ if name == RUN_TOOL and isinstance(request, ToolInput):
                call = run.call(request.call_id)
                if call is None or call.record is None or call.is_abandoned:
                    return None if is_interrupted(run) else now
                return call.record.completed_at
            case _ if name == SPAWN and isinstance(request, SpawnInput):
                call = run.call(request.call_id)
                is_spawned = call is None or not call.is_abandoned or run.child(request.call_id) is not None
                return now if is_spawned or not is_interrupted(run) else None
            case _ if name == PROCESS and isinstance(request, ProcessInput):
                step = run.step(request.number)
                if step is None or not step.is_processed:
                    return None if is_interrupted(run) else now
                return now + timedelta(seconds=step.processing_seconds)
            case _:
                return now

    def _reply_completion(self, run: RunRecord, request: InferInput, now: datetime) -> datetime | None:
        step = run.step(request.number)
        if step and step.replied_at:
            return step.replied_at
        # A budget may end the step before the model is asked.
        return None if is_interrupted(run) and not run.plan.get("budgets") else now

    def is_completed(self, name: str, request: Any) -> bool:
        """Whether an activity completed although it was cancelled: then the record has its result."""
        run = self._run_of(request)
        if run is None:
            return False
        if name == INFER and isinstance(request, InferInput):
            step = run.step(request.number)
            return step is not None and step.facts is not None
        if name == RUN_TOOL and isinstance(request, ToolInput):
            call = run.call(request.call_id)
            return call is not None and not call.is_abandoned
        return False

    # People.

    async def on_start(self, workflow_id: str) -> None:
        """Send the messages that the first step read."""
        run = next((run for run in self._recorded.runs.values() if _id_of(run) == workflow_id), None)
        if run is not None:
            await self._steer(run.ref, run.step(1))

    async def on_schedule(self, name: str, request: Any) -> None:
        """Send the messages that the next step read, and a cancel before the end that it prevented."""
        if name == SETTLE and isinstance(request, SettleInput) and request.status.is_terminal:
            await self._cancel_before_end(request)
        if name == INFER and isinstance(request, InferInput):
            run = self._recorded.runs.get(request.ref.execution_id)
            step = run.step(request.number) if run else None
            if step and step.facts is None:
                # It began, and never completes.
                outcome = evaluation(request.outcome)
                await self._store.begin_step(
                    BeginStep(request.ref, request.number, 1, outcome, hears=request.hears)
                )
            await self._steer(request.ref, run.step(request.number + 1) if run else None)

    async def _cancel_before_end(self, request: SettleInput) -> None:
        run = self._recorded.runs.get(request.ref.execution_id)
        if run is None or run.status is not ExecutionStatus.CANCELLED:
            return
        steps = sum(step.facts is not None for step in run.steps)
        has_command = any(each.kind is CommandKind.CANCEL for each in run.commands)
        if has_command and request.step_count >= steps:
            await self._store.command(run.ref, "cancel/replay", CommandKind.CANCEL)

    async def _steer(self, ref: ExecutionRef, step: RunStep | None) -> None:
        for index, message in enumerate(step.steering if step else ()):
            action = self.client.execution(ref.execution_id).steer(
                message, key=f"{step and step.number}/{index}"
            )
            await self.host.act(_quietly(action))

    async def on_completion(self, name: str, request: Any) -> None:
        """Plan the decisions about the calls of the step, where the record has their time."""
        run = self._run_of(request) if name == INFER else None
        step = run.step(request.number) if run else None
        calls = {call.call.id for call in step.calls} if step else set[str]()
        for each in run.requests if run else ():
            decider = each.resolution.by if each.resolution else None
            if run and decider and each.call_id in calls:
                self.host.at(decider.at, self._resolution(run, each))

    async def on_idle(self) -> bool:
        """Decide about the next open request; returns whether there was one."""
        for run, request in self._undecided():
            found = await self._find(run, request)
            if found is not None:
                await self._resolve(run, request, found)
                return True
        return await self._end_from_outside()

    async def _end_from_outside(self) -> bool:
        """Cancel or terminate a run that was ended through Temporal, without a command."""
        for run in self._record.each_run():
            identity = workflow_id(run.ref)
            if run.ref.execution_id in self._ended or not self.host.is_open(identity):
                continue
            has_command = any(each.kind is CommandKind.CANCEL for each in run.commands)
            if run.status is ExecutionStatus.CANCELLED and not has_command:
                self._ended.add(run.ref.execution_id)
                await self.host.cancel(identity)
                return True
            if is_terminated(run):
                self._ended.add(run.ref.execution_id)
                await self.host.terminate(identity)
                if run is self._record:
                    await self._store.settle(
                        closing_settlement(
                            run.ref,
                            run.status,
                            step_count=len(run.steps),
                            error_message=run.error,
                        )
                    )
                return True
        return False

    def _undecided(self) -> Iterator[tuple[RunRecord, RunRequest]]:
        for run in self._recorded.runs.values():
            for request in run.requests:
                resolution = request.resolution
                if resolution is None or resolution.kind in _BY_NO_ONE or resolution.is_expired:
                    continue
                if _key(run, request) not in self._resolved:
                    yield run, request

    def _resolution(self, run: RunRecord, request: RunRequest) -> Callable[[], Awaitable[None]]:
        async def resolve() -> None:
            found = await self._find(run, request)
            # A question after an approval opens later: then it is answered as soon as nothing else happens.
            if found is not None and _key(run, request) not in self._resolved:
                await self._resolve(run, request, found)

        return resolve

    async def _find(self, run: RunRecord, request: RunRequest) -> RequestRow | None:
        if await self._store.execution(run.ref) is None:
            return None
        opened = await self._store.open_requests(run.ref)
        return next(
            (row for row in opened if row.kind is request.kind and row.call_id == request.call_id), None
        )

    async def _resolve(self, run: RunRecord, request: RunRequest, row: RequestRow) -> None:
        self._resolved.add(_key(run, request))
        execution, resolution = self.client.execution(run.ref.execution_id), request.resolution
        if resolution is None or row.state is not RequestState.OPEN:
            return
        if request.kind is RequestKind.BUDGET:
            await self.host.act(_quietly(self._raise_budget(execution, request, resolution.value)))
            return
        await self._store.resolve(run.ref, row.id, resolution)
        kind = CommandKind(request.kind.value)
        command = Command(run.ref, f"{kind}/{row.id}", kind, request.call_id, resolution.is_denied)
        await self.host.act(_quietly(execution.deliver(command)))

    async def _raise_budget(self, execution: Execution, request: RunRequest, limit: Any) -> None:
        if limit is not None:
            unit, scope = BudgetUnit(request.request["unit"]), str(request.request["scope"])
            total = Decimal(str(limit)) if unit is BudgetUnit.USD else int(Decimal(str(limit)))
            await execution.raise_budget(**{str(unit): total}, scope=scope)  # pyright: ignore[reportArgumentType] -- by its name

    def _command(self, ref: ExecutionRef, kind: CommandKind) -> Callable[[], Awaitable[None]]:
        async def send() -> None:
            execution = self.client.execution(ref.execution_id)
            actions = {
                CommandKind.PAUSE: execution.pause,
                CommandKind.RESUME: execution.resume,
                CommandKind.CANCEL: execution.cancel,
            }
            if kind in actions and await self._store.execution(ref) is not None:
                await self.host.act(_quietly(actions[kind]()))

        return send


async def _quietly(action: Awaitable[Any]) -> None:
    """Do what a person did; a run that takes another way may refuse it, which its comparison shows."""
    with suppress(Refused):
        await action


def _id_of(run: RunRecord) -> str:
    return workflow_id(run.ref)


def _key(run: RunRecord, request: RunRequest) -> tuple[UUID, str, str]:
    return run.ref.execution_id, request.call_id, str(request.kind)


def _moments(record: RunRecord) -> Iterator[datetime]:
    for run in record.each_run():
        yield run.started_at
        for step in run.steps:
            yield step.completed_at or step.started_at
            yield from (call.record.completed_at for call in step.calls if call.record)
        yield from (command.sent_at for command in run.commands)
