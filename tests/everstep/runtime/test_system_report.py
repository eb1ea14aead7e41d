"""What an installation reports about its workers, from both lists that Temporal has of them."""

from datetime import UTC, datetime, timedelta

from temporalio.api.deployment.v1 import WorkerDeploymentVersion
from temporalio.api.enums.v1 import WorkerStatus
from temporalio.api.taskqueue.v1 import PollerInfo
from temporalio.api.worker.v1 import WorkerHeartbeat, WorkerSlotsInfo
from temporalio.api.workflowservice.v1 import DescribeTaskQueueResponse

from everstep.runtime.system_report import SILENCE, merge_workers

NOW = datetime(2026, 1, 2, tzinfo=UTC)


def a_heartbeat(name: str, ago: timedelta, *, has_ended: bool = False) -> WorkerHeartbeat:
    slots = WorkerSlotsInfo(current_used_slots=3, current_available_slots=97)
    status = WorkerStatus.WORKER_STATUS_SHUTDOWN if has_ended else WorkerStatus.WORKER_STATUS_RUNNING
    heartbeat = WorkerHeartbeat(
        worker_identity=name,
        status=status,
        deployment_version=WorkerDeploymentVersion(build_id="1.2"),
        activity_task_slots_info=slots,
    )
    heartbeat.heartbeat_time.FromDatetime(NOW - ago)
    return heartbeat


def a_queue(name: str, ago: timedelta) -> DescribeTaskQueueResponse:
    poller = PollerInfo(identity=name)
    poller.last_access_time.FromDatetime(NOW - ago)
    return DescribeTaskQueueResponse(pollers=[poller])


def test_a_worker_is_listed_once_with_the_slots_that_it_reported() -> None:
    """16.5.6"""
    heartbeats = [a_heartbeat("a", SILENCE / 2), a_heartbeat("a", timedelta(0))]
    (worker,) = merge_workers(heartbeats, {"workflow": a_queue("a", timedelta(0))}, NOW)
    assert (worker.version, worker.seen_at, worker.is_lost) == ("1.2", NOW, False)
    assert worker.activity_slots is not None
    assert (worker.activity_slots.used, worker.activity_slots.total) == (3, 100)


def test_a_worker_that_has_ended_is_not_listed_and_a_silent_one_is_marked() -> None:
    """16.5.6"""
    heartbeats = [a_heartbeat("a", 2 * SILENCE), a_heartbeat("b", timedelta(0), has_ended=True)]
    found = merge_workers(heartbeats, {"workflow": a_queue("b", timedelta(seconds=5))}, NOW)
    assert [(worker.identity, worker.is_lost) for worker in found] == [("a", True)]


def test_without_reports_of_workers_the_queues_list_them() -> None:
    """16.5.6: an older server collects no reports, and one that does not answer names no worker."""
    queues = {"workflow": a_queue("a", timedelta(minutes=4)), "activity": a_queue("b", timedelta(seconds=61))}
    found = merge_workers([], queues, NOW)
    assert [(worker.identity, worker.is_lost) for worker in found] == [("b", False), ("a", True)]
    assert found[0].activity_slots is None
    assert merge_workers([], {"workflow": None}, NOW) == []
