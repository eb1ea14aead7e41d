"""The npm package: what it contains, its types, and the React hook, which a component renders in node."""

import json
import re
import shutil
import subprocess
import tomllib
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from tests.broadcast_gateway.writers import EXECUTION, SESSION
from tests.browsers.conftest import gateway
from tests.browsers.scripted_gateway import CHANNEL, ScriptedGateway, chunk, execution_end, step_end
from tests.browsers.viewer import LOCK as BROWSERS, Viewer, in_node
from tests.node import installed_modules, node, npm
from tests.wires.clients import HERE, LOCK, STATIC

__all__ = ["gateway"]

NAMES = ["react", "react-dom", "happy-dom", "@ag-ui"]


@pytest.fixture(scope="module")
def package(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder in which the package is installed as npm packs it, beside its peers."""
    folder = tmp_path_factory.mktemp("package")
    packed = subprocess.run(  # noqa: S603 -- fixed command
        [*npm(), "pack", str(STATIC), "--json", "--pack-destination", str(folder)],
        capture_output=True,
        text=True,
        check=True,
    )
    (file,) = folder.glob("*.tgz")
    del packed
    shutil.unpack_archive(file, folder)
    modules = folder / "node_modules"
    modules.mkdir()
    (folder / "package").rename(modules / "everstep-client")
    for name in NAMES:
        (modules / name).symlink_to(installed_modules(LOCK) / name)
    shutil.copy(HERE / "session_hook.mjs", folder)
    return folder


@pytest_asyncio.fixture
async def page(package: Path) -> AsyncGenerator[Viewer]:
    """A process that renders a component."""
    async with in_node(package / "session_hook.mjs") as page:
        yield page


def test_the_package_has_its_files_and_the_version_of_the_project(package: Path) -> None:
    """17.4.1"""
    root = package / "node_modules" / "everstep-client"
    manifest = json.loads((root / "package.json").read_text())
    project = tomllib.loads((STATIC.parents[2] / "pyproject.toml").read_text())["project"]
    assert manifest["version"] == project["version"]
    assert set(manifest["exports"]) == {".", "./react", "./ag-ui", "./package.json"}
    assert "dependencies" not in manifest
    exports: dict[str, Any] = manifest["exports"]
    del exports["./package.json"]
    files = [str(file) for entry in exports.values() for file in entry.values()]
    assert len(files) == 6
    assert all((root / file).is_file() for file in files)


def test_programs_with_types_use_the_package(package: Path) -> None:
    """17.4.1"""
    (package / "program.ts").write_text(
        """
        import { connect, type Envelope } from "everstep-client";
        import { loader, useSession } from "everstep-client/react";

        const client = connect({ url: "wss://agents.example/v1", token: async () => "token" });
        client.subscribe("agent.session.x", { onevent: (envelope: Envelope) => envelope.seq?.toFixed() });
        const load = loader({ url: "https://agents.example", token: "token" });
        const seen = useSession(client, "x", { load });
        const texts: string[] = seen.messages.map((message) => message.content);
        // @ts-expect-error -- there is no such field
        seen.nothing;
        texts.push(seen.texts["x"] ?? "");
        """
    )
    assert type_errors(package, "program.ts") == ""


def test_the_samples_of_its_page_are_right(package: Path) -> None:
    """17.4.3: the README that npm shows; each sample names what the package exports."""
    page = (package / "node_modules" / "everstep-client" / "README.md").read_text()
    samples = re.findall(r"```ts\n(.*?)```", page, re.DOTALL)
    assert len(samples) == 3
    for number, sample in enumerate(samples):
        (package / f"sample{number}.mts").write_text(sample)
    assert type_errors(package, *(f"sample{number}.mts" for number in range(len(samples)))) == ""
    (package / "sample0.mts").write_text(samples[0].replace("ontext:", "ontexts:"))
    assert "ontexts" in type_errors(package, "sample0.mts")


def type_errors(folder: Path, *programs: str) -> str:
    """What the compiler of TypeScript says about programs."""
    compiler = installed_modules(BROWSERS) / "typescript" / "bin" / "tsc"
    options = ["--noEmit", "--strict", "--module", "nodenext", "--target", "es2022", "--skipLibCheck"]
    checked = subprocess.run(  # noqa: S603 -- fixed command
        [node(), str(compiler), *options, *programs], cwd=folder, capture_output=True, text=True, check=False
    )
    assert (checked.returncode == 0) == (not checked.stdout), checked.stderr
    return checked.stdout


def message(seq: int, kind: str, content: str, **metadata: Any) -> dict[str, Any]:
    """The envelope of a stored message."""
    payload = {"message_id": f"m-{seq}", "event_type": kind, "content": content, "metadata": metadata}
    return {
        "type": kind,
        "session_id": str(SESSION),
        "execution_id": str(EXECUTION),
        "timestamp": "2026-01-16T10:05:00.123456Z",
        "payload": payload,
        "id": f"00000000-0000-4000-8000-00000000000{seq}",
        "seq": seq,
    }


def requested(seq: int, kind: str) -> dict[str, Any]:
    fields = {"request_id": "q-1", "tool_call_id": "c-1", "prompt": "Which day?"}
    return message(seq, kind, "") | {"payload": fields}


async def test_a_component_shows_a_session(gateway: ScriptedGateway, page: Viewer) -> None:
    """17.4.2: the stored messages, the text that is written, what waits for people, and what follows."""
    stored = {"id": "m-0", "role": "user", "content": "Where is it?", "created_at": "2026"}
    page.command("connect", url=gateway.url.removesuffix("/v1"))
    page.command("mount", id=str(SESSION), items={"messages": [stored], "inbox": []})
    client = await gateway.next_client()
    assert await client.accept_subscription(0, recovered=False, channel=CHANNEL) is None

    async def until(**expected: Any) -> Any:
        def shown() -> Any:
            seen = page.events_of("render", None)
            return seen and all(seen[-1][name] == value for name, value in expected.items()) and seen[-1]

        return await page.until_true(shown)

    first = await until(state="live", messages=[stored])
    assert first["asked"][0] == [
        f"http://agents.test/agent/sessions/{SESSION}/messages?limit=200",
        "Bearer a-token",
    ]
    await client.send(requested(1, "agent.input.requested"))
    assert (await until(state="live"))["error"] is None
    await page.until_true(lambda: page.events_of("render", None)[-1]["requests"])
    await client.send(requested(2, "agent.input.received"), chunk(0, "In "), chunk(1, "Bergen"))
    await until(requests=[], texts={str(EXECUTION): "In Bergen"})
    await client.send(step_end(3), message(4, "execution.completed", "In Bergen", stop_reason="completed"))
    await client.send(execution_end(5))
    last = await until(texts={}, statuses={str(EXECUTION): "completed"})
    assert [(each["role"], each["content"]) for each in last["messages"]] == [
        ("user", "Where is it?"),
        ("assistant", "In Bergen"),
    ]
    page.command("html")
    (html,) = await page.until("html", 1, None)
    assert html == "<div><p>Where is it?|In Bergen</p></div>"
    page.command("unmount")
    await page.until("unmounted", 1, None)
    assert not page.events_of("uncaught", None)
