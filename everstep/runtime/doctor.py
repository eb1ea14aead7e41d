"""What is wrong with an installation, and how to mend it."""

import os
from collections.abc import AsyncGenerator
from dataclasses import dataclass

from temporalio.api.enums.v1 import TaskQueueType
from temporalio.api.taskqueue.v1 import TaskQueue
from temporalio.api.workflowservice.v1 import DescribeTaskQueueRequest
from temporalio.client import Client

from agent_domain.errors import EverstepError
from agent_domain.status import ExecutionStatus
from everstep.inference.presets import Presets
from everstep.runtime.installation import HOW_TO_START, located, opened
from everstep.runtime.settings import Settings
from everstep.runtime.temporal import connect
from everstep.store.migrate import pending


@dataclass(frozen=True)
class Finding:
    """One thing that was looked at."""

    is_good: bool
    text: str


async def examined(settings: Settings) -> AsyncGenerator[Finding]:
    """Everything that an execution needs, in the order in which it needs it."""
    try:
        settings = located(settings)
    except EverstepError as error:
        yield Finding(False, str(error))
        return
    database = await _database(settings)
    yield database
    try:
        client = await connect(settings)
    except EverstepError as error:
        yield Finding(False, str(error))
        return
    yield Finding(True, f"Temporal answers at {settings.temporal_address}")
    workers = await _workers(client, settings)
    yield workers
    yield _models(settings)
    if database.is_good:
        yield await _waiting(settings, has_workers=workers.is_good)


async def _database(settings: Settings) -> Finding:
    try:
        missing = await pending(settings.required("database_url", HOW_TO_START))
    except EverstepError as error:
        return Finding(False, str(error))
    if missing:
        return Finding(False, f"the tables are out of date ({', '.join(missing)}): run `everstep db upgrade`")
    return Finding(True, "PostgreSQL answers, and its tables are up to date")


async def _workers(client: Client, settings: Settings) -> Finding:
    request = DescribeTaskQueueRequest(
        namespace=client.namespace,
        task_queue=TaskQueue(name=settings.task_queue),
        task_queue_type=TaskQueueType.TASK_QUEUE_TYPE_WORKFLOW,
    )
    response = await client.workflow_service.describe_task_queue(request)
    if not response.pollers:
        return Finding(
            False, f"no worker listens on '{settings.task_queue}': start one with `everstep worker`"
        )
    return Finding(True, f"{len(response.pollers)} worker(s) listen on '{settings.task_queue}'")


def _models(settings: Settings) -> Finding:
    try:
        presets = Presets.read(settings.presets, os.environ, settings.preset)
        preset = presets.resolve()
        preset.key(os.environ)
    except EverstepError as error:
        return Finding(False, str(error))
    return Finding(
        True, f"models: {', '.join(presets.names)}; '{preset.name}' answers unless an agent says else"
    )


async def _waiting(settings: Settings, *, has_workers: bool) -> Finding:
    """Executions that nobody has picked up are visible as such."""
    async with opened(settings, "everstep doctor") as installation:
        page = await installation.client.list(status=ExecutionStatus.PENDING, limit=100)
    if not page.rows:
        return Finding(True, "no execution waits to be picked up")
    why = "they start as soon as a worker is free" if has_workers else "they wait for a worker"
    return Finding(has_workers, f"{len(page.rows)} execution(s) are pending: {why}")
