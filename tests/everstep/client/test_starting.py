"""A repeated id, on a Temporal server that no longer has its workflow."""

from dataclasses import replace
from typing import Any, cast
from uuid import UUID, uuid4

import pytest

from everstep.client.client import Client
from everstep.client.errors import Taken
from everstep.store.memory import MemoryStore
from tests.everstep.store.store_words import end_execution
from tests.workflows.harness import an_agent


class ForgetfulTemporal:
    """A Temporal server that starts the same workflow any number of times."""

    def __init__(self) -> None:
        self.started = list[str]()

    async def start_workflow(self, *_args: object, **given: Any) -> None:
        self.started.append(given["id"])


def a_client(temporal: ForgetfulTemporal) -> Client:
    agent = an_agent("Hello").definition()
    return Client(cast("Any", temporal), MemoryStore(), {agent.descriptor.name: agent})


async def test_an_ended_execution_is_not_started_again() -> None:
    temporal, execution_id = ForgetfulTemporal(), uuid4()
    client = a_client(temporal)
    execution = await client.start("agent", "Hello", execution_id=execution_id)
    await client.start("agent", "Hello", execution_id=execution_id)
    assert len(temporal.started) == 2

    await end_execution(client.store, execution.ref)

    assert await client.start("agent", "Hello", execution_id=execution_id) == execution
    assert len(temporal.started) == 2


def test_a_key_means_another_execution_in_another_tenant() -> None:
    """8.9.3: also where their names have slashes."""
    client = a_client(ForgetfulTemporal())
    named = {"acme": "eu/k", "acme/eu": "k", '["acme"]': "eu/k"}

    assert len({replace(client, tenant_id=tenant).derived_id(key) for tenant, key in named.items()}) == 3
    # Unchanged since the first release.
    assert replace(client, tenant_id="acme").derived_id("k") == UUID("95ebcf69-3d15-5a06-b38c-bfa0666ea19a")


async def test_an_id_is_for_one_request() -> None:
    temporal, execution_id = ForgetfulTemporal(), uuid4()
    client = a_client(temporal)
    await client.start("agent", "Hello", execution_id=execution_id, request="a")

    with pytest.raises(Taken, match="use another id"):
        await client.start("agent", "Bye", execution_id=execution_id, request="b")
    await client.start("agent", "Hello", execution_id=execution_id, request="a")
    await client.start("agent", "Hello", execution_id=execution_id)
    assert len(temporal.started) == 3
