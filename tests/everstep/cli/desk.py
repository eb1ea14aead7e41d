"""The command line: servers, a database, a task queue, and a worker if needed."""

import asyncio
from collections.abc import AsyncGenerator, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from hashlib import sha256
from uuid import UUID, uuid4

from click.testing import CliRunner, Result

from everstep.agent_domain.agents.drivers import Model
from everstep.agent_domain.ids import DEFAULT_TENANT
from everstep.agent_domain.storage.sign_ins import SignIn, SignInKind
from everstep.agent_domain.tools.inquiry import ModelChoice
from everstep.agent_domain.values import EMPTY
from everstep.cli.main import commands
from everstep.client.client import Client, Execution
from everstep.client.temporal_entry import TemporalEntry
from everstep.runtime.agents import AgentBook, load_agents
from everstep.runtime.settings import Settings
from everstep.runtime.worker import make_worker
from everstep.store.sign_ins import PostgresSignIns
from tests.acceptance.harness import Installation, until_pause
from tests.everstep.cli.pseudo_terminal import PseudoTerminal, open_terminal
from tests.services import Servers, make_database

AGENTS = "tests.everstep.cli.agents:agents"

ELSEWHERE = ("OPENAI_API_KEY", "ANTHROPIC_API_KEY", "TEMPORAL_API_KEY", "EVERSTEP_PAYLOAD_KEY")


class NoModels:
    """The agents of these tests have their own models."""

    def model(self, choice: ModelChoice = None) -> Model:
        raise LookupError(choice)


async def a_database(services: Servers, name: str) -> str:
    """A database with empty tables, whose name begins like this."""
    return await asyncio.to_thread(make_database, services, name)


@dataclass(frozen=True)
class CommandLine:
    """Runs commands."""

    installation: Installation
    queue: str

    @property
    def environment(self) -> dict[str, str]:
        """The environment of a process."""
        return self.installation.environment(EVERSTEP_TASK_QUEUE=self.queue, EVERSTEP_AGENTS=AGENTS)

    @property
    def client(self) -> Client:
        """A client for executions, without a command."""
        return self.client_of(DEFAULT_TENANT)

    def client_of(self, tenant: str) -> Client:
        """A client for the executions of a tenant."""
        temporal, store = self.installation.temporal, self.installation.store
        known = {agent.descriptor.name: agent for agent in load_agents(AGENTS)}
        return Client(temporal, store, known, task_queue=self.queue, tenant_id=tenant)

    def open_terminal(
        self, *arguments: object, columns: int = 80, told: Mapping[str, str] = EMPTY
    ) -> AbstractAsyncContextManager[PseudoTerminal]:
        """Run a command, as a fork, in a terminal of this width."""
        everstep = self.installation.nursery.everstep
        return open_terminal(self.environment, *arguments, columns=columns, told=told, everstep=everstep)

    async def run_command(self, *arguments: object, **environment: str | None) -> Result:
        """A command's output and exit code; its errors are in the output, too."""
        told: dict[str, str | None] = {**dict.fromkeys(ELSEWHERE), **self.environment, **environment}
        # In a thread: the command has its own event loop.
        return await asyncio.to_thread(_invoke, [*map(str, arguments)], told)

    async def output_of(self, *arguments: object, **environment: str | None) -> str:
        """The output of a successful command."""
        result = await self.run_command(*arguments, **environment)
        assert result.exit_code == 0, result.output
        return result.output

    async def error_of(self, *arguments: object, **environment: str | None) -> str:
        """The single error line of a failing command."""
        usage, complaint = _error_line(await self.run_command(*arguments, **environment), 1)
        assert usage == []
        return complaint

    async def usage_error_of(self, *arguments: object) -> str:
        """The error line of a usage error, which click prints after the usage."""
        usage, complaint = _error_line(await self.run_command(*arguments), 2)
        assert usage[0].startswith("Usage: everstep ")
        assert "--help' for help." in usage[1]
        return complaint

    async def start_until_pause(self, message: str, tenant: str = DEFAULT_TENANT) -> Execution:
        """An execution that waits for people."""
        execution = await self.client_of(tenant).start("clerk", message)
        await until_pause(execution)
        return execution

    async def open_browser_session(self, user_id: str, tenant: str = DEFAULT_TENANT) -> UUID:
        """Store the session of a person in a browser; return its id."""
        store, digest = PostgresSignIns(self.installation.store.engine), sha256(uuid4().bytes).hexdigest()
        sign_in = SignIn(tenant, user_id, datetime.now(UTC) + timedelta(hours=1), user_agent="Browser/1")
        await store.add_sign_in(SignInKind.SESSION, digest, sign_in)
        return UUID(digest[:32])

    @asynccontextmanager
    async def open_worker(self) -> AsyncGenerator[None]:
        """Run a worker in this process."""
        settings = Settings(task_queue=self.queue, graceful_shutdown_seconds=0.2)
        book = AgentBook(self.client.agents.values(), NoModels())
        store, door = self.installation.store, TemporalEntry(self.client)
        async with make_worker(self.installation.temporal, store, book, settings, front_door=door):
            yield


def _invoke(arguments: list[str], environment: dict[str, str | None]) -> Result:
    return CliRunner().invoke(commands, arguments, env=environment, prog_name="everstep")


def _error_line(result: Result, code: int) -> tuple[list[str], str]:
    assert result.exit_code == code, result.output
    assert isinstance(result.exception, SystemExit), result.exception
    assert result.stdout == ""
    *usage, complaint = result.stderr.splitlines()
    assert complaint.startswith("Error: "), result.stderr
    return usage, complaint.removeprefix("Error: ")
