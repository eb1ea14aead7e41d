"""An API process that has answered ten thousand requests is as large as after the first ones."""

import asyncio
import re
from pathlib import Path

import httpx2
import pytest

from tests.acceptance.front import Front

pytestmark = pytest.mark.asyncio(loop_scope="session")

WARM, MANY, AT_ONCE = 2_000, 10_000, 8
GROWTH = 12
"""Megabytes: a leak of a kilobyte per request would reach this."""


def megabytes(pid: int) -> float:
    """The resident memory of a process."""
    (kilobytes,) = re.findall(r"VmRSS:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text())
    return int(kilobytes) / 1024


async def send(ann: httpx2.AsyncClient, first: int, count: int) -> None:
    """Send valid and invalid requests; each has its own key."""
    for number in range(first, first + count):
        key = {"Idempotency-Key": f"key-{number}"}
        match number % 5:
            case 0:
                answer = await ann.post("/agent/sessions", json={"title": f"Session {number}"}, headers=key)
                assert answer.status_code == 201, answer.text
            case 1:
                await ann.get("/agent/sessions", params={"search": f"word{number}"})
            case 2:
                await ann.post("/agent/sessions", json={f"field{number}": 1}, headers=key)
            case 3:
                await ann.get(f"/nothing/{number}", headers={"Authorization": f"Bearer x{number}"})
            case _:
                await ann.request(f"M{number}", f"/agent/sessions/{number}", content=b"x" * 10_000)


@pytest.mark.slow
async def test_memory_does_not_grow(front: Front) -> None:
    api = await front.api()

    async def several(first: int, count: int) -> float:
        share = count // AT_ONCE
        async with httpx2.AsyncClient(
            base_url=front.url, headers={"Authorization": f"Bearer {front.key}"}, timeout=30
        ) as ann:
            await asyncio.gather(*(send(ann, first + part * share, share) for part in range(AT_ONCE)))
        return megabytes(api.pid)

    before = await several(0, WARM)
    after = await several(WARM, MANY)

    assert after - before < GROWTH, f"{before:.1f} MB before, {after:.1f} MB after"
