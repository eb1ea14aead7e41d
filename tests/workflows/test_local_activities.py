"""Local activities that are retried: each attempt has its own timer."""

import pytest
from temporalio.client import Client as TemporalClient

import everstep.workflows.activity_options as options
from everstep.agent_domain.errors import StoreUnavailable
from everstep.agent_domain.loop.status import AgentStatus
from tests.workflows.harness import an_agent, at_work, events_of, of_type


async def test_a_workflow_waits_by_a_timer_before_it_retries_a_local_activity(
    temporal: TemporalClient,
) -> None:
    """8.2.3: an attempt inside the worker would leave the SDK's timer of the one before it running."""
    async with at_work(temporal, an_agent("Done")) as office:
        office.store.fail_next("settle", StoreUnavailable("connection refused"))
        execution, result = await office.run()
        events = await events_of(execution)

    assert result.status is AgentStatus.COMPLETED
    assert of_type(events, "TIMER_FIRED")


@pytest.mark.parametrize("local", [options.QUICK_TOOL, options.SETTLE])
def test_every_local_activity_is_retried_by_its_workflow(local: options.LocalActivityConfig) -> None:
    assert local["local_retry_threshold"] < local["retry_policy"].initial_interval
