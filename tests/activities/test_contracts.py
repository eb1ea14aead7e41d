"""Data in histories are read as they were written, also by later versions."""

from dataclasses import MISSING, fields
from typing import Any
from uuid import UUID

import pytest
from temporalio.api.common.v1 import Payload
from temporalio.contrib.pydantic import pydantic_data_converter

from everstep.activities.contracts import (
    WRITTEN_WITHOUT_DEFAULTS,
    InferInput,
    ProcessInput,
    ProcessOutput,
    ReportInput,
    SpawnInput,
    ToolInput,
    ToolOutput,
)
from everstep.agent_domain.errors import InvalidInput
from everstep.agent_domain.ids import ExecutionRef
from everstep.agent_domain.loop.hook_requests import Wishes
from everstep.agent_domain.loop.step_error import ErrorType, StepError
from everstep.agent_domain.loop.step_facts import Besides, CallFacts, CallNeed, StepFacts
from everstep.agent_domain.loop.usage import Usage
from everstep.agent_domain.tools.tools import Effect
from everstep.agent_domain.values import EMPTY, frozen_map
from everstep.runtime.temporal import data_converter

REF = ExecutionRef(UUID(int=1))
FULL_REF = ExecutionRef(UUID(int=1), "acme", UUID(int=2))
STEP = StepFacts(1, (CallFacts("c1", "look"),), "tool_calls", Usage(12, 3), seconds=0.25)

VALUES: list[tuple[Any, str]] = [
    (
        InferInput(REF, 1),
        '{"ref":{"execution_id":"00000000-0000-0000-0000-000000000001"},"number":1}',
    ),
    (
        InferInput(
            FULL_REF,
            2,
            frozen_map({"by": "StepsLimit", "votes": []}),
            hears=1,
            model_attempts=1,
        ),
        '{"ref":{"execution_id":"00000000-0000-0000-0000-000000000001","tenant_id":"acme",'
        '"session_id":"00000000-0000-0000-0000-000000000002"},"number":2,'
        '"outcome":{"by":"StepsLimit","votes":[]},"hears":1,"model_attempts":1}',
    ),
    (
        ToolInput(REF, "agent", 1, "c1", Effect.AT_MOST_ONCE, CallNeed.INPUT),
        '{"ref":{"execution_id":"00000000-0000-0000-0000-000000000001"},"agent":"agent","number":1,'
        '"call_id":"c1","effect":"at_most_once","need":"input"}',
    ),
    (
        ToolOutput(CallFacts("c1", "look", is_settled=True, error=StepError("", ErrorType.TIMEOUT)), 0.5),
        '{"call":{"id":"c1","name":"look","is_settled":true,"error":{"message":"","type":"timeout"}},'
        '"seconds":0.5}',
    ),
    (
        STEP,
        '{"number":1,"calls":[{"id":"c1","name":"look"}],"finish_reason":"tool_calls",'
        '"usage":{"input":12,"output":3},"seconds":0.25}',
    ),
]


@pytest.mark.parametrize(("value", "text"), VALUES, ids=lambda value: type(value).__name__)
async def test_facts_are_written_briefly_and_read_as_they_were(value: Any, text: str) -> None:
    """1.1.1: by this code, and by others with pydantic's converter."""
    (payload,) = await data_converter().encode([value])

    assert payload.data.decode() == text
    assert await data_converter().decode([payload], [type(value)]) == [value]
    assert await pydantic_data_converter.decode([payload], [type(value)]) == [value]


@pytest.mark.parametrize(("value", "text"), VALUES, ids=lambda value: type(value).__name__)
async def test_a_field_of_a_later_version_is_ignored(value: Any, text: str) -> None:
    """0.6: readers skip unknown fields."""
    (payload,) = await data_converter().encode([value])
    payload.data = (text[:-1] + ',"since":2}').encode()

    assert await data_converter().decode([payload], [type(value)]) == [value]


DEFAULTS: dict[type, dict[str, Any]] = {
    InferInput: {"outcome": None, "hears": 0, "model_attempts": 3, "marks": EMPTY},
    ToolInput: {"effect": Effect.IDEMPOTENT, "need": CallNeed.RUN, "marks": EMPTY},
    ToolOutput: {"besides": Besides()},
    ProcessInput: {"usage": Usage(), "marks": EMPTY},
    ProcessOutput: {"seconds": 0.0, "besides": Besides(), "error": None},
    SpawnInput: {"tokens_left": None},
    ReportInput: {"seconds": 0.0, "tokens": 0},
    Besides: {"usage": Usage(), "child_tokens": 0, "wishes": Wishes()},
    Wishes: {"stop": None, "another_step": False, "pause": False, "marks": EMPTY},
    StepFacts: {
        "calls": (),
        "finish_reason": None,
        "usage": Usage(),
        "pseudo_errors": (),
        "own_errors": (),
        "own_type": None,
        "is_failure": False,
        "seconds": 0.0,
        "besides": Besides(),
    },
    CallFacts: {"need": CallNeed.RUN, "is_settled": False, "error": None},
    StepError: {"type": None, "tool_name": None, "exception": None},
    ExecutionRef: {"tenant_id": "default", "session_id": None},
    Usage: {"input": 0, "output": 0, "cache_write": 0, "cache_read": 0, "reasoning": 0},
}


@pytest.mark.parametrize("kind", DEFAULTS, ids=lambda kind: kind.__name__)
def test_no_default_of_an_omitted_field_ever_changes(kind: type) -> None:
    """1.1.1: otherwise the fields that were omitted yesterday would change their meaning. New fields may be
    added.
    """
    known = {field.name: field.default for field in fields(kind) if field.default is not MISSING}

    assert known.items() >= DEFAULTS[kind].items()
    assert set(WRITTEN_WITHOUT_DEFAULTS) <= DEFAULTS.keys()


@pytest.mark.parametrize("other", ["", ',"besides":{"usage":{"input":7},"wishes":{"pause":true}}'])
async def test_the_critique_of_a_former_result_is_a_mark(other: str) -> None:
    """9.7.3, 1.1.1: of processors that ran when it was a field of its own."""
    written = f'{{"seconds":0.5{other},"critique":{{"verdict":"rejected","iteration":1}}}}'
    payload = Payload(metadata={"encoding": b"json/plain"}, data=written.encode())

    (output,) = await data_converter().decode([payload], [ProcessOutput])

    marks = frozen_map({"critique": {"verdict": "rejected", "iteration": 1}})
    usage = Usage(7) if other else Usage()
    assert output == ProcessOutput(0.5, Besides(usage, wishes=Wishes(pause=bool(other), marks=marks)))


def test_steps_are_counted_from_one() -> None:
    """4.4.1: there is no step 0."""
    with pytest.raises(InvalidInput):
        InferInput(REF, 0)
