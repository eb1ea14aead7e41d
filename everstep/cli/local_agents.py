"""The agents of `everstep up`: in its own process, or in one that is replaced when they change."""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path

from everstep.cli.agent_process import PROGRAM
from everstep.cli.command import note
from everstep.runtime.agent_process import AgentProcess, AgentReport
from everstep.runtime.api import LocalApi, bind_local_api, open_api
from everstep.runtime.file_changes import Snapshot, file_changes, watched_files
from everstep.runtime.installation import Installation
from everstep.runtime.reloading import Reloader

DECIDED_HERE = (
    *(
        "database_url",
        "temporal_address",
        "ui_url",
        "search_attributes",
        "public_url",
        "auth_secret",
        "error_details",
        "local_model_url",
    ),
)
"""The settings that processes of agents get from the first process; they read the others themselves."""


@dataclass(frozen=True, slots=True)
class LocalAgents:
    """The agents of a local installation, with the HTTP API that serves them."""

    api: LocalApi
    report: AgentReport
    run: Callable[[asyncio.Event], Awaitable[object]]
    """Runs them until the stop event."""


@asynccontextmanager
async def open_agents(installation: Installation, *, has_worker: bool) -> AsyncGenerator[LocalAgents]:
    """Serve the agents in this process."""

    async def wait(stop: asyncio.Event) -> None:
        await stop.wait()

    with bind_local_api(installation.settings) as (listener, api):
        # Its own address is the one that Temporal's pages link to.
        installation = installation.with_public_url(api.url)
        async with (
            installation.open_worker() if has_worker else nullcontext(wait) as run,
            open_api(installation, listener=listener),
        ):
            yield LocalAgents(api, AgentReport.of(installation), run)
            await installation.close_titles()


@asynccontextmanager
async def open_reloaded_agents(
    installation: Installation, sources: Sequence[str], model: str | None = None
) -> AsyncGenerator[LocalAgents]:
    """Serve the agents in a process that is replaced when their files change.

    Args:
        installation: The installation, of which this process runs the servers.
        sources: The agents that the command line names; if it names none, the settings do.
        model: The default preset that the command line names.
    """
    settings, project = installation.settings, Path.cwd()
    with bind_local_api(settings) as (listener, api):
        settings = installation.with_public_url(api.url).settings
        given = {name: getattr(settings, name) for name in DECIDED_HERE}
        given |= {"data_dir": str(settings.data_dir), "agents": sources or None, "preset": model}

        async def launch() -> AgentProcess:
            return await AgentProcess.start(PROGRAM, given, listener, settings.graceful_shutdown_seconds)

        def look() -> Snapshot:
            return watched_files(project, reloader.current.report.sources)

        reloader = Reloader(await launch(), launch, file_changes(look), note)
        try:
            yield LocalAgents(api, reloader.current.report, reloader.run)
        finally:
            await reloader.current.stop()
