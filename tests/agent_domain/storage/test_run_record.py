"""The record of a run, and its JSON form."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from uuid import UUID

import pytest

from everstep.agent_domain.attachments import Attachment
from everstep.agent_domain.capabilities.approvals import ApprovalMode, ApprovalRule
from everstep.agent_domain.capabilities.rights import Decider
from everstep.agent_domain.errors import InvalidInput
from everstep.agent_domain.ids import ExecutionRef, subagent_id
from everstep.agent_domain.loop.facts import StateInfo
from everstep.agent_domain.loop.status import ExecutionStatus, StopReason
from everstep.agent_domain.loop.step_error import ErrorType, StepError
from everstep.agent_domain.loop.step_facts import Besides, CallFacts, CallNeed, StepFacts
from everstep.agent_domain.loop.usage import Usage
from everstep.agent_domain.messages.compaction import Compaction
from everstep.agent_domain.messages.messages import assistant, user
from everstep.agent_domain.storage.calls import CallRecord
from everstep.agent_domain.storage.commands import CommandKind, SentCommand
from everstep.agent_domain.storage.compactions import ContinuedInput
from everstep.agent_domain.storage.metadata_changes import MetadataChanges
from everstep.agent_domain.storage.requests import RequestKind, Resolution
from everstep.agent_domain.storage.run_record import (
    InnerAnswer,
    RunCall,
    RunRecord,
    RunRequest,
    RunStep,
)
from everstep.agent_domain.tools.tools import ToolCall
from everstep.agent_domain.values import frozen_map

NOW = datetime(2026, 1, 2, 3, 4, 5, 600, tzinfo=UTC)
ID = UUID(int=7)

RESULT = CallRecord(
    "c1",
    frozen_map({"sea": [1, 2]}),
    None,
    "a sea",
    NOW,
    NOW + timedelta(seconds=1),
    1.0,
    besides=Besides(Usage(1, 2), child_tokens=3, child_cost_usd=Decimal("0.5")),
    note="[edited]\n",
    own_text="a sea",
    attachments=(Attachment.from_bytes("sea.txt", b"blue").without_data,),
)
FAILED = replace(
    RESULT,
    call_id="c2",
    result=None,
    error=StepError("no", ErrorType.TIMEOUT, "look", "Slow"),
    attachments=(),
)
STEP = RunStep(
    1,
    NOW,
    NOW + timedelta(seconds=9),
    StepFacts(1, (CallFacts("c1", "look", CallNeed.APPROVAL),), "tool_calls", Usage(4, 5), seconds=2.0),
    frozen_map({"text": "", "toolCalls": []}),
    (StepError("odd", ErrorType.VALIDATION),),
    frozen_map({"shouldContinue": True, "resolvedBy": "Work"}),
    (user("Look twice"),),
    (user("Look twice"), assistant("")),
    (
        RunCall(
            ToolCall("c1", "look", frozen_map({"at": "sea"})), RESULT, MetadataChanges(frozen_map({"n": 1}))
        ),
        RunCall(ToolCall("c2", "look", malformed="{"), FAILED),
        RunCall(ToolCall("c3", "look")),
    ),
    (Compaction(2, ("They talked",), step=1),),
    True,
    0.5,
    NOW + timedelta(seconds=3),
)
CHILD = RunRecord(
    ExecutionRef(subagent_id(ID, "c1")),
    "desk/helper",
    ExecutionStatus.COMPLETED,
    frozen_map({"agent": "helper"}),
    frozen_map({"agent": "helper"}),
    NOW,
)
RECORD = RunRecord(
    ExecutionRef(ID, "tenant", UUID(int=8)),
    "desk",
    ExecutionStatus.FAILED,
    frozen_map({"agent": "desk"}),
    frozen_map({"max_steps": 3}),
    NOW,
    StopReason.ERROR,
    frozen_map({"response": "Done"}),
    "no",
    "ann",
    (user("Before"),),
    Compaction(1, ("Earlier",)),
    ContinuedInput(Usage(9, 1), 2),
    (user("Go"),),
    frozen_map({"order": 7}),
    frozen_map({"related_type": "order"}),
    StateInfo(cumulative_execution_seconds=1.5),
    (frozen_map({"unit": "steps", "limit": "2"}),),
    frozen_map({"type": "json_schema"}),
    (STEP, replace(STEP, number=2, facts=None, completed_at=None, calls=(), asked_again_at=None)),
    (
        RunRequest(
            "c1",
            CallNeed.APPROVAL,
            frozen_map({}),
            Resolution(
                "edit",
                frozen_map({"at": "pond"}),
                "wet",
                remember=ApprovalRule(tool="look", approval=ApprovalMode.NEVER),
                by=Decider("ann", NOW, ("approve",)),
            ),
        ),
        RunRequest("", RequestKind.BUDGET, frozen_map({"unit": "steps"})),
        RunRequest("c2", CallNeed.APPROVAL, frozen_map({}), Resolution("deny", is_expired=True)),
    ),
    (SentCommand(CommandKind.PAUSE, NOW),),
    (InnerAnswer("processing/1/0", "digest", frozen_map({"text": "good"})),),
    (CHILD,),
    2,
    ("the model's answer of step 3",),
)


@pytest.mark.parametrize("record", [RECORD, CHILD], ids=["everything", "nothing"])
def test_the_json_form_of_a_record_has_all_of_it(record: RunRecord) -> None:
    """15.3.1"""
    assert RunRecord.from_dict(record.to_dict()) == record


def test_what_later_releases_add_is_ignored() -> None:
    """15.3.9"""
    assert RunRecord.from_dict({**RECORD.to_dict(), "colour": "blue"}) == RECORD


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"format": "other"}, "the file is not an exported run"),
        ({"version": 2}, "the file has version 2 of the format, and this release reads up to 1"),
        ({"version": "1"}, "has version 1 of the format"),
        ({"execution": {}}, "the file"),
    ],
)
def test_other_data_are_refused(change: dict[str, object], message: str) -> None:
    """15.3.9"""
    with pytest.raises(InvalidInput, match=message):
        RunRecord.from_dict({**RECORD.to_dict(), **change})


def test_a_record_finds_its_parts() -> None:
    """15.3.2"""
    assert RECORD.step(1) is STEP
    assert RECORD.step(9) is None
    assert RECORD.call("c2") is STEP.calls[1]
    assert RECORD.call("c9") is None
    assert RECORD.child("c1") is CHILD
    assert RECORD.child("c2") is None
    assert [run.agent for run in RECORD.each_run()] == ["desk", "desk/helper"]
    assert RECORD.last_outcome == STEP.outcome
    assert CHILD.last_outcome is None


def test_a_call_that_was_closed_has_no_result_of_its_own() -> None:
    """15.3.2: release 0.1 recorded neither part of a text."""
    call = STEP.calls[0]
    assert not call.is_abandoned
    assert STEP.calls[2].is_abandoned
    assert replace(call, record=replace(RESULT, note="", own_text=None)).is_abandoned
    assert not replace(call, record=replace(RESULT, note=None, own_text=None)).is_abandoned


def test_a_reply_comes_after_the_last_attempt() -> None:
    """15.3.2: the facts of a step count its last attempt only."""
    assert STEP.replied_at == NOW + timedelta(seconds=5)
    assert replace(STEP, asked_again_at=None).replied_at == NOW + timedelta(seconds=2)
    assert replace(STEP, facts=None).replied_at is None
