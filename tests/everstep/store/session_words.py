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
    a_reply,
    a_settlement,
    a_step_start,
    accept_execution,
    end_execution,
    run_step,
)

ANN, BOB = "ann", "bob"
HERS = Scope(TENANT, ANN)
ALL = Scope(TENANT)


async def new_session_id(store: PostgresSessions, user: str = ANN, **fields: Any) -> UUID:
    new = NewSession(uuid4(), fields.pop("tenant", TENANT), user, **fields)
    return (await store.create_session(new)).id


def a_message(
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


def a_first_message(session_id: UUID | None = None, *, tenant: str = TENANT, **fields: Any) -> NewMessage:
    """A message that creates its session."""
    new = NewSession(session_id or uuid4(), tenant, ANN)
    fields = {"scope": Scope(tenant, ANN)} | fields
    return a_message(new.id, session=new, **fields)


async def start_execution(store: PostgresSessions, session_id: UUID, content: str = "Hello") -> ExecutionRef:
    """A running execution of the session."""
    posted = await store.post(a_message(session_id, content))
    await store.begin_step(a_step_start(posted.execution))
    return posted.execution


async def finish_execution(store: PostgresSessions, ref: ExecutionRef, answer: str = "Hi") -> None:
    """An execution that ran and has ended."""
    await run_step(store, ref, 1, answer)
    await end_execution(store, ref)


async def release_next(store: PostgresSessions, session_id: UUID) -> UUID | None:
    """Release the session's next execution, if it may start, and return its id."""
    ref = await store.release(TENANT, session_id)
    return ref and ref.execution_id


async def all_messages(store: PostgresSessions, session_id: UUID) -> list[Any]:
    """Oldest first."""
    found, cursor = list[Any](), None
    while True:
        page = await store.messages(ALL, session_id, cursor=cursor, limit=100)
        found += page.rows
        cursor = page.cursor
        if cursor is None:
            return found[::-1]


async def start_with_questions(
    store: PostgresSessions, session_id: UUID, *prompts: str, need: CallNeed = CallNeed.INPUT
) -> ExecutionRef:
    """An execution that asks all these questions."""
    ref = await start_execution(store, session_id)
    for number, prompt in enumerate(prompts):
        call = a_call(f"c{number}", "user_input", prompt=prompt)
        if number:
            await store.begin_step(a_step_start(ref, number + 1))
        request = frozen_map({"prompt": prompt})
        await store.record_reply(a_reply(ref, "", call, number=number + 1, needs=need, request=request))
    await store.settle(a_settlement(ref, ExecutionStatus.PAUSED))
    return ref


async def run_three_steps(store: PostgresSessions, session_id: UUID | None) -> ExecutionRef:
    """An execution of three steps, the first with a call."""
    ref = await start_execution(store, session_id) if session_id else await accept_execution(store, "Hello")
    await run_step(store, ref, 1, "", a_call("c1"))
    await run_step(store, ref, 2, "Two")
    await run_step(store, ref, 3, "Three")
    await end_execution(store, ref)
    return ref


def new_reference(ref: ExecutionRef) -> ExecutionRef:
    return replace(ref, execution_id=uuid4())
