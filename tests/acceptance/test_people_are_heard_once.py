"""A person's action is done once, also if an API process dies between its commit and its call of Temporal."""

import asyncio
import signal
from collections import Counter
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from random import Random
from typing import Any
from uuid import uuid4

import httpx2
import psycopg
import pytest

from everstep.activities.failpoints import Failpoint
from tests.acceptance.agents import ARMED
from tests.acceptance.front import Front, a_free_port
from tests.acceptance.harness import until

pytestmark = pytest.mark.asyncio(loop_scope="session")


@dataclass(frozen=True)
class ApiCaller:
    """A caller of an API process."""

    http: httpx2.AsyncClient

    async def posts(self, path: str, body: Any = None, key: str = "k-1") -> httpx2.Response:
        """Send a request, once."""
        return await self.http.post(path, json=body, headers={"Idempotency-Key": key})

    async def post(self, path: str, body: Any = None) -> Any:
        """The body of a request that succeeds."""
        answer = await self.posts(path, body, str(uuid4()))
        assert answer.status_code < 300, answer.text
        return answer.json()

    async def get(self, path: str) -> Any:
        """Read an address."""
        answer = await self.http.get(path)
        assert answer.status_code == 200, answer.text
        return answer.json()

    async def until(self, execution: str, status: str) -> Any:
        """Wait until an execution is in this state."""

        async def stands() -> bool:
            return (await self.get(f"/agent/executions/{execution}"))["status"] == status

        await until(f"an execution is {status}", stands)
        return await self.get(f"/agent/executions/{execution}")

    async def begins(self, content: str) -> tuple[str, str]:
        """Create a session whose execution waits for a person."""
        sent = await self.post("/agent/messages", {"content": content})
        await self.until(sent["execution_id"], "paused")
        return sent["session_id"], sent["execution_id"]

    async def pending_request(self, execution: str) -> Any:
        """The request that an execution waits for."""
        return (await self.get(f"/agent/executions/{execution}/requests"))["items"][0]


@asynccontextmanager
async def ann_at(front: Front) -> AsyncGenerator[ApiCaller]:
    """A caller at this process."""
    headers = {"Authorization": f"Bearer {front.key}"}
    async with httpx2.AsyncClient(base_url=front.url, headers=headers, timeout=30) as http:
        yield ApiCaller(http)


async def dies(front: Front, sent: Callable[[ApiCaller], Awaitable[httpx2.Response]]) -> None:
    """Send a request to a process that dies once it has committed."""
    doomed = replace(front, port=a_free_port(), kill_at=Failpoint.API_AFTER_COMMIT)
    api = await doomed.api()
    (front.folder / ARMED).touch()
    async with ann_at(doomed) as ann:
        with pytest.raises(httpx2.TransportError):
            await sent(ann)
    assert await api.wait() == -signal.SIGKILL


async def test_an_interrupt_is_carried_out_by_the_next_attempt(front: Front) -> None:
    """8.3.3, 8.2.9"""
    await front.api()
    async with ann_at(front) as ann:
        session, busy = await ann.begins("book")
        queued = await ann.post(f"/agent/sessions/{session}/messages", {"content": "Later"})
        path = f"/agent/sessions/{session}/messages"
        body = {"content": "Stop!", "on_busy": "interrupt"}
        await dies(front, lambda doomed: doomed.posts(path, body))
        assert (await ann.get(f"/agent/executions/{busy}"))["status"] == "paused"

        again = await ann.posts(path, body)

        assert (again.status_code, again.json()["route"]) == (201, "interrupt")
        assert (await ann.until(busy, "cancelled"))["stop_reason"] == "user_requested"
        urgent = await ann.until(again.json()["execution_id"], "completed")
        later = await ann.until(queued["execution_id"], "completed")
        assert urgent["started_at"] < later["started_at"]


@pytest.mark.slow
async def test_an_interrupt_is_carried_out_without_a_second_request(front: Front) -> None:
    """8.3.3, 8.2.9: by the reconciler of a worker or of an API process."""
    await front.api()
    async with ann_at(front) as ann:
        session, busy = await ann.begins("book")
        body = {"content": "Stop!", "on_busy": "interrupt"}
        path = f"/agent/sessions/{session}/messages"
        await dies(front, lambda doomed: doomed.posts(path, body))

        await ann.until(busy, "cancelled")


Ready = Callable[[ApiCaller], Awaitable[tuple[str, Any, Callable[[ApiCaller], Awaitable[object]]]]]


async def approving(ann: ApiCaller) -> tuple[str, Any, Callable[[ApiCaller], Awaitable[object]]]:
    """An approval, after which the execution completes."""
    _, execution = await ann.begins("book")
    request = await ann.pending_request(execution)
    body = {"decision": "approve", "args_digest": request["args_digest"]}
    path = f"/agent/executions/{execution}/approvals/{request['id']}"
    return path, body, lambda ann: ann.until(execution, "completed")


async def answering(ann: ApiCaller) -> tuple[str, Any, Callable[[ApiCaller], Awaitable[object]]]:
    """An answer."""
    _, execution = await ann.begins("ask me")
    path = f"/agent/executions/{execution}/input"
    return path, {"text": "Friday"}, lambda ann: ann.until(execution, "completed")


async def answering_by_message(ann: ApiCaller) -> tuple[str, Any, Callable[[ApiCaller], Awaitable[object]]]:
    """An answer sent as a message of the session."""
    session, execution = await ann.begins("ask me")
    path = f"/agent/sessions/{session}/messages"
    return path, {"content": "Friday"}, lambda ann: ann.until(execution, "completed")


async def cancelling(ann: ApiCaller) -> tuple[str, Any, Callable[[ApiCaller], Awaitable[object]]]:
    """A cancel."""
    _, execution = await ann.begins("book")
    return f"/agent/executions/{execution}/cancel", None, lambda ann: ann.until(execution, "cancelled")


async def steering(ann: ApiCaller) -> tuple[str, Any, Callable[[ApiCaller], Awaitable[object]]]:
    """A message to an execution under way."""
    _, execution = await ann.begins("book")

    async def is_heard(ann: ApiCaller) -> None:
        request = await ann.pending_request(execution)
        decision = {"decision": "deny", "args_digest": request["args_digest"]}
        await ann.post(f"/agent/executions/{execution}/approvals/{request['id']}", decision)
        ended = await ann.until(execution, "completed")
        assert ended["output"]["response"] == "You said: Hurry"

    return f"/agent/executions/{execution}/steer", {"content": "Hurry"}, is_heard


async def starting(ann: ApiCaller) -> tuple[str, Any, Callable[[ApiCaller], Awaitable[object]]]:
    """An execution without a session."""

    async def has_run(ann: ApiCaller) -> None:
        (execution,) = (await ann.get("/agent/executions"))["items"]
        await ann.until(execution["id"], "completed")

    del ann
    return "/agent/executions", {"content": "Hello"}, has_run


READY: Sequence[Ready] = (starting, approving, answering, answering_by_message, cancelling, steering)
"""The first one expects that its execution is the only one."""


async def test_a_caller_without_a_reply_asks_another_process(front: Front) -> None:
    """8.2.8: with the same key; another request under it is refused."""
    await front.api()
    async with ann_at(front) as ann:
        for number, ready in enumerate(READY):
            await ask_another_process(front, ann, ready, f"k-{number}")


async def ask_another_process(front: Front, ann: ApiCaller, ready: Ready, key: str) -> None:
    """Send a request to a process that dies, and again to another one."""
    path, body, is_done = await ready(ann)
    await dies(front, lambda doomed: doomed.posts(path, body, key))

    other = await ann.posts(path, {**(body or {}), "reason": "other"}, key)
    again, once_more = [await ann.posts(path, body, key) for _ in range(2)]

    assert (other.status_code, "key-reused" in other.text) == (422, True), other.text
    assert again.status_code in {200, 201}, again.text
    assert (once_more.status_code, once_more.json()) == (again.status_code, again.json())
    await is_done(ann)


async def test_two_processes_asked_at_once_give_the_same_reply(front: Front) -> None:
    """8.2.8"""
    other = replace(front, port=a_free_port())
    await asyncio.gather(front.api(), other.api())
    async with ann_at(front) as ann, ann_at(other) as also_ann:
        for ready in (approving, answering, cancelling) * 2:
            path, body, is_done = await ready(ann)
            key = f"at once: {path}".replace(" ", "-")
            sent = (each.posts(path, body, key) for each in (ann, also_ann) * 3)
            answers = await asyncio.gather(*sent)

            assert {answer.status_code for answer in answers} == {200}, [a.text for a in answers]
            assert all(answer.json() == answers[0].json() for answer in answers)
            await is_done(ann)


HEARD = """
    SELECT content #>> '{}' FROM agent_transcript t JOIN agent_executions e ON e.id = t.execution_id
     WHERE e.task_queue = %s AND t.role = 'user' AND content #>> '{}' LIKE 'steer %%'
"""
KEPT = """
    SELECT s.content #>> '{}' FROM agent_steered s JOIN agent_executions e ON e.id = s.execution_id
     WHERE e.task_queue = %s
"""


async def texts(front: Front, statement: str) -> Counter[str]:
    """The rows of a statement for this test's executions."""
    url = front.installation.database_url.replace("+psycopg", "")
    async with await psycopg.AsyncConnection.connect(url) as connection:
        return Counter([row[0] async for row in await connection.execute(statement.encode(), (front.queue,))])


async def test_a_message_near_the_end_is_received_once_or_refused(front: Front) -> None:
    """8.3.2: sent to two processes at once, at random moments, and again under the same key."""
    dice, accepted, refused = Random(11), set[str](), set[str]()  # noqa: S311 -- no secret
    other = replace(front, port=a_free_port())
    await asyncio.gather(front.api(), other.api())

    async def talk(ann: ApiCaller, also_ann: ApiCaller, number: int) -> None:
        words = f"steer {number}"
        if number % 2:
            execution = (await ann.post("/agent/messages", {"content": "ponder"}))["execution_id"]
        else:
            execution = (await ann.post("/agent/executions", {"content": "ponder"}))["id"]
        await asyncio.sleep(dice.uniform(0, 0.4))
        path, key = f"/agent/executions/{execution}/steer", f"k-{number}"
        sent = [each.posts(path, {"content": words}, key) for each in (ann, also_ann)]
        answers = [*await asyncio.gather(*sent), await also_ann.posts(path, {"content": words}, key)]
        assert len({answer.status_code for answer in answers}) == 1, [answer.text for answer in answers]
        assert answers[0].status_code in {200, 409}, answers[0].text
        (accepted if answers[0].status_code == 200 else refused).add(words)

    async with ann_at(front) as ann, ann_at(other) as also_ann:
        await asyncio.gather(*(talk(ann, also_ann, number) for number in range(16)))

        async def is_heard() -> bool:
            return set(await texts(front, HEARD)) == accepted

        await until("all that was accepted is heard", is_heard)
    assert set((await texts(front, HEARD)).values()) <= {1}
    assert not set(await texts(front, KEPT)) & refused
    assert accepted
