"""Measures the HTTP API: accepting a message, the time to the model, and long lists.

Accepting is measured against a bare FastAPI endpoint that does one INSERT and one `start_workflow`. The time
to the model is measured against the first activity of such a workflow. Both run on the same servers and in
turns. A list of a million messages in 100,000 sessions is measured against one of a thousand. Prints medians,
p95 and their ratios, and fails if a ratio misses its target.

    python bench/api.py [--requests N] [--no-fsync] [--small]
"""

import argparse
import asyncio
import multiprocessing
import os
import socket
import statistics
import sys
import time
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final
from uuid import uuid4

import httpx2
import psycopg
import uvicorn
from fastapi import FastAPI
from figures import line, mark
from pydantic import BaseModel
from sqlalchemy import make_url, text
from sqlalchemy.ext.asyncio import create_async_engine
from temporalio import activity, workflow
from temporalio.client import Client as TemporalClient
from temporalio.worker import UnsandboxedWorkflowRunner, Worker

from everstep.agent_domain.agents.builder import DefinitionBuilder
from everstep.agent_domain.agents.drivers import OnText, ToolCallingDriver
from everstep.agent_domain.messages.cached_context import InferenceRequest
from everstep.agent_domain.state.steps import InferenceResponse
from everstep.agent_domain.testing import says
from everstep.runtime.agents import AgentBook
from everstep.runtime.embedded import EmbeddedConfig, open_services
from everstep.runtime.installation import open_installation, upgrade
from everstep.runtime.settings import Settings
from everstep.runtime.worker import make_worker
from everstep.store.engine import database_url

BARE: Final = "bare"
EVERSTEP: Final = "everstep"
AGENT: Final = "assistant"
WARM_UP: Final = 20
"""Requests that are not counted: first connections, first plans."""

# The baseline.


class Message(BaseModel):
    """A minimal message."""

    content: str


@activity.defn
async def first(content: str) -> None:
    """Record when a workflow's first activity began."""
    note(content)


@workflow.defn
class Bare:
    """A workflow with one activity."""

    @workflow.run
    async def run(self, content: str) -> None:
        """Run the activity."""
        await workflow.execute_activity(first, content, start_to_close_timeout=timedelta(minutes=1))


def bare_app(settings: Settings) -> FastAPI:
    """An application with one INSERT and one workflow."""
    app, engine = FastAPI(), create_async_engine(database_url(settings.require("database_url", "")))
    clients = list[TemporalClient]()

    @app.post("/messages", status_code=201)
    async def accept(message: Message) -> dict[str, str]:  # pyright: ignore[reportUnusedFunction] -- a route
        if not clients:
            clients.append(await TemporalClient.connect(settings.require("temporal_address", "")))
        identity = str(uuid4())
        values = {"id": identity, "content": message.content}
        async with engine.connect() as connection:
            await connection.execute(text("INSERT INTO bare (id, content) VALUES (:id, :content)"), values)
            await connection.commit()
        await clients[0].start_workflow(Bare.run, message.content, id=identity, task_queue=BARE)
        return values

    return app


def serve_bare(settings: Settings, port: int) -> None:
    """Run the baseline's process."""
    uvicorn.run(bare_app(settings), port=port, log_level="error", access_log=False)


# The workers.

NOTES: Final = "EVERSTEP_BENCH_NOTES"


def note(content: str) -> None:
    """Record the time, on a clock that all processes of this machine share."""
    with Path(os.environ[NOTES]).open("a", encoding="utf-8") as notes:
        notes.write(f"{content} {time.monotonic_ns()}\n")


class NotingModel:
    """A model that records when it is asked."""

    async def respond(self, request: InferenceRequest, on_text: OnText) -> InferenceResponse:
        """Answer at once."""
        note(request.messages[-1].text)
        on_text("Yes")
        return says("Yes")


AGENTS: Final = [
    DefinitionBuilder.base().with_name(AGENT).with_driver(ToolCallingDriver(NotingModel())).definition()
]


async def work(settings: Settings) -> None:
    """Run both workers as long as the bench takes."""
    async with open_installation(settings) as installation:
        book = AgentBook(AGENTS, installation.models)
        ended = installation.sessions.on_end
        ours = make_worker(installation.temporal, installation.store, book, settings, ended=ended)
        bare = Worker(
            await TemporalClient.connect(settings.require("temporal_address", "")),
            task_queue=BARE,
            workflows=[Bare],
            activities=[first],
            workflow_runner=UnsandboxedWorkflowRunner(),
        )
        async with ours, bare:
            await asyncio.Event().wait()


def in_process(settings: Settings) -> None:
    """The worker process."""
    asyncio.run(work(settings))


# Measuring.


@dataclass(frozen=True)
class Side:
    """A server that accepts messages."""

    http: httpx2.AsyncClient
    path: str

    async def post(self, content: str) -> float:
        """Return the seconds until it is accepted."""
        began = time.perf_counter()
        answer = await self.http.post(self.path, json={"content": content})
        took = time.perf_counter() - began
        answer.raise_for_status()
        return took


def p95(values: Sequence[float]) -> float:
    """The value that one in twenty exceeds."""
    return sorted(values)[int(len(values) * 0.95)]


def print_comparison(
    name: str, bare: Sequence[float], ours: Sequence[float], limit: float, *, by_p95: bool
) -> bool:
    """Print both and their ratio; return whether it is too high."""
    center = p95 if by_p95 else statistics.median
    ratio = center(ours) / center(bare)
    values = (f"{statistics.median(v) * 1000:.1f}/{p95(v) * 1000:.1f}" for v in (bare, ours))
    line(name, *values, f"{ratio:.2f}", f"<= {limit:.2f}", mark(ratio > limit))
    return ratio > limit


async def accepting(sides: Mapping[str, Side], requests: int) -> bool:
    """Send one message after the other, in turns."""
    took: dict[str, list[float]] = {name: [] for name in sides}
    for number in range(requests + WARM_UP):
        for name, side in sides.items():
            seconds = await side.post(str(uuid4()))
            if number >= WARM_UP:
                took[name].append(seconds)
    return print_comparison(
        "accepting a message, ms (median/p95)", took[BARE], took[EVERSTEP], 1.5, by_p95=False
    )


async def reaching(sides: Mapping[str, Side], requests: int, notes: Path) -> bool:
    """Measure from the request to the model, or to the first activity; one after the other, in turns."""
    sent: dict[str, tuple[str, int]] = {}
    for _ in range(requests):
        for name, side in sides.items():
            content = str(uuid4())
            sent[content] = name, time.monotonic_ns()
            await side.post(content)
            while content not in notes.read_text(encoding="utf-8"):  # noqa: ASYNC240, ASYNC110 -- another process writes
                await asyncio.sleep(0.005)
    took: dict[str, list[float]] = {name: [] for name in sides}
    for noted in notes.read_text(encoding="utf-8").splitlines():  # noqa: ASYNC240 -- it is over
        content, at = noted.split()
        if content in sent:
            name, began = sent[content]
            took[name].append((int(at) - began) / 1e9)
    return print_comparison(
        "from POST to the model, ms (median/p95)", took[BARE], took[EVERSTEP], 0.9, by_p95=False
    )


FILL: Final = """
    INSERT INTO agent_sessions (id, tenant_id, user_id, title, status, created_at)
    SELECT gen_random_uuid(), 'default', 'user ' || i % 100, 'Trip number ' || i,
           CASE WHEN i % 50 = 0 THEN 'archived' ELSE 'active' END, now() - i * interval '1 second'
      FROM generate_series(1, {sessions}) AS i;
    INSERT INTO agent_session_messages (id, tenant_id, session_id, role, content, created_at)
    SELECT gen_random_uuid(), tenant_id, id, 'user', 'text', created_at + n * interval '1 second'
      FROM agent_sessions, generate_series(1, 10) AS n;
    ANALYZE
"""
SMALL, LARGE = 100, 100_000
"""Sessions, of ten messages each."""


async def listing(short: httpx2.AsyncClient, long: httpx2.AsyncClient, requests: int) -> bool:
    """Measure the first pages of lists, in turns."""
    missed = False
    ids = [(await http.get("/agent/sessions")).json()["items"][7]["id"] for http in (short, long)]
    paths = {
        "sessions": ["/agent/sessions"] * 2,
        "sessions of a status": ["/agent/sessions?status=archived"] * 2,
        "sessions by title": ["/agent/sessions?search=number%207"] * 2,
        "messages of a session": [f"/agent/sessions/{identity}/messages" for identity in ids],
    }
    for name, (in_short, in_long) in paths.items():
        took: tuple[list[float], list[float]] = [], []
        for number in range(requests + WARM_UP):
            for http, path, seconds in ((short, in_short, took[0]), (long, in_long, took[1])):
                began = time.perf_counter()
                (await http.get(path)).raise_for_status()
                if number >= WARM_UP:
                    seconds.append(time.perf_counter() - began)
        missed |= print_comparison(f"a page of {name}, ms (median/p95)", *took, 2.0, by_p95=True)
    return missed


# Processes.


def free_port() -> int:
    """A port that is not in use."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return listener.getsockname()[1]


async def wait_for_server(http: httpx2.AsyncClient, path: str) -> None:
    """Wait until the server answers."""
    async with asyncio.timeout(60):
        while True:
            try:
                await http.get(path)
            except httpx2.TransportError:
                await asyncio.sleep(0.05)
            else:
                return


@asynccontextmanager
async def everstep_api(settings: Settings) -> AsyncGenerator[httpx2.AsyncClient]:
    """The product's process, as users start it."""
    port = free_port()
    command = [sys.executable, "-m", "everstep.cli", "api", "--port", str(port)]
    given = {
        "DATABASE_URL": settings.require("database_url", ""),
        "TEMPORAL_ADDRESS": settings.require("temporal_address", ""),
        "EVERSTEP_TASK_QUEUE": settings.task_queue,
        "EVERSTEP_AUTH": "off",
    }
    quiet = asyncio.subprocess.DEVNULL
    environment = {**os.environ, **given}
    process = await asyncio.create_subprocess_exec(*command, env=environment, stdout=quiet, stderr=quiet)
    try:
        async with httpx2.AsyncClient(base_url=f"http://127.0.0.1:{port}", timeout=30) as http:
            await wait_for_server(http, "/healthz")
            yield http
    finally:
        process.terminate()
        await process.wait()


@asynccontextmanager
async def bare_api(settings: Settings) -> AsyncGenerator[httpx2.AsyncClient]:
    """The baseline's process."""
    port = free_port()
    process = multiprocessing.get_context("spawn").Process(
        target=serve_bare, args=(settings, port), daemon=True
    )
    process.start()
    try:
        async with httpx2.AsyncClient(base_url=f"http://127.0.0.1:{port}", timeout=30) as http:
            await wait_for_server(http, "/docs")
            yield http
    finally:
        process.terminate()
        await asyncio.to_thread(process.join)


@asynccontextmanager
async def working(settings: Settings) -> AsyncGenerator[None]:
    """Run the workers in their own process."""
    process = multiprocessing.get_context("spawn").Process(target=in_process, args=(settings,), daemon=True)
    process.start()
    try:
        yield
    finally:
        process.terminate()
        await asyncio.to_thread(process.join)


async def database(settings: Settings, name: str, fill: str) -> Settings:
    """Create and fill a separate database."""
    url = settings.require("database_url", "")
    with psycopg.connect(url.replace("+psycopg", ""), autocommit=True) as connection:
        connection.execute(f"CREATE DATABASE {name}".encode())
    own = make_url(url).set(database=name).render_as_string(hide_password=False)
    changed = settings.model_copy(update={"database_url": own})
    await upgrade(changed)
    with psycopg.connect(own.replace("+psycopg", ""), autocommit=True) as connection:
        connection.execute(fill.encode())
    return changed


async def run_bench(requests: int, sessions: int, *, fsync: bool) -> bool:
    """Measure on separate servers; return whether a target was missed."""
    postgres = {} if fsync else {"fsync": "off"}
    with TemporaryDirectory(prefix="everstep-bench-") as folder:
        notes = Path(folder) / "notes"
        notes.touch()
        os.environ[NOTES] = str(notes)
        data = Path(folder) / "data"
        config = EmbeddedConfig(data, temporal_port=0, ui_port=0, postgres_settings=postgres)
        async with open_services(config) as services, AsyncExitStack() as stack:
            settings = Settings(
                data_dir=data,
                database_url=services.database_url,
                temporal_address=services.temporal_address,
                task_queue=EVERSTEP,
            )
            ours = await database(settings, "ours", "CREATE TABLE bare (id uuid PRIMARY KEY, content text)")
            line("", "bare", "everstep", "ratio", "target")
            bare_http = await stack.enter_async_context(bare_api(ours))
            sides = {
                BARE: Side(bare_http, "/messages"),
                EVERSTEP: Side(await stack.enter_async_context(everstep_api(ours)), "/agent/messages"),
            }
            missed = await accepting(sides, requests)
            async with working(ours):
                missed |= await reaching(sides, requests // 4, notes)
            short = await database(settings, "short", FILL.format(sessions=SMALL))
            long = await database(settings, "long", FILL.format(sessions=sessions))
            line("", f"{SMALL * 10:,}", f"{sessions * 10:,}", "ratio", "target")
            async with everstep_api(short) as few, everstep_api(long) as many:
                return await listing(few, many, requests) or missed


def main() -> None:
    """Measure, print, and exit with 1 if a target was missed."""
    parser = argparse.ArgumentParser(description="What the HTTP API costs, as ratios.")
    parser.add_argument("--requests", type=int, default=200, help="requests of each kind (200)")
    parser.add_argument("--small", action="store_true", help="a hundredth of the million messages")
    parser.add_argument("--no-fsync", action="store_true", help="PostgreSQL does not wait for the disk")
    arguments = parser.parse_args()
    sessions = LARGE // 100 if arguments.small else LARGE
    sys.exit(asyncio.run(run_bench(arguments.requests, sessions, fsync=not arguments.no_fsync)))


if __name__ == "__main__":
    main()
