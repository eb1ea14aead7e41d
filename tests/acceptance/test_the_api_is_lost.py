"""API processes are killed while they accept messages: every message has one execution, which ends.

Clients send each message again, with the same Idempotency-Key, until they get a response. The kills happen at
random moments, the same ones in each run.
"""

import asyncio
import re
import signal
from collections import Counter
from dataclasses import dataclass
from random import Random

import httpx2
import psycopg
import pytest

from everstep.activities.failpoints import Failpoint
from tests.acceptance.agents import ARMED
from tests.acceptance.front import Front
from tests.acceptance.harness import until

pytestmark = pytest.mark.asyncio(loop_scope="session")

PEOPLE = 6


@dataclass
class AcceptedMessage:
    """The response to a message."""

    number: int
    session: str
    execution: str
    tries: int


async def send_with_retries(ann: httpx2.AsyncClient, path: str, number: int) -> AcceptedMessage:
    """Send a message until there is a response, as a good client does."""
    tries = 0
    while True:
        tries += 1
        try:
            answer = await ann.post(
                path, json={"content": f"message {number}"}, headers={"Idempotency-Key": f"key-{number}"}
            )
        except httpx2.TransportError:
            await asyncio.sleep(0.02)
            continue
        if answer.status_code != 503:
            assert answer.status_code == 201, answer.text
            accepted = answer.json()
            assert accepted["message"]["content"] == f"message {number}"
            return AcceptedMessage(number, accepted["session_id"], accepted["execution_id"], tries)


async def talk(ann: httpx2.AsyncClient, person: int, stop: asyncio.Event) -> list[AcceptedMessage]:
    """Start sessions, and send a second message in each."""
    sent: list[AcceptedMessage] = []
    number = person
    while not stop.is_set():
        first = await send_with_retries(ann, "/agent/messages", number)
        second = await send_with_retries(ann, f"/agent/sessions/{first.session}/messages", number + PEOPLE)
        assert second.session == first.session
        sent += first, second
        number += 2 * PEOPLE
    return sent


async def check_survival(front: Front, kills: int) -> None:
    """Kill this often, and check that nothing was lost and nothing done twice."""
    dice, stop = Random(17), asyncio.Event()  # noqa: S311 -- no secret
    api = await front.api()
    async with httpx2.AsyncClient(
        base_url=front.url, headers={"Authorization": f"Bearer {front.key}"}, timeout=20
    ) as ann:
        people = [asyncio.create_task(talk(ann, person, stop)) for person in range(PEOPLE)]
        for _ in range(kills):
            await asyncio.sleep(dice.uniform(0.02, 0.4))
            await api.kill()
            api = await front.api()
        stop.set()
        sent = [one for several in await asyncio.gather(*people) for one in several]

        async def is_done() -> bool:
            return set(await statuses(front)) == {"completed"}

        await until("all executions have ended", is_done)
    assert max(one.tries for one in sent) > 1
    assert (await statuses(front))["completed"] == len(sent)
    assert len({one.execution for one in sent}) == len(sent)
    assert await stored_messages(front) == Counter(f"message {one.number}" for one in sent)
    logs = "".join(process.log.read_text() for process in front.begun)
    assert not re.search("Traceback", logs), logs


async def statuses(front: Front) -> Counter[str]:
    """The number of this test's executions by status."""
    rows = await _rows(front, "SELECT status FROM agent_executions WHERE task_queue = %s")
    return Counter(rows)


async def stored_messages(front: Front) -> Counter[str]:
    """The stored messages of people, with their counts."""
    statement = """
        SELECT m.content FROM agent_session_messages m JOIN agent_executions e USING (session_id)
        WHERE m.role = 'user' AND e.task_queue = %s GROUP BY m.id, m.content
    """
    return Counter(await _rows(front, statement))


async def _rows(front: Front, statement: str) -> list[str]:
    url = front.installation.database_url.replace("+psycopg", "")
    async with await psycopg.AsyncConnection.connect(url) as connection:
        return [row[0] async for row in await connection.execute(statement.encode(), (front.queue,))]


@pytest.mark.parametrize("point", [Failpoint.API_AFTER_COMMIT, Failpoint.API_BEFORE_ANSWER])
async def test_a_client_without_a_response_asks_again(front: Front, point: Failpoint) -> None:
    """8.2.2"""
    front.kill_at = point
    (front.folder / ARMED).touch()
    api = await front.api()
    async with httpx2.AsyncClient(
        base_url=front.url, headers={"Authorization": f"Bearer {front.key}"}
    ) as ann:
        asked = asyncio.create_task(send_with_retries(ann, "/agent/messages", 1))
        assert await api.wait() == -signal.SIGKILL
        assert sum((await statuses(front)).values()) == 1
        await front.api()
        await asked

        async def has_ended() -> bool:
            return await statuses(front) == {"completed": 1}

        await until("it has ended", has_ended)
    assert (await asked).tries > 1
    assert await stored_messages(front) == {"message 1": 1}


async def test_no_message_is_lost_or_doubled_when_the_api_is_killed(front: Front) -> None:
    """8.2.2"""
    await check_survival(front, kills=5)


@pytest.mark.slow
async def test_no_message_is_lost_or_doubled_when_the_api_is_killed_a_hundred_times(front: Front) -> None:
    """8.2.2"""
    await check_survival(front, kills=100)
