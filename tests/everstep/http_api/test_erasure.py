"""Deleting a session erases the API's stored responses about it."""

from collections.abc import Sequence
from typing import Any
from uuid import UUID, uuid4

import pytest
from fastapi.routing import APIRoute
from sqlalchemy import text

from everstep.agent_domain.storage.keys import StoredResponse
from everstep.http_api.routes import answer_feedback, attachments, broadcasting, executions, sessions
from everstep.http_api.schemas.responses import ChannelAuth, subject_of
from tests.everstep.http_api.house import ApiCaller, ApiSetup

POSTS = [
    route
    for module in (sessions, executions, attachments, answer_feedback, broadcasting)
    for route in module.routes.routes
    if isinstance(route, APIRoute) and "POST" in (route.methods or ())
]


@pytest.mark.parametrize("route", POSTS, ids=lambda route: route.path)
def test_every_stored_answer_belongs_to_an_object(route: APIRoute) -> None:
    """8.7.1: or contains no text of a user."""
    ids = {"id": str(UUID(int=1)), "session_id": str(UUID(int=2)), "execution_id": str(UUID(int=3))}

    assert subject_of(route.response_model, ids) or route.response_model is ChannelAuth


async def test_a_deleted_session_leaves_no_answer(ann: ApiCaller, api_setup: ApiSetup, work: None) -> None:
    """8.7.1"""
    session = (await ann.post("/agent/sessions", {"title": "A trip"}, key="k-1"))["id"]
    said = f"/agent/sessions/{session}/messages"
    asking = (await ann.post(said, {"content": "ask me"}, key="k-2"))["execution_id"]
    await ann.wait_for_request(asking)
    await ann.post(f"/agent/executions/{asking}/steer", {"content": "Hurry"}, key="k-3")
    await ann.post(f"/agent/executions/{asking}/input", {"text": "Friday"}, key="k-4")
    await ann.wait_for_status(asking, "completed")
    forked = await ann.post(f"/agent/executions/{asking}/fork", {"step": 0, "content": "x"}, key="k-5")
    await ann.wait_for_status(forked["id"], "completed")
    begun = await ann.post("/agent/messages", {"content": "Another one"}, key="k-6")
    await ann.wait_for_status(begun["execution_id"], "completed")
    alone = await ann.post("/agent/executions", {"content": "Alone"}, key="k-7")
    assert await stored_keys(api_setup) == ["k-1", "k-2", "k-3", "k-4", "k-5", "k-6", "k-7"]

    await ann.http.delete(f"/agent/sessions/{session}")

    assert await stored_keys(api_setup) == ["k-6", "k-7"]
    await ann.http.delete(f"/agent/sessions/{begun['session_id']}")
    assert await stored_keys(api_setup) == ["k-7"]
    await ann.wait_for_status(alone["id"], "completed")
    del work


async def test_an_answer_after_the_deletion_is_not_stored(ann: ApiCaller, api_setup: ApiSetup) -> None:
    """8.7.1"""
    session = await ann.create_session()
    await ann.http.delete(f"/agent/sessions/{session}")

    for late in (
        StoredResponse(201, {"text": "hers"}, "digest", session_id=UUID(session)),
        StoredResponse(201, {"text": "hers"}, "digest", execution_id=uuid4()),
    ):
        assert await api_setup.keys.remember(api_setup.tenant, "ann", "k-1", late) == late
        assert await api_setup.keys.find_response(api_setup.tenant, "ann", "k-1") is None


async def stored_keys(api_setup: ApiSetup) -> Sequence[str]:
    """The keys of all answers that are stored for this tenant."""
    wanted = text("SELECT key FROM agent_answers WHERE tenant_id = :tenant ORDER BY key")
    async with api_setup.keys.engine.connect() as connection:
        found: Sequence[Any] = (await connection.execute(wanted, {"tenant": api_setup.tenant})).all()
    return [row.key for row in found]
