"""Builders for sessions, their messages and executions."""

from dataclasses import replace
from typing import Any
from uuid import UUID, uuid4

from everstep.agent_domain.ids import ExecutionRef, Scope
from everstep.agent_domain.loop.status import ExecutionStatus
from everstep.agent_domain.loop.step_facts import CallNeed
from everstep.agent_domain.storage.executions import ExecutionSpec
from everstep.agent_domain.storage.sessions import (
    NewMessage,
    NewSession,
    OnBusy,
)
from everstep.agent_domain.values import frozen_map
from everstep.store.sessions import PostgresSessions
from tests.everstep.store.store_words import (
    TENANT,
    a_call,
    accepted,
    begin,
    ended,
    reply,
    settled,
    stepped,
)

ANN, BOB = "ann", "bob"
HERS = Scope(TENANT, ANN)
ALL = Scope(TENANT)


async def a_session(store: PostgresSessions, user: str = ANN, **fields: Any) -> UUID:
    new = NewSession(uuid4(), fields.pop("tenant", TENANT), user, **fields)
    return (await store.create_session(new)).id


def said(
    session_id: UUID, content: str = "Hello", on_busy: OnBusy = OnBusy.ENQUEUE, **fields: Any
) -> NewMessage:
    fields = {"id": uuid4(), "execution_id": uuid4(), "scope": HERS, "user_id": ANN} | fields
    return NewMessage(
        session_id=session_id,
        content=content,
        on_busy=on_busy,
        spec=ExecutionSpec(agent="helper"),
        plan=frozen_map({"agent": "helper", "max_steps": 5}),
        task_queue="desk",
        **fields,
    )


def beginning(session_id: UUID | None = None, *, tenant: str = TENANT, **fields: Any) -> NewMessage:
    """A message that creates its session."""
    new = NewSession(session_id or uuid4(), tenant, ANN)
    fields = {"scope": Scope(tenant, ANN)} | fields
    return said(new.id, session=new, **fields)


async def begun(store: PostgresSessions, session_id: UUID, content: str = "Hello") -> ExecutionRef:
    """A running execution of the session."""
    posted = await store.post(said(session_id, content))
    await store.begin_step(begin(posted.execution))
    return posted.execution


async def over(store: PostgresSessions, ref: ExecutionRef, answer: str = "Hi") -> None:
    """An execution that ran and has ended."""
    await stepped(store, ref, 1, answer)
    await ended(store, ref)


async def turn(store: PostgresSessions, session_id: UUID) -> UUID | None:
    """Release the session's next execution, if it may start, and return its id."""
    ref = await store.release(TENANT, session_id)
    return ref and ref.execution_id


async def every_message(store: PostgresSessions, session_id: UUID) -> list[Any]:
    """Oldest first."""
    found, cursor = list[Any](), None
    while True:
        page = await store.messages(ALL, session_id, cursor=cursor, limit=100)
        found += page.rows
        cursor = page.cursor
        if cursor is None:
            return found[::-1]


async def asking(
    store: PostgresSessions, session_id: UUID, *prompts: str, need: CallNeed = CallNeed.INPUT
) -> ExecutionRef:
    """An execution that asks all these questions."""
    ref = await begun(store, session_id)
    for number, prompt in enumerate(prompts):
        call = a_call(f"c{number}", "user_input", prompt=prompt)
        if number:
            await store.begin_step(begin(ref, number + 1))
        request = frozen_map({"prompt": prompt})
        await store.record_reply(reply(ref, "", call, number=number + 1, needs=need, request=request))
    await store.settle(settled(ref, ExecutionStatus.PAUSED))
    return ref


async def three_steps(store: PostgresSessions, session_id: UUID | None) -> ExecutionRef:
    """An execution of three steps, the first with a call."""
    ref = await begun(store, session_id) if session_id else await accepted(store, "Hello")
    await stepped(store, ref, 1, "", a_call("c1"))
    await stepped(store, ref, 2, "Two")
    await stepped(store, ref, 3, "Three")
    await ended(store, ref)
    return ref


def another(ref: ExecutionRef) -> ExecutionRef:
    return replace(ref, execution_id=uuid4())
