"""Programs with OpenAI's SDK read whole responses, each event once, while everything behind them is killed.

The API and the worker are killed at random, connections are cut, and attempts of the model break off. A
reader whose stream breaks goes on after the number of its last event.
"""

import asyncio
import logging
import os
from pathlib import Path
from random import Random
from typing import Any

import httpx2
import pytest
from openai import APIConnectionError, APIStatusError, AsyncOpenAI

from tests.acceptance.harness import Installation
from tests.acceptance.test_front_ends_survive import disturb, open_front
from tests.browsers.relay import open_relay

pytestmark = pytest.mark.asyncio(loop_scope="session")

READERS = 6
ROUNDS = int(os.environ.get("EVERSTEP_ROUNDS", "3"))

BROKEN = (APIConnectionError, APIStatusError, httpx2.HTTPError)


async def begin(openai: AsyncOpenAI, text: str, key: str) -> Any:
    """Begin a response in the background; the key makes it one, however often it is sent."""
    while True:
        try:
            return await openai.responses.create(
                model="teller", input=text, background=True, extra_headers={"Idempotency-Key": key}
            )
        except BROKEN:
            await asyncio.sleep(0.2)


async def read(openai: AsyncOpenAI, id_: str, events: list[Any]) -> int:
    """Read the events of a response to its end; return how often the stream broke."""
    broken = 0
    while True:
        after = events[-1].sequence_number if events else -1
        try:
            async for event in await openai.responses.retrieve(id_, stream=True, starting_after=after):
                if event.type == "error":
                    break
                events.append(event)
                if event.type in {"response.completed", "response.incomplete", "response.failed"}:
                    return broken
        except BROKEN:
            pass
        broken += 1
        await asyncio.sleep(0.1)


@pytest.mark.slow
@pytest.mark.timeout(900)
async def test_every_event_arrives_once_while_processes_are_killed(
    installation: Installation, tmp_path: Path
) -> None:
    """17.5.3, 17.5.4, 17.5.7"""
    seed = int(os.environ.get("EVERSTEP_CHAOS_SEED", "1"))
    dice = Random(seed)  # noqa: S311 -- no secret
    done, broken, count = list[str](), 0, 0
    async with open_front(installation, tmp_path) as front, open_relay(front.port) as relay:
        running = {"api": await front.api(), "worker": await front.process("worker", says="working on")}
        url = f"http://127.0.0.1:{relay.port}/v1"
        async with AsyncOpenAI(base_url=url, api_key=front.key, max_retries=0) as openai:
            for round_ in range(ROUNDS):
                begun = [
                    await begin(openai, f"Story {4 * number + 1}", f"{round_}/{number}")
                    for number in range(READERS)
                ]
                received: list[list[Any]] = [[] for _ in begun]
                reading = [
                    asyncio.create_task(read(openai, each.id, events))
                    for each, events in zip(begun, received, strict=True)
                ]
                while not all(task.done() for task in reading):
                    done.append(await disturb(front, relay, dice, running))
                    await asyncio.wait(reading, timeout=dice.uniform(0.2, 1.5))
                broken += sum(task.result() for task in reading)
                for response, events in zip(begun, received, strict=True):
                    count += len(events)
                    await compare(openai, response.id, events, f"seed {seed}, round {round_}")
    disturbances = ", ".join(f"{done.count(what)} {what}" for what in sorted({*done}))
    logging.getLogger(__name__).warning(
        "%d responses, %d events, %d broken streams, disturbed by %s",
        *(READERS * ROUNDS, count, broken, disturbances),
    )


async def compare(openai: AsyncOpenAI, id_: str, events: list[Any], where: str) -> None:
    """A reader has the same events as one that reads the whole afterwards, and the text that is stored."""
    numbers = [event.sequence_number for event in events]
    assert numbers == sorted({*numbers}), where
    assert events[-1].type == "response.completed", (where, events[-1])
    while True:
        try:
            late = [event async for event in await openai.responses.retrieve(id_, stream=True)]
            stored = await openai.responses.retrieve(id_)
            break
        except BROKEN:
            await asyncio.sleep(0.2)
    assert {*numbers} >= {event.sequence_number for event in late}, where
    assert stored.output == events[-1].response.output, where
    sent = dict[str, str]()
    for event in events:
        if event.type == "response.output_text.delta":
            sent[event.item_id] = sent.get(event.item_id, "") + event.delta
        if event.type == "response.output_text.done":
            assert sent.get(event.item_id, "") == event.text, where
