"""Runs workflows and their activities in one process, on a clock of its own, without a Temporal server.

The workflow code runs in the SDK's own workflow instance, as on a worker: this module feeds it activations
and carries out its commands, as the server and the SDK's core do. Time passes only between events.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from heapq import heappop, heappush
from inspect import signature
from itertools import count
from typing import Any, Protocol, TypeAlias

from temporalio.api.common.v1 import Payload
from temporalio.api.enums.v1 import RetryState
from temporalio.api.failure.v1 import Failure
from temporalio.bridge.proto.activity_result import ActivityResolution
from temporalio.bridge.proto.workflow_activation import (
    DoUpdate,
    InitializeWorkflow,
    SignalWorkflow,
    WorkflowActivation,
    WorkflowActivationJob,
)
from temporalio.bridge.proto.workflow_commands import WorkflowCommand
from temporalio.client import WorkflowUpdateFailedError
from temporalio.converter import DataConverter
from temporalio.exceptions import ApplicationError
from temporalio.service import RPCError, RPCStatusCode
from temporalio.testing import ActivityEnvironment
from temporalio.worker import WorkflowInstance

from everstep.agent_domain.errors import EverstepError
from everstep.runtime.replay.actions import Actions
from everstep.runtime.replay.instances import TASK_QUEUE, make_instance
from everstep.workflows.contracts import WORKFLOW

MAX_ATTEMPTS = 20
"""Attempts of an activity; its input and the record do not change, so more of them change nothing."""
RETRY_SECONDS = 0.5

Commands: TypeAlias = Sequence[WorkflowCommand]


class HostError(EverstepError):
    """A run cannot go on in this process; the message says why."""


class RecordEnds(asyncio.CancelledError):
    """An activity needs something that the record does not have: it never completes.

    A cancellation, which no handler of exceptions catches.
    """


class Director(Protocol):
    """Decides when activities complete, and what people do."""

    @property
    def has_ended(self) -> bool:
        """Whether nothing more can happen."""
        ...

    def is_beyond(self, moment: datetime) -> bool:
        """Whether a timer at this moment is not waited for."""
        ...

    def completion(self, name: str, request: Any, now: datetime) -> datetime | None:
        """When an activity that begins now completes; None for never."""
        ...

    def is_completed(self, name: str, request: Any) -> bool:
        """Whether an activity completes although it is cancelled."""
        ...

    async def on_schedule(self, name: str, request: Any) -> None:
        """Called before an activity begins."""
        ...

    async def on_start(self, workflow_id: str) -> None:
        """Called before a workflow begins; what is sent to it now, it receives as it begins."""
        ...

    async def on_idle(self) -> bool:
        """Called when nothing is left to happen but timers. Returns whether it did something."""
        ...

    async def on_completion(self, name: str, request: Any) -> None:
        """Called after an activity completed, and before the workflow continues."""
        ...


@dataclass(eq=False)
class _Execution:
    """One workflow execution."""

    id: str
    instance: WorkflowInstance
    parent: "tuple[_Execution, int] | None" = None
    """The parent workflow, and the number of the command that started this one."""
    activities: dict[int, "_Activity"] = field(default_factory=dict[int, "_Activity"])
    timers: set[int] = field(default_factory=set[int])
    children: dict[int, "_Execution"] = field(default_factory=dict[int, "_Execution"])
    updates: dict[str, asyncio.Future[None]] = field(default_factory=dict[str, "asyncio.Future[None]"])
    early: list[WorkflowActivationJob] | None = None
    """What was sent to it before it began; None once it has."""
    is_closed: bool = False
    failure: Failure | None = None
    result: Payload | None = None


@dataclass(eq=False)
class _Activity:
    name: str
    request: Any
    seq: int
    is_local: bool
    attempt: int = 1


class TemporalHost:
    """Runs workflows of executions; the clock does not move while anything runs.

    Args:
        activities: The activities by their names.
        director: Decides about time and people.
        converter: Encodes values as on a worker.
        start: The first moment.
    """

    def __init__(
        self,
        activities: Mapping[str, Callable[..., Awaitable[Any]]],
        director: Director,
        converter: DataConverter,
        start: datetime,
    ) -> None:
        self.now = start
        self._director = director
        self._converter = converter
        self._activities = activities
        self._executions: dict[str, _Execution] = {}
        self._events: list[tuple[datetime, int, Callable[[], Awaitable[None]], bool]] = []
        self._numbers = count()
        self._actions = Actions()
        # A workflow instance is an event loop itself, so it needs a thread without one.
        self._thread = ThreadPoolExecutor(1, "replay")

    async def aclose(self) -> None:
        """End the actions of people that still wait for a workflow, and release the thread."""
        await self._actions.aclose()
        self._thread.shutdown()

    # What a client does.

    async def start(self, workflow_id: str, argument: Any) -> None:
        """Start a workflow; one that exists is left unchanged."""
        if workflow_id not in self._executions:
            payloads = self._converter.payload_converter.to_payloads([argument])
            await self._start(workflow_id, payloads, None)

    async def update(self, workflow_id: str, name: str, update_id: str, arguments: Sequence[Any]) -> None:
        """Send an update, and wait for its result."""
        execution = self._executions.get(workflow_id)
        if execution is None or execution.is_closed:
            raise RPCError("the workflow has ended", RPCStatusCode.NOT_FOUND, b"")
        job = WorkflowActivationJob(
            do_update=DoUpdate(
                id=update_id,
                protocol_instance_id=update_id,
                name=name,
                input=self._converter.payload_converter.to_payloads(arguments),
                run_validator=True,
            )
        )
        future = execution.updates[update_id] = asyncio.get_running_loop().create_future()
        if execution.early is None:
            await self._activate(execution, job)
        else:
            execution.early.append(job)
        if not future.done():
            self._actions.on_wait()
        await future

    async def cancel(self, workflow_id: str) -> None:
        """Request the cancellation of a workflow."""
        execution = self._executions.get(workflow_id)
        if execution is None or execution.is_closed:
            raise RPCError("the workflow has ended", RPCStatusCode.NOT_FOUND, b"")
        job = WorkflowActivationJob()
        job.cancel_workflow.SetInParent()
        await self._activate(execution, job)

    def cancel_soon(self, workflow_id: str) -> None:
        """Request the cancellation of a workflow, once its present work is done."""

        async def cancel() -> None:
            if self.is_open(workflow_id):
                await self.cancel(workflow_id)

        self.at(self.now, cancel)

    async def terminate(self, workflow_id: str) -> None:
        """End a workflow from outside, without a word to it."""
        execution = self._executions.get(workflow_id)
        if execution is not None and not execution.is_closed:
            execution.failure = Failure(message="Workflow terminated")
            execution.failure.terminated_failure_info.SetInParent()
            self._close(execution)

    def is_open(self, workflow_id: str) -> bool:
        """Whether a workflow has started and not ended."""
        execution = self._executions.get(workflow_id)
        return execution is not None and not execution.is_closed

    async def act(self, action: Awaitable[Any]) -> None:
        """Run an action of a person until it is done, or waits for the workflow."""
        await self._actions.run(action)

    def at(self, moment: datetime, action: Callable[[], Awaitable[None]], *, is_timer: bool = False) -> None:
        """Let something happen at a moment, or now if that has passed."""
        heappush(self._events, (max(moment, self.now), next(self._numbers), action, is_timer))

    async def run(self, workflow_id: str) -> bool:
        """Let things happen until the workflow has ended, or nothing is left to happen.

        Returns:
            Whether it has ended.
        """
        while not self._executions[workflow_id].is_closed:
            only_timers = all(is_timer for _, _, _, is_timer in self._events)
            if only_timers and await self._director.on_idle():
                continue
            if not self._events or self._director.has_ended:
                return False
            moment, _, action, _ = heappop(self._events)
            if only_timers and self._director.is_beyond(moment):
                return False
            self.now = max(self.now, moment)
            await action()
            self._actions.require_success()
        return True

    # Workflows.

    async def _start(
        self, workflow_id: str, arguments: Sequence[Payload], parent: tuple[_Execution, int] | None
    ) -> _Execution:
        instance = make_instance(self._converter, workflow_id, parent and parent[0].id, self.now)
        execution = self._executions[workflow_id] = _Execution(workflow_id, instance, parent, early=[])
        await self._director.on_start(workflow_id)
        early, execution.early = execution.early or [], None
        job = WorkflowActivationJob(
            initialize_workflow=InitializeWorkflow(
                workflow_type=WORKFLOW, workflow_id=workflow_id, arguments=arguments, attempt=1
            )
        )
        await self._activate(execution, job, *early)
        return execution

    async def _activate(self, execution: _Execution, *jobs: WorkflowActivationJob) -> None:
        if execution.is_closed:
            return
        activation = WorkflowActivation(run_id=f"run/{execution.id}", jobs=jobs, history_length=1)
        activation.timestamp.FromDatetime(self.now.astimezone(UTC))
        loop = asyncio.get_running_loop()
        completion = await loop.run_in_executor(self._thread, execution.instance.activate, activation)
        if completion.HasField("failed"):
            raise HostError(f"the workflow raised: {completion.failed.failure.message}")
        for command in completion.successful.commands:
            await self._carry_out(execution, command)

    async def _carry_out(self, execution: _Execution, command: WorkflowCommand) -> None:  # noqa: C901, PLR0912 -- one case for each command
        match command.WhichOneof("variant"):
            case "schedule_activity":
                await self._schedule(execution, command.schedule_activity, is_local=False)
            case "schedule_local_activity":
                await self._schedule(execution, command.schedule_local_activity, is_local=True)
            case "request_cancel_activity":
                self._cancel_activity(execution, command.request_cancel_activity.seq)
            case "request_cancel_local_activity":
                self._cancel_activity(execution, command.request_cancel_local_activity.seq)
            case "start_timer":
                self._start_timer(execution, command)
            case "cancel_timer":
                execution.timers.discard(command.cancel_timer.seq)
            case "start_child_workflow_execution":
                await self._start_child(execution, command)
            case "cancel_child_workflow_execution":
                child = execution.children.get(command.cancel_child_workflow_execution.child_workflow_seq)
                if child:
                    self.cancel_soon(child.id)
            case "signal_external_workflow_execution":
                self._signal(execution, command)
            case "update_response":
                self._answer_update(execution, command)
            case "complete_workflow_execution":
                execution.result = command.complete_workflow_execution.result
                self._close(execution)
            case "fail_workflow_execution":
                execution.failure = command.fail_workflow_execution.failure
                self._close(execution)
            case "cancel_workflow_execution":
                execution.failure = Failure(message="Workflow canceled")
                execution.failure.canceled_failure_info.SetInParent()
                self._close(execution)
            case "set_patch_marker" | "upsert_workflow_search_attributes" | "modify_workflow_properties":
                """They change nothing that a run depends on."""
            case variant:
                raise HostError(f"the workflow's command {variant} is not known here")

    def _close(self, execution: _Execution) -> None:
        execution.is_closed = True
        for future in execution.updates.values():
            if not future.done():
                future.set_exception(RPCError("the workflow has ended", RPCStatusCode.NOT_FOUND, b""))
        if execution.parent is None:
            return
        parent, seq = execution.parent
        job = WorkflowActivationJob()
        resolved = job.resolve_child_workflow_execution
        resolved.seq = seq
        if execution.failure is None:
            resolved.result.completed.result.CopyFrom(execution.result or Payload())
        else:
            is_cancelled = execution.failure.HasField("canceled_failure_info")
            failure = resolved.result.cancelled.failure if is_cancelled else resolved.result.failed.failure
            failure.message = "Child Workflow execution failed"
            failure.child_workflow_execution_failure_info.workflow_execution.workflow_id = execution.id
            failure.cause.CopyFrom(execution.failure)
        parent.children.pop(seq, None)
        self.at(self.now, lambda: self._activate(parent, job))

    # Children, signals, timers and updates.

    async def _start_child(self, parent: _Execution, command: WorkflowCommand) -> None:
        wanted = command.start_child_workflow_execution
        job = WorkflowActivationJob()
        job.resolve_child_workflow_execution_start.seq = wanted.seq
        job.resolve_child_workflow_execution_start.succeeded.run_id = f"run/{wanted.workflow_id}"

        async def start() -> None:
            # The parent knows of its child before the child does anything.
            await self._activate(parent, job)
            parent.children[wanted.seq] = await self._start(
                wanted.workflow_id, list(wanted.input), (parent, wanted.seq)
            )

        self.at(self.now, start)

    def _signal(self, sender: _Execution, command: WorkflowCommand) -> None:
        wanted = command.signal_external_workflow_execution
        receiver = self._executions.get(wanted.workflow_execution.workflow_id or wanted.child_workflow_id)
        answer = WorkflowActivationJob()
        answer.resolve_signal_external_workflow.seq = wanted.seq
        signal = WorkflowActivationJob(
            signal_workflow=SignalWorkflow(signal_name=wanted.signal_name, input=list(wanted.args))
        )

        async def deliver() -> None:
            if receiver is None or receiver.is_closed:
                failure = answer.resolve_signal_external_workflow.failure
                failure.message = "the workflow has ended"
                failure.application_failure_info.SetInParent()
            else:
                await self._activate(receiver, signal)
            await self._activate(sender, answer)

        self.at(self.now, deliver)

    def _start_timer(self, execution: _Execution, command: WorkflowCommand) -> None:
        seq = command.start_timer.seq
        execution.timers.add(seq)
        job = WorkflowActivationJob()
        job.fire_timer.seq = seq

        async def fire() -> None:
            if seq in execution.timers:
                execution.timers.discard(seq)
                await self._activate(execution, job)

        until = self.now + command.start_timer.start_to_fire_timeout.ToTimedelta()
        self.at(until, fire, is_timer=True)

    def _answer_update(self, execution: _Execution, command: WorkflowCommand) -> None:
        answer = command.update_response
        future = execution.updates.get(answer.protocol_instance_id)
        if future is None or future.done() or answer.HasField("accepted"):
            return
        if answer.HasField("completed"):
            future.set_result(None)
            return
        converter = self._converter
        cause = converter.failure_converter.from_failure(answer.rejected, converter.payload_converter)
        future.set_exception(WorkflowUpdateFailedError(cause))

    # Activities.

    async def _schedule(self, execution: _Execution, command: Any, *, is_local: bool) -> None:
        parameters = signature(self._activities[command.activity_type], eval_str=True).parameters.values()
        kinds = [parameter.annotation for parameter in parameters]
        requests = self._converter.payload_converter.from_payloads(list(command.arguments), kinds)
        request = requests[0] if requests else None
        scheduled = _Activity(command.activity_type, request, command.seq, is_local)
        execution.activities[command.seq] = scheduled
        self._begin(execution, scheduled, timedelta(0))

    def _begin(self, execution: _Execution, scheduled: _Activity, pause: timedelta) -> None:
        async def begin() -> None:
            if scheduled.seq not in execution.activities:
                return
            if scheduled.attempt == 1:
                await self._director.on_schedule(scheduled.name, scheduled.request)
            completes = self._director.completion(scheduled.name, scheduled.request, self.now)
            # People may have cancelled it by now.
            if completes is not None and scheduled.seq in execution.activities:
                self.at(completes, lambda: self._complete(execution, scheduled))

        self.at(self.now + pause, begin)

    async def _complete(self, execution: _Execution, scheduled: _Activity) -> None:
        if scheduled.seq not in execution.activities:
            return
        resolution = ActivityResolution()
        try:
            result = await self._run_activity(execution, scheduled)
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if task and task.cancelling():
                raise
            return
        except Exception as error:
            if isinstance(error, ApplicationError) and error.type == "UnknownAgent":
                raise
            if _is_retried(error):
                if scheduled.attempt >= MAX_ATTEMPTS:
                    raise HostError(
                        f"the activity {scheduled.name} fails again and again: {error}"
                    ) from error
                delay = error.next_retry_delay if isinstance(error, ApplicationError) else None
                scheduled.attempt += 1
                self._begin(execution, scheduled, delay or timedelta(seconds=RETRY_SECONDS))
                return
            self._set_failure(resolution.failed.failure, error, scheduled)
        else:
            [payload] = self._converter.payload_converter.to_payloads([result])
            resolution.completed.result.CopyFrom(payload)
        del execution.activities[scheduled.seq]
        await self._director.on_completion(scheduled.name, scheduled.request)
        await self._resolve(execution, scheduled, resolution)

    async def _run_activity(self, execution: _Execution, scheduled: _Activity) -> Any:
        environment = ActivityEnvironment()
        environment.info = replace(
            environment.info,
            activity_type=scheduled.name,
            attempt=scheduled.attempt,
            is_local=scheduled.is_local,
            workflow_id=execution.id,
            task_queue=TASK_QUEUE,
        )
        arguments = () if scheduled.request is None else (scheduled.request,)
        return await environment.run(self._activities[scheduled.name], *arguments)

    def _cancel_activity(self, execution: _Execution, seq: int) -> None:
        scheduled = execution.activities.get(seq)
        # One that completed in spite of the request does so again.
        if scheduled is None or self._director.is_completed(scheduled.name, scheduled.request):
            return
        del execution.activities[seq]
        resolution = ActivityResolution()
        failure = resolution.cancelled.failure
        failure.message = "Activity cancelled"
        failure.activity_failure_info.activity_type.name = scheduled.name
        failure.cause.message = "Cancelled"
        failure.cause.canceled_failure_info.SetInParent()
        self.at(self.now, lambda: self._resolve(execution, scheduled, resolution))

    async def _resolve(
        self, execution: _Execution, scheduled: _Activity, resolution: ActivityResolution
    ) -> None:
        job = WorkflowActivationJob()
        job.resolve_activity.seq = scheduled.seq
        job.resolve_activity.is_local = scheduled.is_local
        job.resolve_activity.result.CopyFrom(resolution)
        await self._activate(execution, job)

    def _set_failure(self, failure: Failure, error: Exception, scheduled: _Activity) -> None:
        failure.message = "Activity task failed"
        failure.activity_failure_info.activity_type.name = scheduled.name
        failure.activity_failure_info.retry_state = RetryState.RETRY_STATE_NON_RETRYABLE_FAILURE
        converter = self._converter
        converter.failure_converter.to_failure(error, converter.payload_converter, failure.cause)


def _is_retried(error: Exception) -> bool:
    return not (isinstance(error, ApplicationError) and error.non_retryable)
