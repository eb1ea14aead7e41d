"""What the SDK keeps of a workflow in memory."""

import gc
from typing import Any
from weakref import ref

from temporalio.client import Client as TemporalClient
from temporalio.worker import UnsandboxedWorkflowRunner, WorkflowInstance, WorkflowInstanceDetails

from everstep.workflows.instance_memory import COMPLETION, DELETING, FLAGS, dissolve
from tests.workflows.harness import HeldModel, an_agent, an_office, eventually, final_result
from tests.workflows.test_people import asks, user_input


class InstanceList(UnsandboxedWorkflowRunner):
    """Lists the instances that it creates."""

    def __init__(self) -> None:
        super().__init__()
        self.created: list[ref[WorkflowInstance]] = []

    def create_instance(self, det: WorkflowInstanceDetails) -> WorkflowInstance:
        instance = super().create_instance(det)
        self.created.append(ref(instance))
        return instance


async def test_a_workflow_that_waits_keeps_no_activation(temporal: TemporalClient) -> None:
    """18.1.8: the names of the SDK's fields are those of the version that is installed."""
    model, runner = HeldModel(), InstanceList()
    office = an_office(temporal, an_agent(model=model))
    async with office.worker_with(runner):
        execution = await office.start()
        await model.begun.wait()
        instance = runner.created[0]()
        assert instance is not None
        state: dict[str, Any] = vars(instance)
        assert state[COMPLETION].ByteSize() == 0
        assert type(state[FLAGS]) is tuple
        assert state[DELETING] is False
        assert instance.get_info().raw_memo == {}
        model.go_on.set()
        await final_result(execution)


async def test_a_workflow_that_leaves_the_cache_while_it_waits_leaves_no_garbage(
    temporal: TemporalClient,
) -> None:
    """18.1.8."""
    runner = InstanceList()
    office = an_office(temporal, an_agent(asks("Where to?"), asks("When?"), tools=[user_input()]))

    async def is_gone() -> bool:
        return runner.created[0]() is None

    gc.disable()
    try:
        async with office.worker_with(runner, cached=1):
            for _ in range(2):
                await office.until_waiting(await office.start())
            await eventually(is_gone)
    finally:
        gc.enable()


async def test_an_ended_workflow_leaves_no_garbage(temporal: TemporalClient) -> None:
    """18.1.8: its memory is free before any search for garbage."""
    runner = InstanceList()
    office = an_office(temporal, an_agent("Done"))

    async def is_gone() -> bool:
        return runner.created[0]() is None

    gc.disable()
    try:
        async with office.worker_with(runner):
            await office.run()
            await eventually(is_gone)
    finally:
        gc.enable()


def test_what_ends_with_an_instance_finds_it_deleted() -> None:
    """18.1.8: a task that never ended reports that to its instance, which ignores it then."""
    instance: Any = InstanceStub()
    reports = instance.task.reports
    dissolve(instance)

    assert vars(instance) == {DELETING: True}
    assert reports == [True]


class UnendedTask:
    """Reports to its instance when it is deleted, like a task of asyncio that never ended."""

    def __init__(self, instance: "InstanceStub") -> None:
        self.instance = instance
        self.reports: list[object] = []

    def __del__(self) -> None:
        self.reports.append(getattr(self.instance, DELETING, None))


class InstanceStub:
    """An instance of the SDK that left the cache."""

    def __init__(self) -> None:
        self.task = UnendedTask(self)
        setattr(self, COMPLETION, None)
        setattr(self, DELETING, True)
