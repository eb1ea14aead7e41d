"""The commands about sessions, over a real API: a line is sent once, and its results are shown."""

import asyncio
import os
import pty
import re
import signal
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncGenerator, Callable, Coroutine, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import httpx2
import pytest
import pytest_asyncio
from click.testing import CliRunner, Result
from starlette.types import ASGIApp, Receive, Scope, Send

from everstep.agent_domain.loop.status import WireStatus
from everstep.agent_domain.values import EMPTY
from everstep.cli import conversation, remote
from everstep.cli.main import commands
from everstep.client.client import Client
from everstep.client.sessions import Sessions
from everstep.http_api.app import create_app
from everstep.http_api.tokens import signed
from everstep.runtime.agents import load_agents
from everstep.runtime.api import URL
from everstep.runtime.local_secret import made_secret
from everstep.runtime.serving import serving
from everstep.runtime.settings import Settings
from everstep.store.engine import create_engine
from everstep.store.keys import PostgresKeys
from everstep.store.sessions import PostgresSessions
from tests.acceptance.front import a_free_port
from tests.acceptance.harness import ROOT, Installation, environment, until
from tests.everstep.cli.agents import hesitant
from tests.everstep.cli.desk import AGENTS
from tests.everstep.http_api.house import SECRET, House
from tests.everstep.streams.scripted import Fault, Gateway, Tale

pytestmark = pytest.mark.asyncio(loop_scope="session")

NOWHERE = "http://127.0.0.1:9"


@dataclass
class Room:
    """The API on a free port, and its callers."""

    house: House
    folder: Path
    port: int = field(default_factory=a_free_port)
    processes: list[Process] = field(default_factory=list[Process])

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def environment(self) -> dict[str, str]:
        """The environment of a command; it has no addresses of servers."""
        token = self.house.token("ann")
        return environment(EVERSTEP_API_URL=self.url, EVERSTEP_API_TOKEN=token)

    @asynccontextmanager
    async def answering(
        self, around: Callable[[ASGIApp], ASGIApp] = lambda app: app, gateway: str | None = None
    ) -> AsyncGenerator[httpx2.AsyncClient]:
        """With the API, and a second caller."""
        headers = {"Authorization": f"Bearer {self.house.token('ann')}"}
        app = around(create_app(replace(self.house.api, gateway_url=lambda: gateway)))
        async with (
            serving(app, "127.0.0.1", self.port),
            httpx2.AsyncClient(base_url=self.url, headers=headers) as http,
        ):
            yield http

    async def does(
        self, *arguments: object, typed: str = "", told: Mapping[str, str | None] = EMPTY
    ) -> Result:
        """A command's output and exit code."""
        given: dict[str, str | None] = {**self.environment, **told}
        # In a thread: the command has its own event loop.
        return await asyncio.to_thread(_invoked, [*map(str, arguments)], typed, given)

    async def shows(self, *arguments: object, typed: str = "") -> str:
        """The output of a successful command."""
        result = await self.does(*arguments, typed=typed)
        assert result.exit_code == 0, result.output
        return result.output

    async def complains(self, *arguments: object, **told: str | None) -> str:
        """The single error line of a failing command."""
        result = await self.does(*arguments, told=told)
        assert result.exit_code == 1, result.output
        (line,) = result.stderr.splitlines()
        return line.removeprefix("Error: ")

    async def process(self, *arguments: str, stdin: int = PIPE) -> tuple[Process, Path]:
        """A command as a process, and its output."""
        log = self.folder / f"{len(self.processes)}.log"
        with log.open("wb") as out:
            module = (sys.executable, "-m", "everstep.cli", *arguments)
            process = await asyncio.create_subprocess_exec(
                *module, stdin=stdin, stdout=out, stderr=out, cwd=ROOT, env=self.environment
            )
        self.processes.append(process)
        return process, log

    async def shown(self, log: Path, words: str) -> None:
        """Wait until a process has printed this."""
        await until(f"it shows {words}", lambda: words in log.read_text() or self.has_ended())
        assert words in log.read_text(), log.read_text()

    def has_ended(self) -> bool:
        return self.processes[-1].returncode is not None


def _invoked(arguments: list[str], typed: str, told: dict[str, str | None]) -> Result:
    return CliRunner().invoke(commands, arguments, input=typed, env=told, prog_name="everstep")


@pytest_asyncio.fixture(loop_scope="session")
async def room(installation: Installation, tmp_path: Path) -> AsyncGenerator[Room]:
    """With a worker, without the API."""
    engine = create_engine(installation.database_url)
    store, settings = PostgresSessions(engine), Settings(task_queue=f"chat-{uuid4().hex}")
    settings = settings.model_copy(update={"graceful_shutdown_seconds": 0.2})
    known = {agent.descriptor.name: agent for agent in load_agents(AGENTS)}
    client = Client(installation.temporal, store, known, settings.task_queue)
    house = House(Sessions(client, store, "clerk"), PostgresKeys(engine), settings)
    room = Room(house, tmp_path)
    async with house.at_work():
        yield room
    for process in room.processes:
        if process.returncode is None:
            process.kill()
        await process.wait()
    await engine.dispose()


@pytest_asyncio.fixture(loop_scope="session")
async def http(room: Room) -> AsyncGenerator[httpx2.AsyncClient]:
    """With the API."""
    async with room.answering() as http:
        yield http


async def said(http: httpx2.AsyncClient, session: str, **given: str) -> Any:
    """Post a message as the second caller."""
    answer = await http.post(f"/agent/sessions/{session}/messages", json=given)
    assert answer.status_code == 201, answer.text
    return answer.json()


async def a_session(http: httpx2.AsyncClient, **given: str) -> str:
    return (await http.post("/agent/sessions", json=given)).json()["id"]


async def spoken(http: httpx2.AsyncClient, session: str, role: str = "user") -> list[str]:
    """The stored messages, in order."""
    listed = (await http.get(f"/agent/sessions/{session}/messages", params={"limit": 200})).json()
    return [message["content"] for message in listed["items"][::-1] if message["role"] == role]


def status_of(
    http: httpx2.AsyncClient, execution: str, *statuses: str
) -> Callable[[], Coroutine[Any, Any, bool]]:
    async def stands() -> bool:
        return (await http.get(f"/agent/executions/{execution}")).json()["status"] in statuses

    return stands


def session_in(output: str) -> str:
    """The session that a chat has created."""
    found = re.search(r"^  session (\S+)$", output, re.MULTILINE)
    assert found, output
    return found[1]


# Chatting.


async def test_lines_are_answered_one_after_the_other(room: Room, http: httpx2.AsyncClient) -> None:
    shown = await room.shows("chat", typed="hello\n\nhello again\n")

    session = session_in(shown)
    assert shown.splitlines() == [
        "  talking to clerk",
        f"  session {session}",
        "  Started step 1",
        "Hello!",
        "  Started step 1",
        "Hello!",
    ]
    assert await spoken(http, session) == ["hello", "hello again"]


async def test_the_next_line_answers_a_question(room: Room, http: httpx2.AsyncClient) -> None:
    shown = await room.shows("chat", typed="choose\nhigh\n")

    assert shown.count("Which floor?\nchoices: high, low\n") == 1
    assert shown.splitlines()[-1] == "It is done."
    assert await spoken(http, session_in(shown)) == ["choose", "high"]


@pytest.mark.usefixtures("http")
@pytest.mark.parametrize(
    ("message", "wrong", "why", "right"),
    [
        ("choose", "middle", "refused: Answer must be one of: high, low", "low"),
        (
            "fill in",
            "Friday",
            "refused: Answer does not match the schema: the answer is not valid JSON",
            '{"day":"Fri"}',
        ),
    ],
)
async def test_an_invalid_answer_is_requested_again(
    room: Room, message: str, wrong: str, why: str, right: str
) -> None:
    """8.5.4"""
    shown = await room.shows("chat", typed=f"{message}\n{wrong}\n{right}\n")

    before, _, after = shown.partition(why)
    question = before.splitlines()[-2:]
    assert after.splitlines()[1:3] == question
    assert shown.splitlines()[-1] == "It is done."


async def test_a_form_shows_its_choices(room: Room, http: httpx2.AsyncClient) -> None:
    result = await room.does("chat", typed="fill in\n")

    assert "Which day?\nanswer with JSON that fits {" in result.output


@pytest.mark.parametrize(
    ("decision", "outcome"),
    [
        ("a", "transfer: transferred 80"),
        ("d far too much", "transfer: Denied by user: far too much"),
        ('e {"euros": 8}', "transferred 8"),
    ],
)
@pytest.mark.usefixtures("http")
async def test_a_call_is_decided_with_its_shown_digest(room: Room, decision: str, outcome: str) -> None:
    """8.6.2"""
    shown = await room.shows("chat", typed=f"pay\n{decision}\n")

    asked = f'transfer waits for approval: {{"euros":80}}\n{conversation.HOW_TO_DECIDE}\n'
    assert shown.count(asked) == 1
    assert outcome in shown.partition(asked)[2]
    assert shown.splitlines()[-1] == "It is done."


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ("yes please", "type a, or d and an optional reason"),
        ("a little later", "type a, or d and an optional reason"),
        ("e", "type a, or d and an optional reason"),
        ("e {", "what follows is not valid JSON"),
        ("e [1]", "what follows"),
        ("e {}", "Required arguments are missing: euros"),
    ],
)
@pytest.mark.usefixtures("http")
async def test_an_unclear_decision_decides_nothing(room: Room, line: str, why: str) -> None:
    """8.6.2"""
    shown = await room.shows("chat", typed=f"pay\n{line}\nd\n")

    assert f"refused: {why}" in shown
    assert shown.count("waits for approval: ") == 2
    assert "Denied by user" in shown


async def test_tool_output_cannot_control_the_terminal(room: Room, http: httpx2.AsyncClient) -> None:
    shown = await room.shows("chat", typed="shout\n")

    assert "boo" in shown
    assert "\x1b" not in shown


@pytest.mark.usefixtures("http")
async def test_an_execution_that_fails_fails_the_command(room: Room) -> None:
    """5.4.4: `chat` is for viewers, who read the kind of an exception and a reference, and not its text."""
    result = await room.does("chat", "--agent", "broken", typed="hello\n")

    assert result.exit_code == 1
    assert re.search(r"^! ValueError \(ref [0-9a-f]+\)$", result.output, re.MULTILINE)
    assert "The model is on strike" not in result.output


@pytest.mark.usefixtures("http")
async def test_an_open_request_is_reported_when_the_input_ends(room: Room) -> None:
    result = await room.does("chat", typed="choose\n")

    session = session_in(result.output)
    assert result.exit_code == 1
    assert result.output.splitlines()[-1] == f"The execution continues. To return: everstep chat {session}"


# Resuming.


async def test_a_resumed_chat_shows_the_conversation_and_the_open_question(
    room: Room, http: httpx2.AsyncClient
) -> None:
    session = await a_session(http, title="Floors")
    sent = await said(http, session, content="hello")
    await until("it has ended", status_of(http, sent["execution_id"], "completed"))
    sent = await said(http, session, content="choose")
    await until("it asks", status_of(http, sent["execution_id"], "paused"))

    shown = await room.shows("chat", session, typed="low\n")

    assert shown.splitlines()[:6] == [
        f"  session {session}: Floors",
        "> hello",
        "Hello!",
        "> choose",
        "Which floor?",
        "choices: high, low",
    ]
    assert shown.splitlines()[-1] == "It is done."


async def test_an_archived_session_says_why_it_accepts_no_message(
    room: Room, http: httpx2.AsyncClient
) -> None:
    session = await a_session(http)
    await http.patch(f"/agent/sessions/{session}", json={"status": "archived"})

    result = await room.does("chat", session, typed="hello\n")

    assert result.exit_code == 1
    assert "refused: The session is archived; make it active again" in result.output


@pytest.mark.usefixtures("hesitant_model_waits")
@pytest.mark.parametrize(
    ("on_busy", "taken", "statuses"),
    [
        ("enqueue", "queued behind the running execution", ["completed", "completed"]),
        ("steer", "the agent reads it before its next step", ["completed"]),
        ("interrupt", "the running execution is cancelled", ["completed", "cancelled"]),
    ],
)
async def test_a_busy_session_handles_the_line_as_requested(
    room: Room, http: httpx2.AsyncClient, on_busy: str, taken: str, statuses: list[str]
) -> None:
    session = await a_session(http, agent="hesitant")
    sent = await said(http, session, content="Think")
    await until("it thinks", status_of(http, sent["execution_id"], "running"))
    process, log = await room.process("chat", session, "--on-busy", on_busy)
    assert process.stdin
    process.stdin.write(b"Never mind\n")
    process.stdin.close()
    await room.shown(log, taken)
    hesitant.go_on.set()

    assert await process.wait() == 0, log.read_text()
    assert log.read_text().splitlines()[-1] == "Fine."
    listed = (await http.get("/agent/executions", params={"session_id": session})).json()["items"]
    assert [row["status"] for row in listed] == statuses


@pytest.mark.usefixtures("hesitant_model_waits")
async def test_leaving_prints_the_command_to_resume(room: Room, http: httpx2.AsyncClient) -> None:
    session = await a_session(http, agent="hesitant")
    sent = await said(http, session, content="Think")
    process, log = await room.process("chat", session)
    await room.shown(log, "> Think")
    process.send_signal(signal.SIGINT)

    assert await process.wait() == 130
    assert log.read_text().splitlines()[-1] == f"The execution continues. To return: everstep chat {session}"
    assert "Traceback" not in log.read_text()
    assert await status_of(http, sent["execution_id"], "pending", "running")()
    following = asyncio.create_task(room.shows("chat", session))
    hesitant.go_on.set()
    assert (await following).splitlines()[-1] == "Let me think about it."


# Outages.


async def test_a_restarted_api_loses_no_line(room: Room) -> None:
    """8.2.2"""
    async with AsyncExitStack() as first:
        http = await first.enter_async_context(room.answering())
        process, log = await room.process("chat")
        assert process.stdin
        process.stdin.write(b"hello\n")
        await room.shown(log, "Hello!")
    process.stdin.write(b"choose\n")
    await room.shown(log, f"no answer from {room.url}")
    async with room.answering() as http:
        await room.shown(log, "choices: high, low")
        process.stdin.write(b"high\n")
        process.stdin.close()

        assert await process.wait() == 0, log.read_text()
        session = session_in(log.read_text())
        assert await spoken(http, session) == ["hello", "choose", "high"]
    assert "trying again\nthe API answers again\n" in log.read_text()
    assert log.read_text().splitlines()[-1] == "It is done."


async def test_a_line_with_a_lost_response_is_stored_once(room: Room) -> None:
    """8.2.2"""
    lost: list[str] = []

    def losing(app: ASGIApp) -> ASGIApp:
        """Handles every message, and loses its first response."""

        async def wrapped(scope: Scope, receive: Receive, send: Send) -> None:
            key = dict(scope["headers"]).get(b"idempotency-key", b"").decode()
            if scope["method"] != "POST" or key in lost:
                await app(scope, receive, send)
                return
            lost.append(key)

            async def nothing(message: Any) -> None:
                del message

            await app(scope, receive, nothing)
            await send({"type": "http.response.start", "status": 503, "headers": []})
            await send({"type": "http.response.body", "body": b""})

        return wrapped

    async with room.answering(losing) as http:
        shown = await room.shows("chat", typed="choose\nhigh\n")
        assert await spoken(http, session_in(shown)) == ["choose", "high"]
    assert len(lost) == 2
    assert "is unavailable (503); trying again" in shown


async def test_a_permanent_outage_ends_the_command(room: Room, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remote, "PATIENCE_SECONDS", 0.5)
    answered = asyncio.Event()

    def failing(app: ASGIApp) -> ASGIApp:
        """Fails for all messages."""

        async def wrapped(scope: Scope, receive: Receive, send: Send) -> None:
            if answered.is_set():
                await send({"type": "http.response.start", "status": 502, "headers": []})
                await send({"type": "http.response.body", "body": b""})
                return
            await app(scope, receive, send)
            if scope["method"] == "POST":
                answered.set()

        return wrapped

    async with room.answering(failing):
        result = await room.does("chat", typed="choose\nhigh\n")

    assert result.exit_code == 1
    *_, trying, given_up = result.stderr.splitlines()
    assert trying.endswith("is unavailable (502); trying again")
    assert given_up.endswith(f"The execution continues. To return: everstep chat {session_in(result.output)}")


# Invalid input.

NO_SESSION = str(UUID(int=7))


@pytest.mark.parametrize("command", [("chat",), ("chat", NO_SESSION), ("sessions",)], ids=" ".join)
async def test_without_a_server_the_error_says_how_to_start_one(
    room: Room, tmp_path: Path, command: tuple[str, ...]
) -> None:
    here = ("--data", tmp_path)

    away = await room.complains(*here, *command, EVERSTEP_API_URL=NOWHERE)
    none = await room.complains(*here, *command, EVERSTEP_API_URL=None)

    assert away.startswith(f"no answer from {NOWHERE} (")
    assert none.startswith("no API is configured: ")
    assert all("start a local installation with `everstep up`" in said for said in (away, none))


@pytest.mark.usefixtures("http")
@pytest.mark.parametrize("command", [("chat",), ("chat", NO_SESSION), ("sessions",)], ids=" ".join)
@pytest.mark.parametrize(
    ("token", "complaint"),
    [
        (signed("another secret, which opens nothing here", "ann"), "The token is not valid"),
        ("esk_nothing", "The key is unknown or revoked"),
        (None, "Authentication required"),
        ("two words\x7f", "the token has invalid characters"),
    ],
)
async def test_a_refused_token_is_reported(
    room: Room, command: tuple[str, ...], token: str | None, complaint: str
) -> None:
    assert complaint in await room.complains(*command, EVERSTEP_API_TOKEN=token)


@pytest.mark.usefixtures("http")
@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (("chat", "7"), "'7' is not a session id; `everstep sessions` lists them"),
        (("chat", NO_SESSION), "check its id; `everstep sessions` lists them"),
        (("chat", "--agent", "nobody"), "No agent named 'nobody'. Choose from: broken, clerk, hesitant"),
        (("chat", "--url", "here"), "'here' is not the URL of an API; write it like http://127.0.0.1:8080"),
        (("sessions", "--url", "http://"), "'http://' is not the URL of an API"),
        (("sessions", "--cursor", "xx"), "the cursor cannot be read"),
    ],
)
async def test_invalid_input_is_refused_in_one_line(
    room: Room, arguments: tuple[str, ...], complaint: str
) -> None:
    assert complaint in await room.complains(*arguments)


async def test_a_server_that_is_not_the_api_is_reported(room: Room) -> None:
    async def page(scope: Scope, receive: Receive, send: Send) -> None:
        del scope, receive
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"<html>"})

    async with room.answering(lambda _: page):
        complaint = await room.complains("sessions")

    assert complaint.startswith(f"{room.url}/agent/sessions?limit=20 is not an Everstep API")


async def test_input_that_is_not_utf_8_is_not_sent(room: Room, http: httpx2.AsyncClient) -> None:
    process, log = await room.process("chat")
    assert process.stdin
    process.stdin.write(b"hello \xff\n")
    process.stdin.close()

    assert await process.wait() == 1
    assert re.search(r"Error: the input cannot be read|refused: the line contains half", log.read_text())
    assert "Traceback" not in log.read_text()


# The local installation.


async def test_a_local_installation_needs_neither_url_nor_token(room: Room, tmp_path: Path) -> None:
    secret = made_secret(tmp_path)
    (tmp_path / URL).write_text(f"{room.url}\n")
    given = {"EVERSTEP_API_URL": None, "EVERSTEP_API_TOKEN": None}

    async with room.answering():
        # The API uses another secret: the local token is not accepted.
        ours = await room.complains("--data", tmp_path, "sessions", **given)
        known = {**given, "EVERSTEP_AUTH_SECRET": SECRET}
        local = await room.does("--data", tmp_path, "sessions", told=known)
        # The local secret is shown to no other server.
        foreign = f"http://localhost:{room.port}"
        other = await room.complains(
            "--data", tmp_path, "sessions", "--url", foreign, EVERSTEP_API_TOKEN=None
        )

    assert secret
    assert ours.startswith("The token is not valid")
    assert local.exit_code == 0, local.output
    assert other.startswith("Authentication required")


# Terminals.


@pytest.mark.usefixtures("hesitant_model_waits")
async def test_a_terminal_has_a_prompt_and_ctrl_d_ends_it(room: Room, http: httpx2.AsyncClient) -> None:
    session = await a_session(http, agent="hesitant")
    ours, theirs = pty.openpty()
    try:
        process, log = await room.process("chat", session, stdin=theirs)
        await room.shown(log, "\n> ")
        os.write(ours, b"Think\n")

        async def thinks() -> bool:
            return await spoken(http, session) == ["Think"]

        await until("it is heard", thinks)
        # A line is sent while the agent works.
        os.write(ours, b"Never mind\n")
        await room.shown(log, "queued behind the running execution")
        hesitant.go_on.set()
        await room.shown(log, "Fine.\n> ")
        os.write(ours, b"\x04")

        assert await process.wait() == 0, log.read_text()
    finally:
        os.close(ours)
        os.close(theirs)
    assert log.read_text().endswith(f"Fine.\n> \nTo return: everstep chat {session}\n")


# The gateway.


@pytest.mark.usefixtures("hesitant_model_waits")
@pytest.mark.parametrize("fault", [Fault.NONE, Fault.CUT, Fault.GARBAGE])
async def test_text_is_shown_once_while_it_is_written(room: Room, fault: Fault) -> None:
    story = Tale()
    gateway = Gateway(story, iter([*[Fault.NONE] * 3, fault]), token=None, until=0)
    async with gateway.open(), room.answering(gateway=gateway.url) as http:
        story.session_id = UUID(await a_session(http, agent="hesitant"))
        ours, theirs = pty.openpty()
        process, log = await room.process("chat", str(story.session_id), stdin=theirs)
        try:
            await room.shown(log, "> ")
            os.write(ours, b"hello\n")
            story.execution_id = UUID((await begun(http, str(story.session_id)))["id"])
            # Chunks are published after the start of the step, which is stored.
            await room.shown(log, "Started step 1")
            story.status(WireStatus.PROCESSING, WireStatus.IDLE)
            story.step(1, ["Let me", " think", " about it."])
            gateway.tell(4)
            # Before any of the text is stored.
            await room.shown(log, "Let me think")
            hesitant.go_on.set()
            await room.shown(log, "Let me think about it.\n")
            gateway.tell()
            os.write(ours, b"\x04")
            assert await process.wait() == 0, log.read_text()
        finally:
            os.close(ours)
            os.close(theirs)
    shown = log.read_text()
    assert shown.count("Let me") == 1
    assert shown.count("about it.") == 1
    assert "  Started step 1\nLet me think about it.\n> " in shown


async def test_a_pipe_gets_whole_answers(room: Room) -> None:
    story = Tale()
    gateway = Gateway(story, token=None)
    async with gateway.open(), room.answering(gateway=gateway.url) as http:
        story.session_id = UUID(await a_session(http))
        shown = await room.shows("chat", story.session_id, typed="hello\n")

    assert shown.splitlines()[-1] == "Hello!"
    assert gateway.connections == 1


async def test_chat_works_without_a_reachable_gateway(room: Room) -> None:
    async with room.answering(gateway="ws://127.0.0.1:9"):
        shown = await room.shows("chat", typed="hello\n")

    assert shown.splitlines()[-1] == "Hello!"


async def begun(http: httpx2.AsyncClient, session: str) -> Any:
    """The only execution of a session, once there is one."""

    async def listed() -> Any:
        return (await http.get("/agent/executions", params={"session_id": session})).json()["items"]

    await until("it begins", listed)
    return (await listed())[0]


# Listing.


async def test_sessions_are_listed_page_by_page(room: Room, http: httpx2.AsyncClient) -> None:
    made = [await a_session(http, title=title) for title in ("A trip", "Two\nlines", "Another trip")]
    await http.patch(f"/agent/sessions/{made[0]}", json={"status": "closed"})

    first = (await room.shows("sessions", "--limit", 2)).splitlines()
    cursor = first[2].removeprefix("more: --cursor ")
    second = (await room.shows("sessions", "--limit", 1, "--cursor", cursor)).splitlines()
    closed = (await room.shows("sessions", "--status", "closed")).splitlines()
    found = (await room.shows("sessions", "--search", "trip")).splitlines()

    assert [line.split()[0] for line in (*first[:2], *second)] == made[::-1]
    assert re.fullmatch(r"\S+  active    20\S+Z  Two lines", first[1])
    assert closed == second
    assert [line.split()[0] for line in found] == [made[2], made[0]]
