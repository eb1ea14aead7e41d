"""Processes of two releases on one database and one Temporal server, and viewers of both."""

import asyncio
import json
import os
import re
import shutil
import signal
from asyncio.subprocess import Process
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import httpx2

from tests.acceptance.harness import environment, until
from tests.services import Servers
from tests.upgrades.story_model import StoryModel, story

HERE: Final = Path(__file__).parent
URL: Final = re.compile(r"(?:https?|ws)://\S+?(?=[;,\s])")
IS_UP: Final = {"worker": "working on", "api": "answering at", "gateway": "viewers watch at"}
SECRET: Final = "a secret of these tests, which is long enough"  # noqa: S105 -- of processes that end with the test


@dataclass(frozen=True)
class Release:
    """The programs of a release."""

    name: str
    bin: Path


@dataclass
class Part:
    """A process of an installation."""

    release: Release
    process: Process
    log: Path

    @property
    def url(self) -> str:
        """The URL at which it answers."""
        found = URL.search(self.log.read_text())
        assert found, self.log.read_text()
        return found[0]

    async def stop(self) -> None:
        """Stop it as a rollout does."""
        self.process.terminate()
        async with asyncio.timeout(60):
            code = await self.process.wait()
        assert code == 0, self.log.read_text()


@dataclass(frozen=True)
class Sent:
    """A message that was accepted."""

    name: str
    session: str
    execution: str


@dataclass
class Viewer:
    """A viewer of a release at a gateway."""

    name: str
    process: Process
    seqs: dict[str, list[int]] = field(default_factory=dict[str, list[int]])
    texts: dict[str, str] = field(default_factory=dict[str, str])
    """The last text of each execution that was still being written."""
    ended: set[str] = field(default_factory=set[str])
    reloads: int = 0

    def follow(self, sent: Sent) -> None:
        """Follow the session of a message from its beginning."""
        assert self.process.stdin
        self.process.stdin.write(f"{sent.session}\n".encode())

    async def read(self) -> None:
        """Keep what it prints."""
        assert self.process.stdout
        async for line in self.process.stdout:
            self._on_line(json.loads(line))

    def _on_line(self, line: dict[str, Any]) -> None:
        if "reload" in line:
            self.reloads += 1
        elif "text" in line:
            self.texts[line["execution"]] = line["text"]
        else:
            self.seqs.setdefault(line["session"], []).append(line["seq"])
            if line["status"] == "completed":
                self.ended.add(line["execution"])

    async def until_text(self, sent: Sent) -> None:
        """Wait until it sees text of an execution."""
        await until(f"{self.name} sees text of {sent.name}", lambda: self.texts.get(sent.execution))

    async def until_end(self, sent: Sent, *, whole_text: bool) -> None:
        """Wait until it has seen the end, and check that it has seen everything once and in order.

        Args:
            sent: The message whose execution ends.
            whole_text: Whether it was there while the text was written.
        """
        await until(f"{self.name} sees the end of {sent.name}", lambda: sent.execution in self.ended)
        seqs = self.seqs[sent.session]
        assert seqs == [*range(1, len(seqs) + 1)], (self.name, sent.name, seqs)
        assert not self.reloads
        if whole_text:
            assert self.texts[sent.execution].split() == [each.strip() for each in story(sent.name)]


@dataclass
class Fleet:
    """An installation whose processes are of two releases."""

    servers: Servers
    database_url: str
    folder: Path
    model: StoryModel
    token: str = ""
    parts: list[Part] = field(default_factory=list[Part])
    viewers: list[Viewer] = field(default_factory=list[Viewer])
    reading: list[asyncio.Task[None]] = field(default_factory=list[asyncio.Task[None]])

    def environment(self, **more: str) -> dict[str, str]:
        """The variables of a process."""
        return environment(
            DATABASE_URL=self.database_url,
            TEMPORAL_ADDRESS=self.servers.temporal_address,
            EVERSTEP_BROADCAST_SECRET=SECRET,
            EVERSTEP_HTTP_PORT="0",
            EVERSTEP_GATEWAY_PORT="0",
            # Fewer than a held story takes: a stopping worker leaves it to another one.
            EVERSTEP_GRACEFUL_SHUTDOWN_SECONDS="1",
            EVERSTEP_TASK_QUEUE=self.folder.name,
            EVERSTEP_AGENTS="project_agents:agents",
            STORY_MODEL_URL=self.model.url,
            PYTHONPATH=str(self.folder),
            **more,
        )

    async def run(self, release: Release, *arguments: str) -> str:
        """Run a command of a release to its end."""
        process = await asyncio.create_subprocess_exec(
            release.bin / "everstep",
            *arguments,
            env=self.environment(),
            cwd=self.folder,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
        said, errors = await process.communicate()
        assert process.returncode == 0, errors.decode()
        return said.decode()

    async def start(self, release: Release, kind: str, **more: str) -> Part:
        """Start a worker, an API or a gateway, and wait until it works."""
        log = self.folder / f"{len(self.parts)}-{release.name}-{kind}.log"
        with log.open("wb") as file:
            process = await asyncio.create_subprocess_exec(
                release.bin / "everstep",
                kind,
                env=self.environment(**more),
                cwd=self.folder,
                stdout=file,
                stderr=file,
            )
        part = Part(release, process, log)
        self.parts.append(part)
        await until(
            f"the {kind} of {release.name} works",
            lambda: IS_UP[kind] in log.read_text() or process.returncode is not None,
        )
        assert process.returncode is None, log.read_text()
        return part

    async def open_viewer(self, release: Release, gateway: Part) -> Viewer:
        """A viewer of this release at a gateway."""
        process = await asyncio.create_subprocess_exec(
            release.bin / "python",
            HERE / "follow.py",
            gateway.url,
            self.token,
            env=self.environment(),
            cwd=self.folder,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            limit=2**20,
        )
        viewer = Viewer(f"a viewer of {release.name} at a gateway of {gateway.release.name}", process)
        self.viewers.append(viewer)
        self.reading.append(asyncio.create_task(viewer.read()))
        return viewer

    async def ask(self, api: Part, method: str, path: str, body: Mapping[str, Any] | None = None) -> Any:
        """Send a request to an API; any answer but a success is an error."""
        headers = {"Authorization": f"Bearer {self.token}"}
        async with httpx2.AsyncClient(base_url=api.url, headers=headers, timeout=30) as http:
            answer = await http.request(method, path, json=body)
        assert answer.is_success, (api.release.name, method, path, answer.status_code, answer.text)
        return answer.json()

    async def send(self, api: Part, verb: str, name: str) -> Sent:
        """Send a message that starts an execution in a session of its own."""
        accepted = await self.ask(api, "POST", "/agent/messages", {"content": f"{verb} {name}"})
        return Sent(name, accepted["session_id"], accepted["execution_id"])

    async def until_status(self, api: Part, sent: Sent, *statuses: str) -> dict[str, Any]:
        """Wait until an execution has one of these statuses; return it."""
        found = dict[str, Any]()

        async def has_status() -> bool:
            found.update(await self.ask(api, "GET", f"/agent/executions/{sent.execution}"))
            return found["status"] in statuses

        await until(f"{sent.name} is {' or '.join(statuses)}", has_status)
        return found

    async def until_request(self, api: Part, sent: Sent) -> dict[str, Any]:
        """Wait until an execution has an open request to a person; return it."""
        found: list[dict[str, Any]] = []

        async def is_open() -> bool:
            found[:] = (await self.ask(api, "GET", f"/agent/executions/{sent.execution}/requests"))["items"]
            return bool(found)

        await until(f"{sent.name} waits for a person", is_open)
        return found[0]

    async def check_end(self, api: Part, sent: Sent) -> None:
        """Wait for the end of an execution, which has to be its whole story."""
        ended = await self.until_status(api, sent, "completed", "failed", "cancelled")
        assert ended["status"] == "completed", ended
        assert ended["output"]["response"].split() == [each.strip() for each in story(sent.name)], ended

    async def close(self) -> None:
        """End every process."""
        for process in [*(each.process for each in self.viewers), *(each.process for each in self.parts)]:
            if process.returncode is None:
                process.send_signal(signal.SIGKILL)
                await process.wait()
        await asyncio.gather(*self.reading)


@asynccontextmanager
async def open_fleet(
    servers: Servers, database_url: str, folder: Path, model: StoryModel
) -> AsyncGenerator[Fleet]:
    """An installation without processes, in a folder with the agents."""
    shutil.copy(HERE / "project_agents.py", folder)
    fleet = Fleet(servers, database_url, folder, model)
    try:
        yield fleet
    finally:
        await fleet.close()


async def keep_doing(what: Callable[[], Awaitable[None]], seconds: float) -> None:
    """Do something again and again, until this task is cancelled or it fails."""
    while True:
        await what()
        await asyncio.sleep(seconds)


def release_from(folder: str | os.PathLike[str], name: str) -> Release:
    """The release in a folder with its environment."""
    return Release(name, Path(folder) / ".venv" / "bin")
