"""The settings that bound what a worker does at once."""

from typing import Any

import pytest

from everstep.activities.worker_places import WAITING_PER_PLACE
from everstep.agent_domain.errors import InvalidInput
from everstep.runtime import worker
from everstep.runtime.settings import Settings

NOTHING: Any = None


@pytest.mark.parametrize(
    ("name", "value", "limit"),
    [
        ("worker_activities", 0, "greater than or equal to 1"),
        ("worker_activities", -5, "greater than or equal to 1"),
        ("worker_activities", 10**9, "less than or equal to 100000"),
        # Temporal needs one for executions in memory and one for others.
        ("worker_workflow_tasks", 1, "greater than or equal to 2"),
        ("worker_workflow_polls", 1, "greater than or equal to 2"),
        ("worker_activity_polls", 0, "greater than or equal to 1"),
        ("worker_cached_executions", 0, "greater than or equal to 1"),
        # One waits while the other one reads.
        ("database_connections", 1, "greater than or equal to 2"),
        ("database_connections", 10**9, "less than or equal to 10000"),
    ],
)
def test_a_value_out_of_range_is_refused_with_a_sentence(name: str, value: int, limit: str) -> None:
    """18.1.1."""
    with pytest.raises(
        InvalidInput, match=rf"^the settings cannot be used: {name}: Input should be {limit}$"
    ):
        Settings.read(**{name: value})


def test_a_worker_has_the_bounds_of_its_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    """18.1.1: of activities more, which wait for a place."""
    options = dict[str, Any]()

    def make(_client: object, **given: Any) -> None:
        options.update(given)

    monkeypatch.setattr(worker, "Worker", make)
    settings = Settings(
        worker_activities=7,
        worker_workflow_tasks=8,
        worker_cached_executions=9,
        worker_activity_polls=10,
        worker_workflow_polls=11,
    )

    worker.make_worker(NOTHING, NOTHING, NOTHING, settings)

    assert options["max_concurrent_activities"] == 7 * (1 + WAITING_PER_PLACE)
    assert options["max_concurrent_workflow_tasks"] == 8
    assert options["max_cached_workflows"] == 9
    assert options["activity_task_poller_behavior"].maximum == 10
    assert options["workflow_task_poller_behavior"].maximum == 11
