"""An earlier release and this one on one database and one Temporal server, with executions under way.

    make upgrade FROM=COMMIT

The earlier release has processes, an environment and viewers of its own. Both orders are tested: the upgrade,
and the way back.
"""

import asyncio
import json
import os
import sys
from collections.abc import AsyncGenerator, Mapping
from pathlib import Path

import pytest
import pytest_asyncio

from tests.acceptance.harness import until
from tests.services import Servers, make_database
from tests.upgrades.fleet import Fleet, Part, Release, Sent, keep_doing, open_fleet, release_from
from tests.upgrades.story_model import open_story_model

pytestmark = [
    pytest.mark.asyncio(loop_scope="session"),
    pytest.mark.installation,
    pytest.mark.slow,
    pytest.mark.timeout(600),
]

OLD_RELEASE = os.environ.get("EVERSTEP_OLD_RELEASE", "")

VERBS = ("write", "walk", "pay", "ask", "delegate")


@pytest.fixture
def old() -> Release:
    """The earlier release."""
    assert OLD_RELEASE, "make upgrade prepares the earlier release and runs this test"
    return release_from(OLD_RELEASE, "old")


@pytest.fixture
def new() -> Release:
    """This release."""
    return Release("new", Path(sys.prefix) / "bin")


@pytest_asyncio.fixture(loop_scope="session")
async def fleet(services: Servers, tmp_path: Path, old: Release) -> AsyncGenerator[Fleet]:
    """An installation of the earlier release, without processes."""
    database_url = make_database(services, "upgrade", "template0")
    async with (
        open_story_model() as model,
        open_fleet(services, database_url, tmp_path, model) as fleet,
    ):
        await fleet.run(old, "db", "upgrade")
        fleet.token = (
            await fleet.run(old, "keys", "create", "people", "--user", "ann", "--scope", "approve")
        ).strip()
        yield fleet


async def begin_all(fleet: Fleet, api: Part, prefix: str) -> dict[str, Sent]:
    """Begin an execution of each kind, and wait until it is in the middle.

    One streams, one streams and will pause after its step, one waits for an approval, one for an answer, and
    one for a subagent that streams.
    """
    names = {verb: f"{prefix}-{verb}" for verb in VERBS}
    held = [names["write"], names["walk"], f"{names['delegate']}-child"]
    fleet.model.hold(*held)
    sent = {verb: await fleet.send(api, verb, name) for verb, name in names.items()}
    for name in held:
        await until(f"{name} streams", lambda name=name: fleet.model.is_held(name))
    for verb in ("pay", "ask"):
        await fleet.until_request(api, sent[verb])
    await fleet.ask(api, "POST", f"/agent/executions/{sent['walk'].execution}/pause")
    return sent


async def finish_all(fleet: Fleet, api: Part, sent: Mapping[str, Sent]) -> None:
    """Let all of them end, through this API, and check their ends."""
    fleet.model.release(sent["write"].name, sent["walk"].name, f"{sent['delegate'].name}-child")
    payment = await fleet.until_request(api, sent["pay"])
    decision = {"decision": "approve", "args_digest": payment["args_digest"]}
    await fleet.ask(
        api, "POST", f"/agent/executions/{sent['pay'].execution}/approvals/{payment['id']}", decision
    )
    await fleet.ask(api, "POST", f"/agent/executions/{sent['ask'].execution}/input", {"text": "The first"})
    await fleet.until_status(api, sent["walk"], "paused")
    await fleet.ask(api, "POST", f"/agent/executions/{sent['walk'].execution}/resume")
    for each in sent.values():
        await fleet.check_end(api, each)


async def migrate_while_working(fleet: Fleet, new: Release, old_api: Part) -> list[Sent]:
    """Migrate the tables while the processes of the old release accept and run messages; return these."""
    sent: list[Sent] = []

    async def work() -> None:
        sent.append(await fleet.send(old_api, "write", f"quick{len(sent)}"))
        await fleet.ask(old_api, "GET", f"/agent/executions/{sent[0].execution}")

    working = asyncio.create_task(keep_doing(work, 0.1))
    await until("the old release works", lambda: len(sent) > 2)
    await fleet.run(new, "db", "upgrade")
    before = len(sent)
    await until("the old release works with the new tables", lambda: len(sent) > before + 5 or working.done())
    working.cancel()
    with pytest.raises(asyncio.CancelledError):
        await working
    return sent


async def test_both_releases_serve_the_same_executions(fleet: Fleet, old: Release, new: Release) -> None:
    """18.5.6: without build ids, with viewers of both releases at gateways of both."""
    model = fleet.model
    old_worker = await fleet.start(old, "worker")
    old_api, old_gateway = await asyncio.gather(fleet.start(old, "api"), fleet.start(old, "gateway"))
    first = await begin_all(fleet, old_api, "first")
    viewers = [await fleet.open_viewer(old, old_gateway)]
    for sent in first.values():
        viewers[0].follow(sent)

    quick = await migrate_while_working(fleet, new, old_api)

    # Both releases are side by side.
    new_api, new_gateway, new_worker = await asyncio.gather(
        *(fleet.start(new, kind) for kind in ("api", "gateway", "worker"))
    )
    viewers += [
        await fleet.open_viewer(new, old_gateway),
        await fleet.open_viewer(old, new_gateway),
        await fleet.open_viewer(new, new_gateway),
    ]
    both = [await begin_all(fleet, api, f"by-{api.release.name}") for api in (new_api, old_api)]
    for viewer in viewers:
        for sent in [*first.values(), *both[0].values(), *both[1].values()]:
            if not (viewer is viewers[0] and sent in first.values()):
                viewer.follow(sent)
    # The text so far, of stories of either worker, and that began before the viewer came.
    for viewer in viewers:
        for sent in (first["write"], both[0]["write"], both[1]["write"]):
            await viewer.until_text(sent)
    await finish_all(fleet, new_api, first)
    await finish_all(fleet, old_api, both[0])
    await finish_all(fleet, new_api, both[1])
    for sent in quick:
        await fleet.check_end(new_api, sent)
    for viewer in viewers:
        for sent in [*first.values(), *both[0].values(), *both[1].values()]:
            await viewer.until_end(sent, whole_text=sent.name.endswith("write"))
    assert {turn: count for turn, count in model.requests.items() if count > 1} == {}

    # The old worker leaves in the middle of executions, and the new one takes them over.
    third = await begin_all(fleet, old_api, "third")
    await old_worker.stop()
    await finish_all(fleet, old_api, third)
    # And back: the executions that the new worker began end on the old one.
    fourth = await begin_all(fleet, new_api, "fourth")
    old_worker = await fleet.start(old, "worker")
    await new_worker.stop()
    await finish_all(fleet, new_api, fourth)


async def test_each_execution_stays_on_the_build_of_its_release(
    fleet: Fleet, old: Release, new: Release
) -> None:
    """18.5.6: with build ids, the way of docs/upgrades.md: there and back."""
    set_current = ("builds", "set-current", "--wait", "60", "--ignore-missing-task-queues")
    await fleet.start(old, "worker", EVERSTEP_BUILD_ID="old")
    old_api, gateway = await asyncio.gather(fleet.start(old, "api"), fleet.start(old, "gateway"))
    await fleet.run(new, *set_current, "old")
    viewer = await fleet.open_viewer(old, gateway)
    by_old = await begin_all(fleet, old_api, "old")

    await fleet.run(new, "db", "upgrade")
    new_worker, new_api = await asyncio.gather(
        fleet.start(new, "worker", EVERSTEP_BUILD_ID="new"), fleet.start(new, "api")
    )
    await fleet.run(new, *set_current, "new")
    by_new = await begin_all(fleet, old_api, "new")
    for sent in [*by_old.values(), *by_new.values()]:
        viewer.follow(sent)
    listed = await fleet.run(new, "builds", "list", "--json")
    builds = {each["build_id"]: each["status"] for each in map(json.loads, listed.splitlines())}
    assert {"old": "draining", "new": "current"}.items() <= builds.items()

    for sent in (by_old["write"], by_new["write"]):
        await viewer.until_text(sent)
    # Back: new executions begin on the old build, and those of the new one stay there.
    await fleet.run(new, *set_current, "old")
    again = await begin_all(fleet, new_api, "again")
    await finish_all(fleet, new_api, by_old)
    await finish_all(fleet, old_api, by_new)
    for sent in [*by_old.values(), *by_new.values()]:
        await viewer.until_end(sent, whole_text=sent.name.endswith("write"))
    await new_worker.stop()
    await finish_all(fleet, new_api, again)
    assert {turn: count for turn, count in fleet.model.requests.items() if count > 1} == {}
