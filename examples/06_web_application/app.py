"""A web application with an agent: a login and a page of its own, and Everstep behind them.

uvicorn app:app --port 8090
"""

import os
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Annotated, Literal
from uuid import UUID

import httpx2
import jwt
from fastapi import Depends, FastAPI, Header
from pydantic import BaseModel
from starlette.responses import FileResponse, Response

HERE = Path(__file__).parent
API = os.environ.get("EVERSTEP_API_URL", "http://127.0.0.1:8080")
SECRET = os.environ["EVERSTEP_AUTH_SECRET"]
"""The secret of the installation. It stays on the server: browsers get tokens that are signed with it."""

app = FastAPI()


APPROVERS = {"ann"}
"""The people who may decide about refunds."""


def current_user() -> str:
    """The person who is logged in. Replace this function by your login."""
    return "ann"


User = Annotated[str, Depends(current_user)]
Key = Annotated[str | None, Header(alias="Idempotency-Key")]


def token_for(user: str) -> str:
    """A token that opens what belongs to this person, for ten minutes."""
    scope = "approve" if user in APPROVERS else ""
    claims = {"sub": user, "scope": scope, "exp": datetime.now(UTC) + timedelta(minutes=10)}
    return jwt.encode(claims, SECRET, "HS256")


async def call(user: str, method: str, path: str, body: object = None, key: str | None = None) -> Response:
    """Call the HTTP API of Everstep as this person, and pass its answer on, errors included."""
    headers = {"Authorization": f"Bearer {token_for(user)}", **({"Idempotency-Key": key} if key else {})}
    async with httpx2.AsyncClient(base_url=API, timeout=30) as http:
        answer = await http.request(method, path, json=body, headers=headers)
    return Response(answer.content, answer.status_code, media_type=answer.headers.get("content-type"))


class Message(BaseModel):
    """A message of the user."""

    content: str


class Decision(BaseModel):
    """A decision about a call; the digest names the arguments that the person has seen."""

    decision: Literal["approve", "deny"]
    args_digest: str


@app.post("/messages")
async def begin(message: Message, user: User, key: Key = None) -> Response:
    """Begin a session."""
    return await call(user, "POST", "/agent/messages", {"content": message.content}, key)


@app.post("/sessions/{session_id}/messages")
async def send(session_id: UUID, message: Message, user: User, key: Key = None) -> Response:
    """Send a message to a session; it answers an open question."""
    body = {"content": message.content}
    return await call(user, "POST", f"/agent/sessions/{session_id}/messages", body, key)


@app.get("/sessions/{session_id}/messages")
async def messages(session_id: UUID, user: User) -> Response:
    """Read the messages of a session, newest first."""
    return await call(user, "GET", f"/agent/sessions/{session_id}/messages?limit=200")


@app.get("/executions/{execution_id}/steps")
async def steps(execution_id: UUID, user: User) -> Response:
    """Read the steps of an execution, with the stored text of each."""
    return await call(user, "GET", f"/agent/executions/{execution_id}/steps")


@app.post("/executions/{execution_id}/approvals/{request_id}")
async def decide(
    execution_id: UUID, request_id: UUID, decision: Decision, user: User, key: Key = None
) -> Response:
    """Approve a call or deny it. The API refuses it to people without the scope `approve`."""
    path = f"/agent/executions/{execution_id}/approvals/{request_id}"
    return await call(user, "POST", path, decision.model_dump(), key)


@app.get("/gateway")
async def gateway(user: User) -> Response:
    """The address of the gateway."""
    return await call(user, "GET", "/agent/gateway")


@app.get("/token")
async def token(user: User) -> Response:
    """A token with which this person's browser watches."""
    return Response(token_for(user), media_type="text/plain", headers={"Cache-Control": "no-store"})


@app.get("/everstep-client.js")
async def client() -> Response:
    """The client for browsers, from the API, so that both have the same version."""
    async with httpx2.AsyncClient(base_url=API) as http:
        answer = await http.get("/everstep-client.js")
    return Response(answer.content, answer.status_code, media_type="text/javascript")


@app.get("/")
async def page() -> FileResponse:
    """The page."""
    return FileResponse(HERE / "index.html")


@app.get("/page.js")
async def script() -> FileResponse:
    """The page's script."""
    return FileResponse(HERE / "page.js", headers={"Cache-Control": "no-cache"})
