"""Clients' operations on sessions and executions: everything that the API offers, at random moments."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from random import Random
from time import monotonic
from typing import Any

from tests.acceptance.storm.operations import Customer, Operation
from tests.acceptance.storm.programs import draw_program

Act = Callable[["Talk"], Awaitable[None]]


@dataclass
class Talk:
    """One session and a client's operations in it."""

    number: int
    customer: Customer
    dice: Random
    pause: float = 1.2
    """The longest pause between two operations, in seconds."""
    session_id: str = ""
    executions: list[str] = field(default_factory=list[str])
    began: asyncio.Event = field(default_factory=asyncio.Event)
    """It has a session, or could not begin one."""
    ended: asyncio.Event = field(default_factory=asyncio.Event)
    count: int = 0

    def token(self) -> str:
        """A word that occurs nowhere else."""
        self.count += 1
        return f"[s{self.number}.{self.count}]"

    def program(self, token: str) -> str:
        """A program with that token."""
        return draw_program(self.dice, token).text()

    async def run(self, until: float) -> None:
        """Start a session, and act in it until the deadline."""
        token = self.token()
        first = await self.customer.send("begin", token, "/agent/messages", content=self.program(token))
        if not first.is_accepted:
            self.began.set()
            return
        self.session_id = first.answer["session_id"]
        self.executions.append(first.answer["execution_id"])
        self.began.set()
        while monotonic() < until:
            await asyncio.sleep(self.dice.uniform(0, self.pause))
            act = self.dice.choices([act for act, _ in ACTS], [weight for _, weight in ACTS])[0]
            await act(self)

    async def say(self, on_busy: str, content: str, token: str) -> Operation:
        """A message in the session."""
        path = f"/agent/sessions/{self.session_id}/messages"
        sent = await self.customer.send(on_busy, token, path, content=content, on_busy=on_busy)
        if sent.is_accepted:
            self.executions.append(sent.answer["execution_id"])
        return sent

    async def act_on(self, kind: str, token: str, **body: Any) -> Operation:
        """Apply an operation to one of the latest executions."""
        execution = self.dice.choice(self.executions[-2:])
        return await self.customer.send(kind, token, f"/agent/executions/{execution}/{kind}", **body)


async def _enqueue(talk: Talk) -> None:
    token = talk.token()
    await talk.say("enqueue", talk.program(token), token)


async def _interrupt(talk: Talk) -> None:
    token = talk.token()
    await talk.say("interrupt", talk.program(token), token)


async def _reject(talk: Talk) -> None:
    token = talk.token()
    await talk.say("reject", talk.program(token), token)


async def _steer_by_message(talk: Talk) -> None:
    token = talk.token()
    await talk.say("steer", f"Steered {token}", token)


async def _steer(talk: Talk) -> None:
    token = talk.token()
    await talk.act_on("steer", token, content=f"Steered {token}")


async def _pause(talk: Talk) -> None:
    execution, token = talk.executions[-1], talk.token()
    paused = await talk.customer.send("pause", token, f"/agent/executions/{execution}/pause")
    if paused.is_accepted:
        await asyncio.sleep(talk.dice.uniform(0, 2))
        await talk.customer.send("resume", talk.token(), f"/agent/executions/{execution}/resume")


async def _cancel(talk: Talk) -> None:
    await talk.act_on("cancel", talk.token())


async def _fork(talk: Talk) -> None:
    token = talk.token()
    body: dict[str, Any] = {"step": talk.dice.randint(0, 2)}
    if talk.dice.random() < 0.5:
        body["content"] = talk.program(token)
    await talk.act_on("fork", token, **body)


async def _background(talk: Talk) -> None:
    token = talk.token()
    await talk.customer.send("execution", token, "/agent/executions", content=talk.program(token))


ACTS: list[tuple[Act, float]] = [
    (_enqueue, 0.30),
    (_steer_by_message, 0.12),
    (_steer, 0.16),
    (_interrupt, 0.08),
    (_reject, 0.08),
    (_pause, 0.08),
    (_cancel, 0.06),
    (_fork, 0.05),
    (_background, 0.07),
]


@dataclass
class Decisions:
    """People who answer the inbox, sometimes two of them at the same time."""

    customer: Customer
    dice: Random
    name: str = "d"
    pause: float = 0.6
    """The longest pause between two looks at the inbox, in seconds."""
    decided: set[str] = field(default_factory=set[str])
    count: int = 0

    async def run(self, is_over: Callable[[], bool]) -> None:
        """Answer until the inbox stays empty."""
        while not is_over():
            page: dict[str, list[dict[str, Any]]] | None = await self.customer.get("/agent/inbox?limit=50")
            items = page["items"] if page else []
            waiting = [each for each in items if each["id"] not in self.decided]
            chosen = [each for each in waiting if self.dice.random() < 0.7]
            await asyncio.gather(*(self._decide(each) for each in chosen))
            await asyncio.sleep(self.dice.uniform(0.1, self.pause))

    async def _decide(self, request: dict[str, Any]) -> None:
        decide = self._answer if request["kind"] == "input" else self._approve
        people = 2 if self.dice.random() < 0.2 else 1
        done = await asyncio.gather(*(decide(request) for _ in range(people)))
        # Refused for good or accepted: either way the request is closed.
        if all(each.status for each in done):
            self.decided.add(request["id"])

    def _token(self) -> str:
        self.count += 1
        return f"[{self.name}.{self.count}]"

    async def _answer(self, request: dict[str, Any]) -> Operation:
        token = self._token()
        session, body = request["session_id"], {"request_id": request["id"]}
        if session and self.dice.random() < 0.5:
            path = f"/agent/sessions/{session}/messages"
            return await self.customer.send("answer", token, path, content=f"Answered {token}", **body)
        path = f"/agent/executions/{request['execution_id']}/input"
        return await self.customer.send("input", token, path, text=f"Answered {token}", **body)

    async def _approve(self, request: dict[str, Any]) -> Operation:
        token = self._token()
        path = f"/agent/executions/{request['execution_id']}/approvals/{request['id']}"
        body: dict[str, Any] = {"args_digest": request["args_digest"]}
        kind = self.dice.choices(["approve", "deny", "edit"], [0.6, 0.2, 0.2])[0]
        if kind == "edit":
            body["args"] = {"mark": f"{request['args']['mark']} edited by {token}"}
        return await self.customer.send(kind, token, path, decision=kind, **body)
