"""The commands about sessions, over a real API: a line is sent once, and its results are shown."""

import asyncio
import json
import os
import pty
import re
import signal
from collections.abc import AsyncGenerator, Callable, Coroutine, Generator, Mapping
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from io import FileIO
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import httpx2
import pytest
import pytest_asyncio
from click.testing import CliRunner, Result
from starlette.types import ASGIApp, Receive, Scope, Send

from everstep.agent_domain.fairness.tenant_limits import LimitBook, TenantLimits
from everstep.agent_domain.loop.status import WireStatus
from everstep.agent_domain.storage.usage_report import UsageGroup
from everstep.agent_domain.values import EMPTY
from everstep.cli import remote
from everstep.cli.decisions import HOW_TO_DECIDE
from everstep.cli.main import commands
from everstep.client.client import Client
from everstep.client.sessions import Sessions
from everstep.http_api.tokens import sign_token
from everstep.runtime.agents import load_agents
from everstep.runtime.data_folder import API_URL_FILE
from everstep.runtime.file_store import build_attachments
from everstep.runtime.local_secret import make_local_secret
from everstep.runtime.serving import serve_app
from everstep.runtime.settings import Settings
from everstep.store.keys import PostgresKeys
from everstep.store.sessions import PostgresSessions
from tests.acceptance.front import a_free_port
from tests.acceptance.harness import Installation, Nursery, Process, environment, until
from tests.engines import open_engine
from tests.everstep.cli.agents import hesitant
from tests.everstep.cli.desk import AGENTS
from tests.everstep.cli.test_json_output import documented_keys
from tests.everstep.http_api.house import SECRET, ApiSetup, make_app
from tests.everstep.streams.scripted import Fault, ScriptedExecution, ScriptedGateway

pytestmark = pytest.mark.asyncio(loop_scope="session")

NOWHERE = "http://127.0.0.1:9"


@dataclass
class ChatSetup:
    """The API on a free port, and its callers."""

    house: ApiSetup
    folder: Path
    nursery: Nursery
    port: int = field(default_factory=a_free_port)
    processes: list[Process] = field(default_factory=list[Process])

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def environment(self) -> dict[str, str]:
        """The environment of a command; it has no addresses of servers."""
        token = self.house.token("ann", "approve", "approve:edit")
        return environment(EVERSTEP_API_URL=self.url, EVERSTEP_API_TOKEN=token)

    @asynccontextmanager
    async def open_api(
        self, around: Callable[[ASGIApp], ASGIApp] = lambda app: app, gateway: str | None = None
    ) -> AsyncGenerator[httpx2.AsyncClient]:
        """With the API, and a second caller."""
        headers = {"Authorization": f"Bearer {self.house.token('ann')}"}
        app = around(make_app(replace(self.house.api, gateway_url=lambda: gateway)))
        async with (
            serve_app(app, "127.0.0.1", self.port),
            httpx2.AsyncClient(base_url=self.url, headers=headers) as http,
        ):
            yield http

    async def run_command(
        self, *arguments: object, typed: str = "", told: Mapping[str, str | None] = EMPTY
    ) -> Result:
        """A command's output and exit code."""
        given: dict[str, str | None] = {**self.environment, **told}
        # In a thread: the command has its own event loop.
        return await asyncio.to_thread(_invoke, [*map(str, arguments)], typed, given)

    async def output_of(self, *arguments: object, typed: str = "") -> str:
        """The output of a successful command."""
        result = await self.run_command(*arguments, typed=typed)
        assert result.exit_code == 0, result.output
        return result.output

    async def error_of(self, *arguments: object, **told: str | None) -> str:
        """The single error line of a failing command."""
        result = await self.run_command(*arguments, told=told)
        assert result.exit_code == 1, result.output
        (line,) = result.stderr.splitlines()
        return line.removeprefix("Error: ")

    async def start_process(self, *arguments: str, stdin: int | None = None) -> tuple[Process, Path]:
        """A command as a process, and its output."""
        log = self.folder / f"{len(self.processes)}.log"
        log.touch()
        process = await self.nursery.start(*arguments, log=log, environment=self.environment, stdin=stdin)
        self.processes.append(process)
        return process, log

    async def wait_for_output(self, log: Path, words: str) -> None:
        """Wait until a process has printed this."""
        await until(f"it shows {words}", lambda: words in log.read_text() or self.has_ended())
        assert words in log.read_text(), log.read_text()

    def has_ended(self) -> bool:
        return self.processes[-1].code is not None


@contextmanager
def open_pipe() -> Generator[tuple[int, FileIO]]:
    """The end of a pipe that a process reads from, and the one to write to."""
    theirs, ours = os.pipe()
    with FileIO(theirs), FileIO(ours, "w") as writing:
        yield theirs, writing


def _invoke(arguments: list[str], typed: str, told: dict[str, str | None]) -> Result:
    return CliRunner().invoke(commands, arguments, input=typed, env=told, prog_name="everstep")


@pytest_asyncio.fixture(loop_scope="session")
async def room(installation: Installation, tmp_path: Path) -> AsyncGenerator[ChatSetup]:
    """With a worker, without the API."""
    settings = Settings(task_queue=f"chat-{uuid4().hex}", graceful_shutdown_seconds=0.2)
    known = {agent.descriptor.name: agent for agent in load_agents(AGENTS)}
    async with open_engine(installation.database_url) as engine:
        store, files = PostgresSessions(engine), build_attachments(settings, engine)
        client = Client(installation.temporal, store, known, settings.task_queue, attachments=files)
        house = ApiSetup(Sessions(client, store, "clerk"), PostgresKeys(engine), settings)
        room = ChatSetup(house, tmp_path, installation.nursery)
        async with house.open_worker():
            yield room
        for process in room.processes:
            await process.kill()


@pytest_asyncio.fixture(loop_scope="session")
async def http(room: ChatSetup) -> AsyncGenerator[httpx2.AsyncClient]:
    """With the API."""
    async with room.open_api() as http:
        yield http


async def post_message(http: httpx2.AsyncClient, session: str, **given: str) -> Any:
    """Post a message as the second caller."""
    answer = await http.post(f"/agent/sessions/{session}/messages", json=given)
    assert answer.status_code == 201, answer.text
    return answer.json()


async def a_session(http: httpx2.AsyncClient, **given: str) -> str:
    return (await http.post("/agent/sessions", json=given)).json()["id"]


async def stored_texts(http: httpx2.AsyncClient, session: str, role: str = "user") -> list[str]:
    """The stored messages, in order."""
    listed = (await http.get(f"/agent/sessions/{session}/messages", params={"limit": 200})).json()
    return [message["content"] for message in listed["items"][::-1] if message["role"] == role]


def status_check(
    http: httpx2.AsyncClient, execution: str, *statuses: str
) -> Callable[[], Coroutine[Any, Any, bool]]:
    async def has_status() -> bool:
        return (await http.get(f"/agent/executions/{execution}")).json()["status"] in statuses

    return has_status


def session_id_in(output: str) -> str:
    """The session that a chat has created."""
    found = re.search(r"^  session (\S+)$", output, re.MULTILINE)
    assert found, output
    return found[1]


# Chatting.


async def test_lines_are_answered_one_after_the_other(room: ChatSetup, http: httpx2.AsyncClient) -> None:
    shown = await room.output_of("chat", typed="hello\n\nhello again\n")

    session = session_id_in(shown)
    assert shown.splitlines() == [
        "  talking to clerk",
        f"  session {session}",
        "  Started step 1",
        "Hello!",
        "  Started step 1",
        "Hello!",
    ]
    assert await stored_texts(http, session) == ["hello", "hello again"]


async def test_the_first_line_takes_files_along(
    room: ChatSetup, http: httpx2.AsyncClient, tmp_path: Path
) -> None:
    """5.6.1"""
    (tmp_path / "notes.md").write_text("# Notes")
    shown = await room.output_of("chat", "--attach", tmp_path / "notes.md", typed="hello\nagain\n")

    session = session_id_in(shown)
    listed = (await http.get(f"/agent/sessions/{session}/messages", params={"limit": 200})).json()
    sent = [message for message in listed["items"][::-1] if message["role"] == "user"]
    assert [[file["name"] for file in message["attachments"]] for message in sent] == [["notes.md"], []]
    resumed = await room.output_of("chat", session, typed="bye\n")
    assert "> hello [notes.md]" in resumed


async def test_the_next_line_answers_a_question(room: ChatSetup, http: httpx2.AsyncClient) -> None:
    shown = await room.output_of("chat", typed="choose\nhigh\n")

    assert shown.count("Which floor?\nchoices: high, low\n") == 1
    assert shown.splitlines()[-1] == "It is done."
    assert await stored_texts(http, session_id_in(shown)) == ["choose", "high"]


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
    room: ChatSetup, message: str, wrong: str, why: str, right: str
) -> None:
    """8.5.4"""
    shown = await room.output_of("chat", typed=f"{message}\n{wrong}\n{right}\n")

    before, _, after = shown.partition(why)
    question = before.splitlines()[-2:]
    assert after.splitlines()[1:3] == question
    assert shown.splitlines()[-1] == "It is done."


async def test_a_form_shows_its_choices(room: ChatSetup, http: httpx2.AsyncClient) -> None:
    result = await room.run_command("chat", typed="fill in\n")

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
async def test_a_call_is_decided_with_its_shown_digest(room: ChatSetup, decision: str, outcome: str) -> None:
    """8.6.2"""
    shown = await room.output_of("chat", typed=f"pay\n{decision}\n")

    asked = f'transfer waits for approval: {{"euros":80}}\n{HOW_TO_DECIDE}\n'
    assert shown.count(asked) == 1
    assert outcome in shown.partition(asked)[2]
    assert shown.splitlines()[-1] == "It is done."


@pytest.mark.usefixtures("http")
async def test_an_unclear_decision_decides_nothing(room: ChatSetup) -> None:
    """8.6.2"""
    refusals = {
        "yes please": "type a, or d and an optional reason",
        "a little later": "type a, or d and an optional reason",
        "e": "type a, or d and an optional reason",
        "e {": "what follows is not valid JSON",
        "e [1]": "what follows",
        "e {}": "Required arguments are missing: euros",
    }
    shown = await room.output_of("chat", typed="\n".join(["pay", *refusals, "d\n"]))

    asked, *again = shown.split("waits for approval: ")
    assert "refused: " not in asked
    for why, answer in zip(refusals.values(), again, strict=False):
        assert f"refused: {why}" in answer
    assert len(again) == len(refusals) + 1
    assert "Denied by user" in again[-1]


@pytest.mark.usefixtures("http")
async def test_a_call_that_others_decide_about_is_not_decided_here(room: ChatSetup) -> None:
    """8.6.7: the person reads who decides, and a refused decision does not end the conversation."""
    token = {"EVERSTEP_API_TOKEN": room.house.token("ann")}
    shown = (await room.run_command("chat", typed="pay\na\nd\n", told=token)).output

    assert "decided by others: scope:approve" in shown
    assert shown.count("refused: Only callers with the scope 'approve' may decide about this call") == 2
    assert "transferred" not in shown


async def test_tool_output_cannot_control_the_terminal(room: ChatSetup, http: httpx2.AsyncClient) -> None:
    shown = await room.output_of("chat", typed="shout\n")

    assert "boo" in shown
    assert "\x1b" not in shown


@pytest.mark.usefixtures("http")
async def test_an_execution_that_fails_fails_the_command(room: ChatSetup) -> None:
    """5.4.4: `chat` is for viewers, who read the kind of an exception and a reference, and not its text."""
    result = await room.run_command("chat", "--agent", "broken", typed="hello\n")

    assert result.exit_code == 1
    assert re.search(r"^! ValueError \(ref [0-9a-f]+\)$", result.output, re.MULTILINE)
    assert "The model is on strike" not in result.output


@pytest.mark.usefixtures("http")
async def test_an_open_request_is_reported_when_the_input_ends(room: ChatSetup) -> None:
    result = await room.run_command("chat", typed="choose\n")

    session = session_id_in(result.output)
    assert result.exit_code == 1
    assert result.output.splitlines()[-1] == f"The execution continues. To return: everstep chat {session}"


# Resuming.


async def test_a_resumed_chat_shows_the_conversation_and_the_open_question(
    room: ChatSetup, http: httpx2.AsyncClient
) -> None:
    session = await a_session(http, title="Floors")
    sent = await post_message(http, session, content="hello")
    await until("it has ended", status_check(http, sent["execution_id"], "completed"))
    sent = await post_message(http, session, content="choose")
    await until("it asks", status_check(http, sent["execution_id"], "paused"))

    shown = await room.output_of("chat", session, typed="low\n")

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
    room: ChatSetup, http: httpx2.AsyncClient
) -> None:
    session = await a_session(http)
    await http.patch(f"/agent/sessions/{session}", json={"status": "archived"})

    result = await room.run_command("chat", session, typed="hello\n")

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
    room: ChatSetup, http: httpx2.AsyncClient, on_busy: str, taken: str, statuses: list[str]
) -> None:
    session = await a_session(http, agent="hesitant")
    sent = await post_message(http, session, content="Think")
    await until("it thinks", status_check(http, sent["execution_id"], "running"))
    with open_pipe() as (theirs, ours):
        process, log = await room.start_process("chat", session, "--on-busy", on_busy, stdin=theirs)
        ours.write(b"Never mind\n")
        ours.close()
        await room.wait_for_output(log, taken)
    hesitant.go_on.set()

    assert await process.wait() == 0, log.read_text()
    assert log.read_text().splitlines()[-1] == "Fine."
    listed = (await http.get("/agent/executions", params={"session_id": session})).json()["items"]
    assert [row["status"] for row in listed] == statuses


@pytest.mark.usefixtures("hesitant_model_waits")
async def test_leaving_prints_the_command_to_resume(room: ChatSetup, http: httpx2.AsyncClient) -> None:
    session = await a_session(http, agent="hesitant")
    sent = await post_message(http, session, content="Think")
    with open_pipe() as (theirs, _):
        process, log = await room.start_process("chat", session, stdin=theirs)
        await room.wait_for_output(log, "> Think")
        process.signal(signal.SIGINT)

        assert await process.wait() == 130
    assert log.read_text().splitlines()[-1] == f"The execution continues. To return: everstep chat {session}"
    assert "Traceback" not in log.read_text()
    assert await status_check(http, sent["execution_id"], "pending", "running")()
    following = asyncio.create_task(room.output_of("chat", session))
    hesitant.go_on.set()
    assert (await following).splitlines()[-1] == "Let me think about it."


# Outages.


async def test_a_restarted_api_loses_no_line(room: ChatSetup) -> None:
    """8.2.2"""
    with open_pipe() as (theirs, ours):
        async with room.open_api():
            process, log = await room.start_process("chat", stdin=theirs)
            ours.write(b"hello\n")
            await room.wait_for_output(log, "Hello!")
        ours.write(b"choose\n")
        await room.wait_for_output(log, f"no answer from {room.url}")
        async with room.open_api() as http:
            await room.wait_for_output(log, "choices: high, low")
            ours.write(b"high\n")
            ours.close()

            assert await process.wait() == 0, log.read_text()
            session = session_id_in(log.read_text())
            assert await stored_texts(http, session) == ["hello", "choose", "high"]
        assert "trying again\nthe API answers again\n" in log.read_text()
        assert log.read_text().splitlines()[-1] == "It is done."


async def test_a_line_with_a_lost_response_is_stored_once(room: ChatSetup) -> None:
    """8.2.2"""
    lost: list[str] = []

    def lose_first_response(app: ASGIApp) -> ASGIApp:
        """Handles every message, and loses its first response."""

        async def app_losing_responses(scope: Scope, receive: Receive, send: Send) -> None:
            key = dict(scope["headers"]).get(b"idempotency-key", b"").decode()
            if scope["method"] != "POST" or key in lost:
                await app(scope, receive, send)
                return
            lost.append(key)

            async def discard(message: Any) -> None:
                del message

            await app(scope, receive, discard)
            await send({"type": "http.response.start", "status": 503, "headers": []})
            await send({"type": "http.response.body", "body": b""})

        return app_losing_responses

    async with room.open_api(lose_first_response) as http:
        shown = await room.output_of("chat", typed="choose\nhigh\n")
        assert await stored_texts(http, session_id_in(shown)) == ["choose", "high"]
    assert len(lost) == 2
    assert "is unavailable (503); trying again" in shown


async def test_a_limit_of_requests_is_waited_for_if_the_wait_is_short(room: ChatSetup) -> None:
    """18.2.10"""
    limits = TenantLimits(room.house.tenant, "ann", requests_per_second=1)
    app = make_app(replace(room.house.api, limits=lambda: LimitBook([limits])))
    async with serve_app(app, "127.0.0.1", room.port):
        shown = [await room.output_of("schedules", "list") for _ in range(3)]
        limits = replace(limits, requests_per_second=0.01)
        refused = await room.error_of("schedules", "list")

    assert f"{room.url} allows no more requests for 1 s; trying again\nthe API answers again\n" in shown[2]
    assert shown[1] in shown[2]
    assert refused.startswith("Your tenant, or you, may send no more requests now; try again in ")


async def test_a_permanent_outage_ends_the_command(room: ChatSetup, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remote, "PATIENCE_SECONDS", 0.5)
    answered = asyncio.Event()

    def fail_messages(app: ASGIApp) -> ASGIApp:
        """Fails for all messages."""

        async def failing_app(scope: Scope, receive: Receive, send: Send) -> None:
            if answered.is_set():
                await send({"type": "http.response.start", "status": 502, "headers": []})
                await send({"type": "http.response.body", "body": b""})
                return
            await app(scope, receive, send)
            if scope["method"] == "POST":
                answered.set()

        return failing_app

    async with room.open_api(fail_messages):
        result = await room.run_command("chat", typed="choose\nhigh\n")

    assert result.exit_code == 1
    *_, trying, given_up = result.stderr.splitlines()
    assert trying.endswith("is unavailable (502); trying again")
    assert given_up.endswith(
        f"The execution continues. To return: everstep chat {session_id_in(result.output)}"
    )


@pytest.mark.usefixtures("http")
async def test_usage_is_shown_by_group(room: ChatSetup) -> None:
    """4.7.5"""
    await room.output_of("chat", typed="choose\nhigh\n")
    day, tenant = f"{datetime.now(UTC):%Y-%m-%d}", room.house.tenant

    shown = {group: (await room.output_of("usage", "--by", group.value)).splitlines() for group in UsageGroup}

    assert [lines[0].split()[0] for lines in shown.values()] == ["clerk", "ann", "(none)", day, tenant]
    assert all(lines[-1].endswith(" tokens, cost unknown") for lines in shown.values())
    timed = (await room.output_of("usage", "--latency")).splitlines()[-1]
    assert re.search(r"first text \d+\.\d\d s \(p95 \d+\.\d\d s\), step \d+\.\d\d s \(p95 ", timed)
    report = json.loads(await room.output_of("usage", "--json"))
    assert [group["name"] for group in report["groups"]] == ["clerk"]
    assert "There are no executions" in (await room.run_command("usage", "--until", "2020-01-01")).stderr


# Invalid input.

NO_SESSION = str(UUID(int=7))


@pytest.mark.parametrize("command", [("chat",), ("chat", NO_SESSION), ("sessions",)], ids=" ".join)
async def test_without_a_server_the_error_says_how_to_start_one(
    room: ChatSetup, tmp_path: Path, command: tuple[str, ...]
) -> None:
    here = ("--data", tmp_path)

    away = await room.error_of(*here, *command, EVERSTEP_API_URL=NOWHERE)
    none = await room.error_of(*here, *command, EVERSTEP_API_URL=None)

    assert away.startswith(f"no answer from {NOWHERE} (")
    assert none.startswith("no API is configured: ")
    assert all("start a local installation with `everstep up`" in said for said in (away, none))


@pytest.mark.usefixtures("http")
@pytest.mark.parametrize(
    ("command", "token", "complaint"),
    [
        (("chat",), sign_token("another secret, which opens nothing here", "ann"), "The token is not valid"),
        (("chat", NO_SESSION), "esk_nothing", "The key is unknown or revoked"),
        (("chat", NO_SESSION), "two words\x7f", "the token has invalid characters"),
        (("sessions",), None, "Authentication required"),
        (("sessions",), "two words\x7f", "the token has invalid characters"),
    ],
)
async def test_a_refused_token_is_reported(
    room: ChatSetup, command: tuple[str, ...], token: str | None, complaint: str
) -> None:
    assert complaint in await room.error_of(*command, EVERSTEP_API_TOKEN=token)


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
        (("usage", "--since", "2026-01-02", "--until", "2026-01-01"), "since must be earlier than until"),
    ],
)
async def test_invalid_input_is_refused_in_one_line(
    room: ChatSetup, arguments: tuple[str, ...], complaint: str
) -> None:
    assert complaint in await room.error_of(*arguments)


async def test_a_server_that_is_not_the_api_is_reported(room: ChatSetup) -> None:
    async def page(scope: Scope, receive: Receive, send: Send) -> None:
        del scope, receive
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"<html>"})

    async with room.open_api(lambda _: page):
        complaint = await room.error_of("sessions")

    assert complaint.startswith(f"{room.url}/agent/sessions?limit=20 is not an Everstep API")


@pytest.mark.usefixtures("http")
async def test_a_list_without_a_row_says_so(room: ChatSetup) -> None:
    result = await room.run_command("sessions", "--search", "xylophone")

    assert (result.exit_code, result.output) == (0, "There are no sessions that match.\n")


async def test_input_that_is_not_utf_8_is_not_sent(room: ChatSetup, http: httpx2.AsyncClient) -> None:
    with open_pipe() as (theirs, ours):
        process, log = await room.start_process("chat", stdin=theirs)
        ours.write(b"hello \xff\n")
        ours.close()
        assert await process.wait() == 1
    assert re.search(r"Error: the input cannot be read|refused: the line contains half", log.read_text())
    assert "Traceback" not in log.read_text()


# The local installation.


async def test_a_local_installation_needs_neither_url_nor_token(room: ChatSetup, tmp_path: Path) -> None:
    """15.5.11: and has the schedules of each tenant."""
    secret = make_local_secret(tmp_path)
    (tmp_path / API_URL_FILE).write_text(f"{room.url}\n")
    given = {"EVERSTEP_API_URL": None, "EVERSTEP_API_TOKEN": None}

    async with room.open_api():
        # The API uses another secret: the local token is not accepted.
        ours = await room.error_of("--data", tmp_path, "sessions", **given)
        known = {**given, "EVERSTEP_AUTH_SECRET": SECRET}
        local = await room.run_command("--data", tmp_path, "sessions", told=known)
        tenant = room.house.tenant
        added = await room.run_command(
            "--data",
            tmp_path,
            "schedules",
            "add",
            "clerk",
            "Hi",
            "--every",
            "1h",
            "--tenant",
            tenant,
            "--json",
            told=known,
        )
        shown = ["--data", tmp_path, "schedules", "show", json.loads(added.stdout)["id"]]
        of_tenant = await room.run_command(*shown, "--tenant", tenant, told=known)
        of_default = await room.error_of(*shown, **known)
        # The local secret is shown to no other server.
        foreign = f"http://localhost:{room.port}"
        other = await room.error_of("--data", tmp_path, "sessions", "--url", foreign, EVERSTEP_API_TOKEN=None)

    assert secret
    assert ours.startswith("The token is not valid")
    assert local.exit_code == 0, local.output
    assert other.startswith("Authentication required")
    assert of_tenant.exit_code == 0, of_tenant.output
    assert of_default.startswith("There is no schedule")
    assert (await room.error_of("sessions", "--tenant", tenant)).startswith(
        "the token names the tenant: omit"
    )


# Terminals.


@pytest.mark.usefixtures("hesitant_model_waits")
async def test_a_terminal_has_a_prompt_and_ctrl_d_ends_it(room: ChatSetup, http: httpx2.AsyncClient) -> None:
    session = await a_session(http, agent="hesitant")
    ours, theirs = pty.openpty()
    try:
        process, log = await room.start_process("chat", session, stdin=theirs)
        await room.wait_for_output(log, "\n> ")
        os.write(ours, b"Think\n")

        async def thinks() -> bool:
            return await stored_texts(http, session) == ["Think"]

        await until("it is heard", thinks)
        # A line is sent while the agent works.
        os.write(ours, b"Never mind\n")
        await room.wait_for_output(log, "queued behind the running execution")
        hesitant.go_on.set()
        await room.wait_for_output(log, "Fine.\n> ")
        os.write(ours, b"\x04")

        assert await process.wait() == 0, log.read_text()
    finally:
        os.close(ours)
        os.close(theirs)
    assert log.read_text().endswith(f"Fine.\n> \nTo return: everstep chat {session}\n")


# The gateway.


@pytest.mark.usefixtures("hesitant_model_waits")
@pytest.mark.parametrize("fault", [Fault.NONE, Fault.CUT, Fault.GARBAGE])
async def test_text_is_shown_once_while_it_is_written(room: ChatSetup, fault: Fault) -> None:
    story = ScriptedExecution()
    gateway = ScriptedGateway(story, iter([*[Fault.NONE] * 3, fault]), token=None, until=0)
    async with gateway.open(), room.open_api(gateway=gateway.url) as http:
        story.session_id = UUID(await a_session(http, agent="hesitant"))
        ours, theirs = pty.openpty()
        process, log = await room.start_process("chat", str(story.session_id), stdin=theirs)
        try:
            await room.wait_for_output(log, "> ")
            os.write(ours, b"hello\n")
            story.execution_id = UUID((await only_execution(http, str(story.session_id)))["id"])
            # Chunks are published after the start of the step, which is stored.
            await room.wait_for_output(log, "Started step 1")
            story.append_status(WireStatus.PROCESSING, WireStatus.IDLE)
            story.append_step(1, ["Let me", " think", " about it."])
            gateway.publish_until(4)
            # Before any of the text is stored.
            await room.wait_for_output(log, "Let me think")
            hesitant.go_on.set()
            await room.wait_for_output(log, "Let me think about it.\n")
            gateway.publish_until()
            os.write(ours, b"\x04")
            assert await process.wait() == 0, log.read_text()
        finally:
            os.close(ours)
            os.close(theirs)
    shown = log.read_text()
    assert shown.count("Let me") == 1
    assert shown.count("about it.") == 1
    assert "  Started step 1\nLet me think about it.\n> " in shown


async def test_a_pipe_gets_whole_answers(room: ChatSetup) -> None:
    story = ScriptedExecution()
    gateway = ScriptedGateway(story, token=None)
    async with gateway.open(), room.open_api(gateway=gateway.url) as http:
        story.session_id = UUID(await a_session(http))
        shown = await room.output_of("chat", story.session_id, typed="hello\n")

    assert shown.splitlines()[-1] == "Hello!"
    assert gateway.connections == 1


async def test_chat_works_without_a_reachable_gateway(room: ChatSetup) -> None:
    async with room.open_api(gateway="ws://127.0.0.1:9"):
        shown = await room.output_of("chat", typed="hello\n")

    assert shown.splitlines()[-1] == "Hello!"


async def only_execution(http: httpx2.AsyncClient, session: str) -> Any:
    """The only execution of a session, once there is one."""

    async def list_executions() -> Any:
        return (await http.get("/agent/executions", params={"session_id": session})).json()["items"]

    await until("it begins", list_executions)
    return (await list_executions())[0]


# Listing.


async def test_sessions_are_listed_page_by_page(room: ChatSetup, http: httpx2.AsyncClient) -> None:
    made = [await a_session(http, title=title) for title in ("A trip", "Two\nlines", "Another trip")]
    await http.patch(f"/agent/sessions/{made[0]}", json={"status": "closed"})

    first = (await room.output_of("sessions", "--limit", 2)).splitlines()
    cursor = first[2].removeprefix("more: --cursor ")
    second = (await room.output_of("sessions", "--limit", 1, "--cursor", cursor)).splitlines()
    closed = (await room.output_of("sessions", "--status", "closed")).splitlines()
    found = (await room.output_of("sessions", "--search", "trip")).splitlines()

    assert [line.split()[0] for line in (*first[:2], *second)] == made[::-1]
    assert re.fullmatch(r"\S+  active    20\S+Z  Two lines", first[1])
    assert closed == second
    assert [line.split()[0] for line in found] == [made[2], made[0]]


async def test_what_was_said_is_found(room: ChatSetup, http: httpx2.AsyncClient) -> None:
    """16.6.11"""
    sent = await post_message(http, await a_session(http), content="Where is\nthe quokka?")

    (line,) = (await room.output_of("search", "quokka", "where")).splitlines()
    (found,) = (await room.output_of("search", "quokka", "--agent", "clerk", "--json")).splitlines()
    nothing = await room.run_command("search", "quokka", "--agent", "hesitant")

    assert line == f"{sent['execution_id']}    0  message    Where is the quokka?"
    assert set(json.loads(found)) == documented_keys("search")
    assert (nothing.exit_code, nothing.output) == (0, "Nothing matches.\n")
    assert "names no word" in await room.error_of("search", "--", "-quokka")
