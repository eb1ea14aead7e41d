"""Reads the record of a run from the store, for tests, scripts and training data that are made of it."""

from collections.abc import Mapping
from itertools import count
from typing import Any

from everstep.agent_domain.agents.definition import AgentDefinition
from everstep.agent_domain.agents.spawning import child_ref, find_definition
from everstep.agent_domain.errors import InvalidInput, NotFound
from everstep.agent_domain.ids import ExecutionRef
from everstep.agent_domain.loop.step_facts import CallNeed
from everstep.agent_domain.messages.messages import Messages
from everstep.agent_domain.storage.execution_store import ExecutionStore
from everstep.agent_domain.storage.executions import ExecutionRow
from everstep.agent_domain.storage.metadata_changes import NO_METADATA_CHANGES, MetadataHistory
from everstep.agent_domain.storage.requests import RequestRow
from everstep.agent_domain.storage.run_record import InnerAnswer, RunCall, RunRecord, RunRequest, RunStep
from everstep.agent_domain.storage.steps import (
    EARLIER_EXECUTION,
    MessagePlace,
    StepInput,
    StepRow,
    is_steering,
)
from everstep.agent_domain.values import EMPTY, FrozenDict, frozen_map
from everstep.client.ledgers import missing_execution


class NothingRecorded(InvalidInput):
    """The store has too little of an execution to repeat it."""


async def read_run(
    store: ExecutionStore, ref: ExecutionRef, agents: Mapping[str, AgentDefinition] = EMPTY
) -> RunRecord:
    """Read an execution with those of its subagents, up to the last recorded step.

    Args:
        store: The store.
        ref: The execution.
        agents: The agents of this process. They show what the request asked for beyond the agent.

    Raises:
        NotFound: There is no such execution.
        NothingRecorded: It has not begun, or its messages were removed.
    """
    row = await store.execution(ref)
    if row is None:
        raise await missing_execution(store, ref)
    record = await _read(store, row, agents)
    # A fork and a retry may have no message of their own.
    if row.started_at is None or not (record.messages or record.earlier):
        raise NothingRecorded(_nothing_text(row))
    return record


async def load_replay(store: ExecutionStore, ref: ExecutionRef) -> RunRecord:
    """Read an execution that a replay has carried out, also if it has not begun."""
    row = await store.execution(ref)
    if row is None:
        raise NotFound("execution", ref.execution_id)
    return await _read(store, row, EMPTY)


async def _read(store: ExecutionStore, row: ExecutionRow, agents: Mapping[str, AgentDefinition]) -> RunRecord:
    ref = row.ref
    rows = await store.steps(ref, with_responses=True)
    material = await store.material(ref)
    requests = [
        each for each in await store.requests_within(ref) if each.ref.execution_id == ref.execution_id
    ]
    history = await store.metadata_history(ref)
    parts = _Parts(material)
    earlier = parts.at_step(None)
    definition = find_definition(agents, row.agent)
    processed = [await store.processing(ref, step.number) is not None for step in rows]
    steps = tuple(
        _step_of(step, parts, history, is_processed=each) for step, each in zip(rows, processed, strict=True)
    )
    return RunRecord(
        row.ref,
        row.agent,
        row.status,
        frozen_map(material.spec.model_dump(mode="json")),
        frozen_map(dict(material.plan)),
        row.started_at or row.created_at,
        row.stop_reason,
        row.output,
        row.error_told or row.error_message,
        row.user_id,
        earlier,
        _earlier_compaction(material, len(earlier)),
        await store.continued_input(ref) if earlier else None,
        parts.at_step(0),
        history.initial,
        _request_of(material),
        material.clocks,
        _requested_budgets(material, definition),
        _requested_output(material, definition),
        steps,
        tuple(_request_from(each) for each in requests),
        tuple(await store.sent_commands(ref)),
        await _inner_answers(store, ref, rows),
        await _children(store, ref, rows, agents),
        missing=_missing(rows),
    )


def _nothing_text(row: ExecutionRow) -> str:
    if row.started_at is None:
        return (
            f"the execution {row.ref.execution_id} is {row.status} and has not begun; export it once it runs"
        )
    return (
        f"the messages of the execution {row.ref.execution_id} were removed (pruned or erased), so it cannot "
        "be exported; its row alone is left"
    )


class _Parts:
    """The messages of an execution by their steps."""

    def __init__(self, material: StepInput) -> None:
        self._placed = list(zip(material.places, material.messages, strict=True))

    def at_step(self, number: int | None) -> Messages:
        """The messages with which the execution began (0), or of the executions before it (None)."""

        def belongs(place: MessagePlace) -> bool:
            if number is None:
                return place == EARLIER_EXECUTION
            # Hooks put messages before the first one; a replay runs them again.
            return place[0] == number and place[1] >= 0

        return tuple(message for place, message in self._placed if belongs(place))

    def steering_of(self, number: int) -> Messages:
        """The messages of people that the step read."""
        return tuple(message for place, message in self._placed if place[0] == number and is_steering(place))


def _step_of(row: StepRow, parts: _Parts, history: MetadataHistory, *, is_processed: bool) -> RunStep:
    calls = tuple(
        RunCall(call.call, call.record, history.calls.get((row.number, call.index), NO_METADATA_CHANGES))
        for call in row.calls
    )
    return RunStep(
        row.number,
        row.started_at,
        row.completed_at,
        row.facts,
        row.response,
        row.errors,
        row.outcome,
        parts.steering_of(row.number),
        row.messages,
        calls,
        row.compactions,
        is_processed,
        row.processing_seconds,
        row.wait.until if row.wait else None,
    )


def _request_from(row: RequestRow) -> RunRequest:
    return RunRequest(row.call_id, row.kind, row.request, row.resolution)


def _request_of(material: StepInput) -> FrozenDict:
    run = material.run
    given = {
        "metadata": run.request_metadata or None,
        "related_type": run.related_type,
        "related_id": run.related_id,
    }
    return frozen_map({key: value for key, value in given.items() if value is not None})


def _earlier_compaction(material: StepInput, earlier: int) -> Any:
    """The compaction in force when the execution began; its own ones replace it."""
    own, latest = material.compactions, material.compaction
    return latest if earlier and latest is not None and not own else None


def _is_same_agent(material: StepInput, definition: AgentDefinition | None) -> bool:
    return definition is not None and definition.digest == material.spec.definition_hash


def _requested_budgets(material: StepInput, definition: AgentDefinition | None) -> tuple[FrozenDict, ...]:
    """The budgets of the request: those of the plan that the agent does not have, if it is still the same."""
    if definition is None or not _is_same_agent(material, definition):
        return ()
    own = frozen_map(definition.plan().model_dump(mode="json")).get("budgets") or ()
    return tuple(
        budget
        for budget in material.plan.get("budgets") or ()
        if budget not in own and not budget.get("root")
    )


def _requested_output(material: StepInput, definition: AgentDefinition | None) -> FrozenDict | None:
    """The response format of the request, if the agent is still the same and has another one."""
    if definition is None or not _is_same_agent(material, definition):
        return None
    own = definition.spec().cached_context.get("responseFormat")
    found = material.spec.cached_context.get("responseFormat")
    return None if found == own or found is None else frozen_map(found)


async def _inner_answers(
    store: ExecutionStore, ref: ExecutionRef, rows: tuple[StepRow, ...]
) -> tuple[InnerAnswer, ...]:
    """The answers of models to processors. Those to tools are part of the tools' results."""
    found: list[InnerAnswer] = []
    for row in rows:
        for number in count():
            reply = await store.inner_reply(ref, f"processing/{row.number}/{number}")
            if reply is None:
                break
            found.append(InnerAnswer(reply.key, reply.digest, reply.response))
    return tuple(found)


async def _children(
    store: ExecutionStore,
    ref: ExecutionRef,
    rows: tuple[StepRow, ...],
    agents: Mapping[str, AgentDefinition],
) -> tuple[RunRecord, ...]:
    found: list[RunRecord] = []
    for row in rows:
        for call in row.facts.calls if row.facts else ():
            if call.need not in {CallNeed.SUBAGENT, CallNeed.APPROVAL}:
                continue
            child = child_ref(ref, call.id)
            known = await store.execution(child)
            if known is not None:
                found.append(await _read(store, known, agents))
    return tuple(found)


def _missing(rows: tuple[StepRow, ...]) -> tuple[str, ...]:
    """The steps whose answers the store has no longer."""
    return tuple(
        f"the model's answer of step {row.number}"
        for row in rows
        if row.facts and not row.facts.is_failure and row.response is None
    )
