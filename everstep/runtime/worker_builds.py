"""The builds of workers in Temporal: which is current, and which still have executions."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from time import monotonic
from typing import Final

from temporalio.api.enums.v1 import WorkerDeploymentVersionStatus
from temporalio.api.workflowservice.v1 import (
    DescribeWorkerDeploymentRequest,
    SetWorkerDeploymentCurrentVersionRequest,
)
from temporalio.client import Client
from temporalio.service import RPCError, RPCStatusCode

from everstep.agent_domain.errors import InvalidInput

DEPLOYMENT: Final = "everstep"
"""The name of the deployment, whose versions are builds."""

CHECK_SECONDS: Final = 1.0
"""Seconds between two attempts to make a build current."""

_STATUS_PREFIX: Final = "WORKER_DEPLOYMENT_VERSION_STATUS_"
_NOT_YET: Final = {RPCStatusCode.FAILED_PRECONDITION, RPCStatusCode.NOT_FOUND}
"""The codes with which Temporal refuses a build whose workers have not started."""


@dataclass(frozen=True, slots=True)
class Build:
    """A build of workers."""

    build_id: str
    status: str
    """`current`, `ramping`, `draining` (its executions run), `drained`, or `inactive` (never current)."""
    created_at: datetime


async def list_builds(temporal: Client) -> Sequence[Build]:
    """Return the builds that Temporal knows, newest first."""
    request = DescribeWorkerDeploymentRequest(namespace=temporal.namespace, deployment_name=DEPLOYMENT)
    try:
        response = await temporal.workflow_service.describe_worker_deployment(request)
    except RPCError as error:
        if error.status is RPCStatusCode.NOT_FOUND:
            return ()
        raise
    builds = [
        Build(
            each.deployment_version.build_id,
            WorkerDeploymentVersionStatus.Name(each.status).removeprefix(_STATUS_PREFIX).lower(),
            each.create_time.ToDatetime(UTC),
        )
        for each in response.worker_deployment_info.version_summaries
    ]
    return sorted(builds, key=lambda build: build.created_at, reverse=True)


async def set_current_build(
    temporal: Client, build_id: str, *, wait_seconds: float = 0, ignores_missing_queues: bool = False
) -> None:
    """Make a build current: new executions begin there.

    Args:
        temporal: The client of the namespace.
        build_id: The build.
        wait_seconds: How long to wait for workers of the build.
        ignores_missing_queues: Whether the build may lack task queues that the current build polls.

    Raises:
        InvalidInput: The id is blank, no worker of the build has started in time, or it lacks a task queue.
    """
    if not build_id.strip():
        # Temporal would have all new executions begin on workers without a build.
        raise InvalidInput("the id of the build is blank; name one of `everstep builds list`")
    request = SetWorkerDeploymentCurrentVersionRequest(
        namespace=temporal.namespace,
        deployment_name=DEPLOYMENT,
        build_id=build_id,
        identity=temporal.identity,
        ignore_missing_task_queues=ignores_missing_queues,
    )
    until = monotonic() + wait_seconds
    while True:
        try:
            await temporal.workflow_service.set_worker_deployment_current_version(request)
        except RPCError as error:
            if error.status not in _NOT_YET:
                raise
            if monotonic() >= until:
                raise InvalidInput(
                    f"Temporal does not make the build '{build_id}' current: {error.message}; first start "
                    f"workers with EVERSTEP_BUILD_ID={build_id}, on each task queue of the current build"
                ) from None
        else:
            return
        await asyncio.sleep(CHECK_SECONDS)
