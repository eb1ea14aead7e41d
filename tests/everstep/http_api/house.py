"""An installation that serves HTTP in this process, with real PostgreSQL and Temporal servers."""

from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from functools import cache
from types import SimpleNamespace
from typing import Any
from uuid import uuid4

import httpx2
import jwt
from fastapi import FastAPI
from starlette.routing import BaseRoute
from temporalio.client import Client as TemporalClient

from everstep.agent_domain.agents.drivers import Model
from everstep.agent_domain.errors import StoreUnavailable
from everstep.agent_domain.tools.inquiry import ModelChoice
from everstep.client.client import Client
from everstep.client.context_validation import ContextRules
from everstep.client.reconciler import Reconciler
from everstep.client.schedule_entry import ScheduleEntry
from everstep.client.schedules import Schedules
from everstep.client.sessions import Sessions
from everstep.client.webhooks import Webhooks
from everstep.http_api.app import create_app
from everstep.http_api.auth import Authenticator
from everstep.http_api.authorities import Authority
from everstep.http_api.channel_authorization import Signer
from everstep.http_api.dependencies import Api, Logs
from everstep.http_api.metrics import Metrics
from everstep.http_api.sign_ins import BrowserSessions
from everstep.http_api.tokens import Tokens, sign_token
from everstep.runtime.agents import AgentBook, ModelSource, load_agents
from everstep.runtime.file_store import build_attachments
from everstep.runtime.settings import Settings
from everstep.runtime.webhook_sender import HttpSender, SealedSecrets
from everstep.runtime.worker import make_worker
from everstep.store.accounts import PostgresAccounts
from everstep.store.keys import PostgresKeys
from everstep.store.schedules import PostgresSchedules
from everstep.store.sessions import PostgresSessions
from everstep.store.sign_ins import PostgresSignIns
from everstep.store.streams import PostgresStreams
from everstep.store.webhooks import PostgresWebhooks
from tests.engines import open_engine
from tests.workflows.harness import eventually

AGENTS = "tests.everstep.http_api.clerk:agents"
SECRET = "a secret of the tests, which everybody knows"  # noqa: S105 -- no secret
ORIGIN = "https://shop.example"
TICKET = "/agent/gateway/ticket"
"""Where a page gets a ticket for its own connection to the gateway."""

Answer = httpx2.Response


class NoModels:
    """The agents of these tests have their own models."""

    def model(self, choice: ModelChoice = None) -> Model:
        raise LookupError(choice)


async def _no_log(*_: object) -> AsyncGenerator[bytes]:
    raise StoreUnavailable("there are no feeds in these tests")


@dataclass(frozen=True)
class ApiSetup:
    """The parts of an installation; each test has its own tenant."""

    sessions: Sessions
    keys: PostgresKeys
    settings: Settings
    models: ModelSource = field(default_factory=NoModels)
    tenant: str = field(default_factory=lambda: f"tenant-{uuid4().hex}")

    @property
    def api(self) -> Api:
        """The API with the parts that its process has."""
        return Api(
            self.sessions,
            self.keys,
            PostgresAccounts(self.keys.engine),
            PostgresSchedules(self.keys.engine),
            self.webhooks,
            PostgresStreams(self.keys.engine),
            Authenticator(Tokens(SECRET), self.keys),
            Signer("everstep", "hush"),
            allowed_origins=(ORIGIN,),
            browser_sessions=self.browser_sessions,
            logs=Logs(_no_log, PostgresStreams(self.keys.engine)),
        )

    @property
    def browser_sessions(self) -> BrowserSessions:
        """The sessions of browsers."""
        return BrowserSessions(PostgresSignIns(self.keys.engine), Authority.of(Tokens(SECRET)))

    @property
    def reconciler(self) -> Reconciler:
        """A reconciler without a grace period."""
        return Reconciler(self.sessions, grace=0)

    def token(self, user_id: str, *scopes: str, tenant: str | None = None, **claims: Any) -> str:
        """A bearer token for this user, optionally with other claims."""
        token = sign_token(SECRET, user_id, tenant or self.tenant, " ".join(scopes))
        if not claims:
            return token
        signed = jwt.decode(token, options={"verify_signature": False})
        return jwt.encode({**signed, **claims}, SECRET, "HS256")

    @property
    def webhooks(self) -> Webhooks:
        """Webhooks at any address."""
        return Webhooks(
            PostgresWebhooks(self.keys.engine), HttpSender(allows_private=True), SealedSecrets(None)
        )

    @asynccontextmanager
    async def open_worker(self) -> AsyncGenerator[None]:
        """Run a worker in this process."""
        client = self.sessions.client
        book = AgentBook(client.agents.values(), self.models)
        async with make_worker(
            client.temporal,
            client.store,
            book,
            self.settings,
            schedules=ScheduleEntry(self.sessions, Schedules(client, PostgresSchedules(self.keys.engine))),
            ended=self.sessions.on_end,
            attachments=client.attachments,
        ):
            yield


@dataclass(frozen=True)
class ApiCaller:
    """An authenticated caller of the API."""

    http: httpx2.AsyncClient
    api_setup: ApiSetup
    app: FastAPI

    async def get(self, path: str, **query: Any) -> Any:
        """The body of a successful GET."""
        return _body_of_success(await self.http.get(path, params=query))

    async def post(self, path: str, body: Any = None, *, key: str | None = None) -> Any:
        """The body of a successful POST."""
        return _body_of_success(await self.send_post(path, body, key=key))

    async def send_post(self, path: str, body: Any = None, *, key: str | None = None) -> Answer:
        """The response to a POST."""
        headers = {"Idempotency-Key": key} if key else {}
        return await self.http.post(path, json=body, headers=headers)

    async def create_session(self, **given: Any) -> str:
        """A new session."""
        return (await self.post("/agent/sessions", given))["id"]

    async def post_message(self, session: str, content: str, **given: Any) -> Any:
        """Post a message to a session."""
        return await self.post(f"/agent/sessions/{session}/messages", {"content": content, **given})

    async def upload(self, data: bytes, name: str | None = None, media_type: str | None = None) -> Any:
        """The reference of an uploaded file."""
        return _body_of_success(await self.send_file(data, name, media_type))

    async def send_file(
        self, data: bytes, name: str | None = None, media_type: str | None = None, *, key: str | None = None
    ) -> Answer:
        """The response to an upload."""
        headers = {"Idempotency-Key": key} if key else {}
        headers |= {"Content-Type": media_type} if media_type else {}
        params = {} if name is None else {"name": name}
        return await self.http.post("/agent/attachments", content=data, params=params, headers=headers)

    async def start_execution(self, content: str) -> str:
        """Start an execution without a session."""
        return (await self.post("/agent/executions", {"content": content}))["id"]

    async def wait_for_status(self, execution: str, *statuses: str) -> Any:
        """The execution, once it has one of these statuses."""

        row: Any = None

        async def has_status() -> bool:
            nonlocal row
            row = await self.get(f"/agent/executions/{execution}")
            return row["status"] in statuses

        await eventually(has_status)
        return row

    async def wait_for_request(self, execution: str) -> Any:
        """The request for which the execution waits."""
        await self.wait_for_status(execution, "paused")
        return (await self.get(f"/agent/executions/{execution}/requests"))["items"][0]


def _body_of_success(answer: Answer) -> Any:
    assert answer.status_code < 300, (answer.status_code, answer.text)
    return answer.json() if answer.content else None


def assert_problem(answer: Answer, status: int, *words: str) -> Any:
    """The problem document of an error response."""
    assert answer.status_code == status, answer.text
    assert answer.headers["content-type"] == "application/problem+json"
    problem = answer.json()
    assert problem["status"] == status
    assert problem["request_id"] == answer.headers["x-request-id"]
    for word in words:
        assert word in f"{problem['title']}\n{problem['detail']}\n{problem.get('errors')}", problem
    return problem


WIRES: Mapping[str, str] = {
    "/agui/": "application/json",
    "/ai/": "text/plain; charset=utf-8",
    "/mcp": "application/json",
    "/v1/": "application/json",
}
"""The paths of wires, and the media type of their errors, which have the form of their protocol."""


def assert_refused(answer: Answer, path: str, status: int, *words: str) -> None:
    """An error response, in the form of its address."""
    form = next((form for prefix, form in WIRES.items() if path.startswith(prefix)), None)
    if form is None:
        assert_problem(answer, status, *words)
        return
    assert answer.status_code == status, answer.text
    assert answer.headers["content-type"] == form
    for word in words:
        assert word in answer.text


MakeCaller = Callable[..., Awaitable[ApiCaller]]


def make_app(api: Api) -> FastAPI:
    """The application, with the routes of the first one.

    FastAPI prepares them at an application's first request, which takes a fifth of a second, and describes
    them in another second.
    """
    app = create_app(api)
    _ROUTES.extend(() if _ROUTES else app.router.routes)
    app.router.routes[:] = _ROUTES
    app.openapi = described_api
    return app


@cache
def described_api() -> dict[str, Any]:
    """The API's own description."""
    nothing: Any = SimpleNamespace(allowed_origins=(), allowed_hosts=(), metrics=Metrics())
    return create_app(nothing).openapi()


_ROUTES: list[BaseRoute] = []


@asynccontextmanager
async def open_callers(api_setup: ApiSetup) -> AsyncGenerator[MakeCaller]:
    """Creates callers by name and scopes, in this test's tenant unless another is named."""
    app = make_app(api_setup.api)
    async with AsyncExitStack() as stack:

        async def sign_in(
            user_id: str = "ann", *scopes: str, tenant: str | None = None, **claims: Any
        ) -> ApiCaller:
            token = api_setup.token(user_id, *scopes, tenant=tenant, **claims)
            http = http_client(app, {"Authorization": f"Bearer {token}"})
            return ApiCaller(await stack.enter_async_context(http), api_setup, app)

        yield sign_in


def http_client(app: FastAPI, headers: dict[str, str] | None = None) -> httpx2.AsyncClient:
    """A client that sends requests to the application."""
    transport = httpx2.ASGITransport(app)
    return httpx2.AsyncClient(transport=transport, base_url="http://api.test", headers=headers)


@asynccontextmanager
async def open_api_setup(
    database: str, temporal: TemporalClient, tenant: str | None = None
) -> AsyncGenerator[ApiSetup]:
    """An installation on this database."""
    settings = Settings(task_queue=f"test-{uuid4().hex}", graceful_shutdown_seconds=0.2)
    known = {agent.descriptor.name: agent for agent in load_agents(AGENTS)}
    async with open_engine(database) as engine:
        store = PostgresSessions(engine)
        attachments = build_attachments(settings, engine)
        client = Client(temporal, store, known, settings.task_queue, attachments=attachments)
        sessions = Sessions(client, store, "clerk", ContextRules(frozenset({"order", "ticket"})))
        api_setup = ApiSetup(sessions, PostgresKeys(engine), settings)
        yield ApiSetup(sessions, api_setup.keys, settings, tenant=tenant) if tenant else api_setup
