"""What a server of one's own has to offer: encrypted payloads, search attributes, fair dispatch."""

import asyncio
import base64
from collections import Counter
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, Final, cast
from uuid import uuid4

import httpx2
from google.protobuf.json_format import MessageToDict
from temporalio.client import Client
from temporalio.service import RPCError

from everstep.runtime.codec import ENCODING
from everstep.runtime.temporal_threads import temporal_runtime
from everstep.workflows.contracts import ID_PREFIX
from tests.acceptance.agents import JOURNAL
from tests.acceptance.harness import read_journal
from tests.acceptance.storm.programs import Program
from tests.acceptance.storm.scene import Scene
from tests.servers.temporal import TemporalCluster

FLOOD: Final = 60
HISTORIES: Final = 20
OF_THE_SDK: Final = {
    f".markerRecordedEventAttributes.details.{name}.payloads" for name in ("data", "patch-data")
}
"""What the SDK itself records about local activities and patches: names, numbers and times."""
LATE_WORD: Final = "[late]"
SEARCH_SECONDS: Final = 15.0
"""Seconds until visibility has what happened: it is written after the fact."""


@dataclass(frozen=True)
class Features:
    """What was found."""

    found_completed: int
    """Executions that a search for completed ones found in Temporal."""
    not_found: Sequence[str]
    """What Temporal says of the others."""
    payloads: int
    plain_payloads: Counter[str]
    """Those that are not encrypted, by their place in an event."""
    fair_backlog: int
    """Tasks that waited in the tables of fair dispatch."""
    place_of_other: int
    """The place of another tenant's execution among those of a flooding one, from 1."""


async def wrong_features(scene: Scene, features: Features) -> list[str]:
    """The violations, one sentence each."""
    found = [
        f"a search in Temporal does not find a completed execution: {each}" for each in features.not_found
    ]
    if features.plain_payloads or not features.payloads:
        found.append(f"payloads are not encrypted: {dict(features.plain_payloads)}")
    if not features.fair_backlog:
        found.append("no task waited in the tables of fair dispatch")
    if features.place_of_other > FLOOD / 2:
        found.append(f"the other tenant was served at place {features.place_of_other}")
    return found


async def find_features(scene: Scene, cluster: TemporalCluster) -> Features:
    """Flood the cluster while no worker runs, start the workers again, and read what Temporal has stored."""
    backlog, place = await _flood(scene, cluster)
    client = await Client.connect(cluster.address, runtime=temporal_runtime())
    stored = await scene.rows("SELECT id FROM agent_executions WHERE status = 'completed'")
    expected = {f"{ID_PREFIX}{row['id']}" for row in stored}
    completed = set[str]()
    for _ in range(int(SEARCH_SECONDS)):
        completed = {each.id async for each in client.list_workflows("EverstepStatus = 'completed'")}
        if completed >= expected:
            break
        await asyncio.sleep(1)
    not_found = [await _description(client, each) for each in expected - completed]
    payloads = [each async for each in _payloads(client)]
    plain = Counter(name for name, encoding in payloads if encoding != ENCODING and name not in OF_THE_SDK)
    return Features(len(completed), not_found, len(payloads), plain, backlog, place)


async def _description(client: Client, name: str) -> str:
    try:
        described = await client.get_workflow_handle(name).describe()
    except RPCError as error:
        return f"{name}: {error}"
    attempt = described.raw_description.pending_workflow_task.attempt
    return f"{name}: {described.status!r}, {dict(described.search_attributes)}, attempt {attempt} of a task"


async def _flood(scene: Scene, cluster: TemporalCluster) -> tuple[int, int]:
    """One tenant starts many executions, then another one starts one: when is it served?"""
    tenant, other = (
        scene.people[0],
        next(each for each in scene.people if each.tenant != scene.people[0].tenant),
    )
    flood = [f"[flood {number}]" for number in range(FLOOD)]
    async with _without_workers(scene):
        for word, key in [*((word, tenant.key) for word in flood), (LATE_WORD, other.key)]:
            await _start(scene, key, word)
        backlog = 0
        for _ in range(20):
            ((backlog,),) = cast(
                "list[tuple[int]]", await cluster.postgres.run("SELECT count(*) FROM tasks_v2", "temporal")
            )
            if backlog:
                break
            await asyncio.sleep(0.5)
    words = {*flood, LATE_WORD}
    order = list[str]()

    async def all_began() -> bool:
        asked = (each.where for each in read_journal(scene.folder / JOURNAL) if each.event == "asked")
        order[:] = [word for word in dict.fromkeys(asked) if word in words]
        return len(order) == len(words)

    await scene.until("all executions of the flood began", all_began)
    await scene.until("the flood ended", scene.is_quiet)
    return backlog, order.index(LATE_WORD) + 1 if LATE_WORD in order else FLOOD + 1


@asynccontextmanager
async def _without_workers(scene: Scene) -> AsyncGenerator[None]:
    """Kill the workers, and start them again after the block."""
    workers = [role for role in scene.roles if role.name.startswith("worker")]
    for worker in workers:
        await worker.lives[-1].kill()
    try:
        yield
    finally:
        for worker in workers:
            await worker.start()


async def _start(scene: Scene, key: str, word: str) -> None:
    headers = {"Authorization": f"Bearer {key}", "Idempotency-Key": uuid4().hex}
    async with httpx2.AsyncClient(base_url=scene.urls[0], headers=headers, timeout=30) as http:
        program = Program(word, [[("count", {"mark": word})]])
        answer = await http.post("/agent/executions", json={"content": program.text()})
        assert answer.status_code == 201, answer.text


async def _payloads(client: Client) -> AsyncGenerator[tuple[str, bytes]]:
    """The payloads in the histories of some executions: where each is, and its encoding."""
    number = 0
    async for workflow in client.list_workflows("EverstepStatus = 'completed'"):
        handle = client.get_workflow_handle(workflow.id, run_id=workflow.run_id)
        history = await handle.fetch_history()
        for event in history.events:
            for each in _encodings(MessageToDict(event), ""):
                yield each
        number += 1
        if number == HISTORIES:
            return


def _encodings(value: Any, place: str) -> list[tuple[str, bytes]]:
    """The payloads in a part of an event; search attributes are never encrypted."""
    if isinstance(value, list):
        return [each for entry in cast("list[Any]", value) for each in _encodings(entry, place)]
    if not isinstance(value, dict) or place.endswith("searchAttributes"):
        return []
    given = cast("dict[str, Any]", value)
    if isinstance(given.get("metadata"), dict) and "encoding" in given["metadata"]:
        return [(place, base64.b64decode(given["metadata"]["encoding"]))]
    return [each for key, entry in given.items() for each in _encodings(entry, f"{place}.{key}")]
