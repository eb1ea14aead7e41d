"""Actions of people in a replay."""

import asyncio

import pytest

from everstep.runtime.replay.actions import Actions


async def test_no_action_outlasts_its_replay() -> None:
    """15.3.2: one that still waits for a workflow is ended, and awaited."""
    actions, ended = Actions(), list[str]()

    async def wait_for_a_workflow() -> None:
        actions.on_wait()
        try:
            await asyncio.Event().wait()
        finally:
            ended.append("ended")

    await actions.run(wait_for_a_workflow())
    assert ended == []
    others = asyncio.all_tasks() - {asyncio.current_task()}
    await actions.aclose()

    assert ended == ["ended"]
    assert all(task.done() for task in others)


async def test_the_error_of_an_action_is_raised_at_once_or_when_it_occurs() -> None:
    """15.3.2"""
    actions, answered = Actions(), asyncio.Event()

    async def fail() -> None:
        raise LookupError("at once")

    async def fail_later() -> None:
        actions.on_wait()
        await answered.wait()
        raise LookupError("later")

    with pytest.raises(LookupError, match="at once"):
        await actions.run(fail())
    await actions.run(fail_later())
    answered.set()
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    with pytest.raises(LookupError, match="later"):
        actions.require_success()
    await actions.aclose()
