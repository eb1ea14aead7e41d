"""Clients of the HTTP API that retry by key until the answer is definite, and record it."""

import asyncio
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from http import HTTPStatus
from random import Random
from time import monotonic
from typing import Any

import httpx2

PASSING = frozenset({HTTPStatus.SERVICE_UNAVAILABLE, HTTPStatus.TOO_MANY_REQUESTS})
"""Statuses that ask the client to retry a little later."""


@dataclass
class Operation:
    """A request with its definite answer."""

    kind: str
    token: str
    path: str
    body: dict[str, Any]
    key: str
    status: int = 0
    answer: Any = None
    tries: int = 0
    moment: float = field(default_factory=monotonic)

    @property
    def is_accepted(self) -> bool:
        """Whether the API accepted it."""
        return HTTPStatus.OK <= self.status < HTTPStatus.MULTIPLE_CHOICES

    def __str__(self) -> str:
        answer = json.dumps(self.answer)[:300]
        return f"{self.kind} {self.token} ({self.path}, key {self.key}): {self.status} {answer}"


@dataclass
class Customer:
    """Sends operations to any API process and keeps the answers."""

    urls: Sequence[str]
    secret: str
    dice: Random
    patience: float
    fault: Callable[[str], None]
    done: list[Operation] = field(default_factory=list[Operation])

    async def send(self, kind: str, token: str, path: str, **body: Any) -> Operation:
        """Retry until the answer is definite; sometimes send the accepted request a second time.

        A refusal has no effect and is not stored, so the same request may be accepted a moment later.
        """
        operation = Operation(kind, token, path, body, f"{kind}-{token}")
        if self.dice.random() < 0.1:
            # Both at the same time, like a client whose timeout is too short.
            twin = Operation(kind, token, path, body, operation.key)
            await asyncio.gather(self._ask(operation), self._ask(twin))
            if operation.is_accepted and twin.is_accepted:
                self._compare(operation, twin)
            operation = operation if operation.is_accepted else twin
        else:
            await self._ask(operation)
        if operation.is_accepted and self.dice.random() < 0.15:
            again = Operation(kind, token, path, body, operation.key)
            await self._ask(again)
            self._compare(operation, again)
        self.done.append(operation)
        return operation

    async def get(self, path: str) -> Any:
        """Read a resource, or None if it does not exist."""
        found = Operation("get", path, path, {}, "")
        await self._ask(found, method="GET")
        return found.answer if found.is_accepted else None

    def _compare(self, first: Operation, second: Operation) -> None:
        if not second.status:
            return
        # The state in an answer may change; its ids may not.
        if first.status != second.status or _names(first.answer) != _names(second.answer):
            self.fault(f"the same key was answered differently: {first} and {second}")

    async def _ask(self, operation: Operation, method: str = "POST") -> None:
        deadline = monotonic() + self.patience
        while monotonic() < deadline:
            operation.tries += 1
            base = self.dice.choice(self.urls)
            headers = {"Authorization": f"Bearer {self.secret}"}
            if method == "POST":
                headers["Idempotency-Key"] = operation.key
            try:
                # A connection for each attempt: the process that answered last time may have ended.
                async with httpx2.AsyncClient(base_url=base, headers=headers, timeout=15) as http:
                    if method == "POST":
                        answer = await http.post(operation.path, json=operation.body)
                    else:
                        answer = await http.get(operation.path)
            except httpx2.TransportError:
                await asyncio.sleep(self.dice.uniform(0.05, 0.4))
                continue
            if answer.status_code in PASSING:
                await asyncio.sleep(self.dice.uniform(0.1, 0.5))
                continue
            operation.status = answer.status_code
            operation.answer = answer.json() if answer.content else None
            if operation.status >= HTTPStatus.INTERNAL_SERVER_ERROR:
                self.fault(f"an error of the server: {operation}")
            return
        self.fault(f"no definite answer within {self.patience:g} s: {operation}")


def _names(answer: Any) -> Any:
    """The ids in an answer, which never change."""
    if not isinstance(answer, dict):
        return answer
    kept = ("id", "session_id", "execution_id", "message_id", "route", "type", "detail")
    return {key: answer.get(key) for key in kept}  # type: ignore[reportUnknownMemberType]
