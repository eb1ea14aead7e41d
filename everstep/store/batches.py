"""What several callers request at once is done together."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Generic, TypeVar

Request = TypeVar("Request")
Result = TypeVar("Result")


class Batches(Generic[Request, Result]):
    """Carries out requests in batches: one at a time, with all requests that arrived during the last one.

    Args:
        run: Carries out a batch, and returns a result for each request.
        most: The most requests of a batch.
    """

    def __init__(self, run: Callable[[Sequence[Request]], Awaitable[Sequence[Result]]], most: int) -> None:
        self._run = run
        self._most = most
        self._waiting: list[tuple[Request, asyncio.Future[Result]]] = []
        self._running: asyncio.Task[None] | None = None

    async def request(self, request: Request) -> Result:
        """Return the result of a request; if its batch fails, each of its callers gets the exception."""
        answer: asyncio.Future[Result] = asyncio.get_running_loop().create_future()
        self._waiting.append((request, answer))
        if self._running is None:
            self._running = asyncio.create_task(self._run_all())
        # A caller may be cancelled before its batch ends; the others still wait for theirs.
        return await asyncio.shield(answer)

    async def _run_all(self) -> None:
        try:
            while self._waiting:
                batch, self._waiting = self._waiting[: self._most], self._waiting[self._most :]
                try:
                    results = await self._run([request for request, _ in batch])
                    answered = list(zip(batch, results, strict=True))
                except Exception as error:  # noqa: BLE001 -- passed on to all waiting callers
                    for _, answer in batch:
                        answer.set_exception(error)
                        # Mark the exception as retrieved: every caller may have been cancelled.
                        answer.exception()
                else:
                    for (_, answer), result in answered:
                        answer.set_result(result)
        finally:
            self._running = None
