"""Many callers at once."""

import asyncio
from datetime import datetime
from itertools import pairwise
from typing import Any

import pytest

from tests.everstep.http_api.house import ApiCaller, MakeCaller


async def executions(person: ApiCaller, session: str) -> list[Any]:
    """All executions of a session, oldest first."""
    page = await person.get("/agent/executions", session_id=session, limit=200)
    assert page["next_cursor"] is None
    return page["items"][::-1]


@pytest.mark.parametrize("crowd", [8, pytest.param(200, marks=pytest.mark.slow)])
async def test_concurrent_messages_are_processed_one_after_the_other(
    ann: ApiCaller, work: None, crowd: int
) -> None:
    """8.3.1"""
    session = await ann.create_session()
    path = f"/agent/sessions/{session}/messages"
    sent = await asyncio.gather(
        *(ann.send_post(path, {"content": f"Message {n}"}, key=f"key-{n}") for n in range(crowd))
    )
    assert {answer.status_code for answer in sent} == {201}

    async def has_ended_all() -> bool:
        return {e["status"] for e in await executions(ann, session)} == {"completed"}

    # More than the default minute, because there are many.
    async with asyncio.timeout(120):
        while not await has_ended_all():  # noqa: ASYNC110 -- there is no event to wait for
            await asyncio.sleep(0.2)
    ended = await executions(ann, session)
    assert len(ended) == crowd
    assert {e["id"] for e in ended} == {answer.json()["execution_id"] for answer in sent}
    spans = [
        (datetime.fromisoformat(e["started_at"]), datetime.fromisoformat(e["completed_at"])) for e in ended
    ]
    for (_, end), (start, _) in pairwise(spans):
        assert end <= start
    del work


async def test_many_concurrent_callers_are_all_answered(sign_in: MakeCaller) -> None:
    people = [await sign_in(f"person-{number}") for number in range(12)]

    async def busy(person: ApiCaller) -> None:
        for number in range(3):
            sent = await person.post("/agent/messages", {"content": f"Hello {number}"}, key=f"key-{number}")
            await person.get(f"/agent/sessions/{sent['session_id']}/messages")
        assert len((await person.get("/agent/sessions"))["items"]) == 3

    await asyncio.gather(*map(busy, people))
