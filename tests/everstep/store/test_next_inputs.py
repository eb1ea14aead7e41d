"""The input of a step that a worker builds from what it has recorded is the one that the store has.

Each test runs on the store in memory and on the one in PostgreSQL.
"""

from dataclasses import replace
from typing import Any
from uuid import uuid4

import pytest

from everstep.activities.next_inputs import FRESH_SECONDS, MAX_STEPS, LoadedInput, NextInputs
from everstep.agent_domain.attachments import Attachment
from everstep.agent_domain.ids import ExecutionRef
from everstep.agent_domain.loop.step_facts import Besides, CallNeed
from everstep.agent_domain.loop.usage import Usage
from everstep.agent_domain.messages.messages import user
from everstep.agent_domain.storage.execution_store import ExecutionStore
from everstep.agent_domain.storage.metadata_changes import MetadataChanges
from everstep.agent_domain.storage.steps import HookAdditions, RecordReply
from everstep.agent_domain.values import EMPTY, frozen_map
from tests.everstep.store.store_words import (
    a_call,
    a_failure,
    a_ref,
    a_reply,
    a_result,
    a_step_start,
    accept_execution,
    result_record,
    run_step,
)

A_FILE = Attachment(uuid4(), "a.txt", "text/plain", 3, "0" * 64)


async def record_step(
    store: ExecutionStore, inputs: NextInputs, ref: ExecutionRef, loaded: LoadedInput, number: int
) -> None:
    """Record a reply with two calls, whose results come in the other order."""
    reply = a_reply(ref, "Look", a_call(f"a{number}"), a_call(f"b{number}"), number=number, tokens=7)
    await store.record_reply(replace(reply, begins=a_step_start(ref, number)))
    inputs.keep_reply(reply, loaded, 0.0)
    for index, call_id in ((1, f"b{number}"), (0, f"a{number}")):
        recorded = result_record(ref, a_result(call_id), step=number, index=index)
        await store.record_call(recorded)
        inputs.add_result(recorded)


async def test_the_input_of_a_step_is_the_one_before_and_what_was_recorded(store: ExecutionStore) -> None:
    """18.1.7: also where the execution continues another one, and read messages while it ran."""
    earlier = await accept_execution(store, "Before")
    await run_step(store, earlier, 1, "Then", a_call("c1"))
    ref = await accept_execution(store, continues=earlier.execution_id, metadata=frozen_map({"a": 1}))
    await store.steer(ref, "s1", user("Hurry"))
    inputs, began = NextInputs(lambda: 0.25), await store.begin_step(a_step_start(ref, hears=1))
    loaded = LoadedInput(began.material, 0.0)
    for number in (1, 2):
        await record_step(store, inputs, ref, loaded, number)
        followed = inputs.take(ref, number + 1)
        assert followed is not None
        assert followed.material == (await store.preview_step(ref, number + 1)).material
        assert followed.material.before is not None
        assert followed.material.before.duration_ms == 250
        loaded = followed
    assert len(loaded.material.messages) > 8


def a_material(store_input: Any = EMPTY) -> LoadedInput:
    """The input of a first step, of which these tests read the plan only."""
    material: Any = type("Material", (), {"plan": store_input})()
    return LoadedInput(material, 0.0)


def a_plain_reply(ref: ExecutionRef) -> RecordReply:
    return a_reply(ref, "Look", a_call("c1"))


class TestTheStoreIsRead:
    """18.1.7"""

    async def test_for_a_task_that_names_another_tenant(self) -> None:
        ref, inputs = a_ref(), NextInputs(lambda: 0.0)
        reply: Any = a_plain_reply(ref)
        inputs.keep_reply(reply, a_material(), 0.0)
        recorded = result_record(ref, a_result("c1"))
        inputs.add_result(replace(recorded, ref=replace(ref, tenant_id="another")))
        inputs.add_result(recorded)
        assert inputs.take(replace(ref, tenant_id="another"), 2) is None
        assert len(inputs) == 1

    @pytest.mark.parametrize(
        "changed",
        [
            {"attempt": 2},
            {"added": HookAdditions(said=(user("Note"),))},
            {"added": HookAdditions(notes=MetadataChanges(frozen_map({"a": 1})))},
            {"plan": frozen_map({"processes": True})},
            {"calls": CallNeed.APPROVAL},
            {"calls": None},
            {"besides": Besides(usage=Usage(input=1))},
            {"besides": Besides(usage=Usage(uncounted_calls=1))},
        ],
        ids=[
            "an attempt",
            "a message of a hook",
            "metadata of a hook",
            "processors",
            "an approval",
            "no call",
            "usage of hooks",
            "uncounted usage",
        ],
    )
    async def test_after_a_reply_that_is_not_all_that_changed(self, changed: dict[str, Any]) -> None:
        ref, inputs = a_ref(), NextInputs(lambda: 0.0)
        reply, plan = a_plain_reply(ref), changed.pop("plan", EMPTY)
        if "calls" in changed:
            need = changed.pop("calls")
            reply = a_reply(ref, "Look", a_call("c1"), needs=need) if need else a_reply(ref, "Done")
        if "besides" in changed:
            changed = {"facts": replace(reply.facts, besides=changed["besides"])}
        inputs.keep_reply(replace(reply, **changed), a_material(plan), 0.0)
        inputs.add_result(result_record(ref, a_result("c1")))
        assert inputs.take(ref, 2) is None

    @pytest.mark.parametrize(
        "changed",
        [
            {"record": a_failure("c1")},
            {"record": a_result("c1", besides=Besides(usage=Usage(input=1)))},
            {"record": a_result("c1", attachments=(A_FILE,))},
            {"notes": MetadataChanges(frozen_map({"a": 1}))},
        ],
        ids=["a failure", "usage", "a file", "metadata"],
    )
    async def test_after_a_call_with_side_effects(self, changed: dict[str, Any]) -> None:
        ref, inputs = a_ref(), NextInputs(lambda: 0.0)
        inputs.keep_reply(a_plain_reply(ref), a_material(), 0.0)
        inputs.add_result(replace(result_record(ref, a_result("c1")), **changed))
        assert inputs.take(ref, 2) is None

    async def test_where_another_process_recorded_the_result(self) -> None:
        ref, inputs = a_ref(), NextInputs(lambda: 0.0)
        inputs.keep_reply(a_plain_reply(ref), a_material(), 0.0)
        inputs.add_result(result_record(a_ref(), a_result("c1")))
        inputs.add_result(result_record(ref, a_result("c1"), step=2))
        assert inputs.take(ref, 2) is None

    async def test_for_another_step(self) -> None:
        ref, inputs = a_ref(), NextInputs(lambda: 0.0)
        inputs.keep_reply(a_plain_reply(ref), a_material(), 0.0)
        inputs.add_result(result_record(ref, a_result("c1")))
        assert inputs.take(ref, 3) is None
        assert inputs.take(ref, 2) is None

    async def test_after_a_while(self) -> None:
        """A budget of the operator, which is read with the input, applies to running executions, too."""
        ref, times = a_ref(), [FRESH_SECONDS + 0.001]
        inputs = NextInputs(lambda: times[0])
        inputs.keep_reply(a_plain_reply(ref), a_material(), 0.0)
        inputs.add_result(result_record(ref, a_result("c1")))
        assert inputs.take(ref, 2) is None

    async def test_where_too_many_steps_are_kept(self) -> None:
        inputs, refs = NextInputs(lambda: 0.0), [a_ref() for _ in range(MAX_STEPS + 1)]
        for ref in refs:
            inputs.keep_reply(a_plain_reply(ref), a_material(), 0.0)
        assert len(inputs) == MAX_STEPS


async def test_inputs_that_no_step_takes_are_evicted() -> None:
    """18.1.7: the execution has ended, waits, or goes on in another worker."""
    times = [0.0]
    inputs = NextInputs(lambda: times[0])
    inputs.keep_reply(a_plain_reply(a_ref()), a_material(), 0.0)
    inputs.evict_expired()
    assert len(inputs) == 1
    times[0] = FRESH_SECONDS + 0.001
    inputs.evict_expired()
    assert len(inputs) == 0
