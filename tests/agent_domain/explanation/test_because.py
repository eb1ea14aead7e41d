"""The because of an execution, from its rows."""

from collections.abc import Mapping
from dataclasses import replace
from datetime import timedelta
from decimal import Decimal
from itertools import pairwise
from typing import Any
from uuid import UUID

import pytest

from everstep.agent_domain.capabilities.rights import Decider, DecisionPolicy
from everstep.agent_domain.explanation.because import (
    ExecutionBecause,
    HeardMessage,
    StepExplainer,
    ended_sentence,
    execution_sentence,
    explain_execution,
)
from everstep.agent_domain.ids import ExecutionRef, request_id
from everstep.agent_domain.loop.continuation import ContinuationCriteria
from everstep.agent_domain.loop.criteria import ErrorPolicyCriterion, StepsLimit, ToolCallPresenceCheck
from everstep.agent_domain.loop.facts import ExecutionFacts
from everstep.agent_domain.loop.status import ExecutionStatus, StopReason
from everstep.agent_domain.loop.step_error import StepError
from everstep.agent_domain.loop.step_facts import Besides, CallFacts, CallNeed, StepFacts
from everstep.agent_domain.loop.usage import Usage
from everstep.agent_domain.messages.compaction import Compaction
from everstep.agent_domain.storage.calls import AnsweredQuestion, CallRecord, CallRow
from everstep.agent_domain.storage.executions import ExecutionRow
from everstep.agent_domain.storage.requests import RequestKind, RequestRow, RequestState, Resolution
from everstep.agent_domain.storage.steps import RetryWait, StepRow
from everstep.agent_domain.tools.tools import ToolCall
from everstep.agent_domain.values import EMPTY, FrozenDict, frozen_map
from tests.agent_domain.executions import NOON, a_step, after, an_answered_call, an_execution

REF = ExecutionRef(UUID(int=7), "acme")
JANE = Decider("jane", NOON, ("cancel",))
NOW = after(12)


def an_execution_row(status: ExecutionStatus = ExecutionStatus.RUNNING, **fields: Any) -> ExecutionRow:
    known: dict[str, Any] = {
        "ref": REF,
        "agent": "helper",
        "status": status,
        "step_count": 0,
        "usage": EMPTY,
        "stop_reason": None,
        "output": None,
        "error_message": None,
        "metadata": EMPTY,
        "created_at": NOON,
        "started_at": NOON,
        "completed_at": None,
    }
    return ExecutionRow(**{**known, **fields})


def an_outcome(facts: ExecutionFacts, *limits: StepsLimit) -> FrozenDict:
    criteria = ContinuationCriteria(*limits, ErrorPolicyCriterion(), ToolCallPresenceCheck())
    return frozen_map(criteria.evaluate(facts).to_record())


CALLED = an_execution(a_step(an_answered_call()))
ANSWERED = an_execution(a_step())
GOES_ON, ENDS = an_outcome(CALLED), an_outcome(ANSWERED)


def a_call_row(call_id: str = "a", tool: str = "search", *, done: bool = True, **fields: Any) -> CallRow:
    record = CallRecord(call_id, "", None, "", NOON, NOON, 0.0) if done else None
    call = ToolCall(call_id, tool, frozen_map({"amount": 19.9}))
    known: dict[str, Any] = {"attempts": 1, "record": record, **fields}
    return CallRow(call, "done" if done else "told", **known)


def a_step_row(number: int = 1, outcome: FrozenDict | None = None, *calls: CallRow, **fields: Any) -> StepRow:
    needs = fields.pop("needs", {})
    known = [CallFacts(row.call.id, row.call.name, needs.get(row.call.id, CallNeed.RUN)) for row in calls]
    facts = StepFacts(number, tuple(known), usage=Usage(input=3).with_cost(Decimal("0.5")))
    given: dict[str, Any] = {
        "attempt": 1,
        "facts": facts,
        "errors": (),
        "partial_text": "",
        "started_at": NOON,
        **fields,
    }
    return StepRow(number, outcome=outcome, completed_at=NOON if outcome else None, calls=calls, **given)


def a_request(kind: Any = CallNeed.APPROVAL, request: Mapping[str, Any] = EMPTY, **fields: Any) -> RequestRow:
    args = frozen_map({"amount": 19.9})
    known: dict[str, Any] = {
        "step_number": 1,
        "policy": DecisionPolicy() if kind is CallNeed.APPROVAL else None,
        **fields,
    }
    return RequestRow(
        UUID(int=9),
        REF,
        "a",
        kind,
        RequestState.OPEN,
        "refund",
        args,
        "",
        frozen_map(request),
        None,
        NOON,
        **known,
    )


def explain(row: ExecutionRow, *steps: StepRow, **given: Any) -> ExecutionBecause:
    return explain_execution(row, steps, now=NOW, **given)


UNANSWERED = a_step_row(facts=None)
WAIT = RetryWait(2, NOON, after(20), "provider unavailable, next attempt in 8 s", "503 of http://host")
RUNNING, PAUSED = an_execution_row(), an_execution_row(ExecutionStatus.PAUSED)
BUDGET = {"unit": "usd", "scope": "user", "limit": 0.25, "spent": 0.24, "needed": 0.03}


@pytest.mark.parametrize(
    ("row", "steps", "given", "sentence"),
    [
        (
            an_execution_row(ExecutionStatus.PENDING),
            (),
            {},
            "pending: waiting for a worker since 12:00 UTC",
        ),
        (
            an_execution_row(ExecutionStatus.PENDING, ahead=1),
            (),
            {},
            "pending: queued behind 1 execution of its session since 12:00 UTC",
        ),
        (RUNNING, (), {}, "runs: step 1 begins"),
        (RUNNING, (UNANSWERED,), {}, "runs: the model has been answering since 12:00 UTC"),
        (
            RUNNING,
            (replace(UNANSWERED, attempt=2),),
            {},
            "runs: the model has been answering since 12:00 UTC, attempt 2",
        ),
        (
            RUNNING,
            (replace(UNANSWERED, attempt=2, wait=WAIT),),
            {},
            "retried: provider unavailable for 12 s, attempt 3, next in 8 s",
        ),
        (
            RUNNING,
            (replace(UNANSWERED, attempt=2, wait=replace(WAIT, until=NOON)),),
            {},
            "retried: provider unavailable for 12 s, attempt 3, due now",
        ),
        (
            RUNNING,
            (a_step_row(1, None, a_call_row(done=False)),),
            {},
            "runs: search(amount: 19.9) since 12:00 UTC",
        ),
        (
            RUNNING,
            (a_step_row(1, None, a_call_row(tool="writer", done=False), needs={"a": CallNeed.SUBAGENT}),),
            {},
            "waits: subagent writer since 12:00 UTC",
        ),
        (
            PAUSED,
            (a_step_row(1, None, a_call_row(done=False)),),
            {"requests": [a_request()]},
            "waits: approval of refund(amount: 19.9) by scope approve since 12:00 UTC",
        ),
        (
            PAUSED,
            (a_step_row(1, None, a_call_row(done=False)),),
            {
                "requests": [
                    a_request(policy=DecisionPolicy(approver=("owner", "role:boss"), expires_after=86400)),
                    a_request(),
                ]
            },
            "waits: approval of refund(amount: 19.9) by the owner or role boss since 12:00 UTC, "
            "denied at 2026-01-17 12:00 UTC, and 1 more",
        ),
        (
            PAUSED,
            (a_step_row(1, None, a_call_row(done=False)),),
            {"requests": [a_request(CallNeed.INPUT)]},
            "waits: answer to refund since 12:00 UTC",
        ),
        (
            PAUSED,
            (a_step_row(1, GOES_ON, a_call_row()),),
            {"requests": [a_request(RequestKind.BUDGET, BUDGET, step_number=2)]},
            "waits: a higher limit by scope approve since 12:00 UTC; budget of the user: 0.24 of 0.25 USD "
            "spent, the next model call needs up to 0.03 USD",
        ),
        (PAUSED, (a_step_row(1, GOES_ON, a_call_row()),), {}, "paused: until it is resumed"),
        (
            replace(PAUSED, paused_by=JANE),
            (a_step_row(1, GOES_ON, a_call_row()),),
            {},
            "paused: by jane (cancel) since 12:00 UTC, until it is resumed",
        ),
        (RUNNING, (a_step_row(1, GOES_ON, a_call_row()),), {}, "runs: step 2 begins"),
        (RUNNING, (a_step_row(1, None, a_call_row()),), {}, "runs: what follows step 1 is being decided"),
    ],
)
def test_an_execution_under_way_says_what_it_waits_for_or_does(
    row: ExecutionRow, steps: tuple[StepRow, ...], given: dict[str, Any], sentence: str
) -> None:
    """15.1.1, 18.6.5: with who may act, since when, and until when; for webhooks without arguments."""
    assert explain(row, *steps, **given).sentence == sentence

    explainer = StepExplainer(row, NOW, tuple(given.get("requests", ())), has_content=False)
    without_content = execution_sentence(explainer, steps[-1] if steps else None)
    assert without_content == sentence.replace("(amount: 19.9)", "")


@pytest.mark.parametrize(
    ("row", "steps", "sentence"),
    [
        (
            an_execution_row(ExecutionStatus.PENDING),
            (),
            "pending: waiting until max_model_calls of the tenant 'acme' is raised from 0, since 12:00 UTC",
        ),
        (
            an_execution_row(ExecutionStatus.PENDING, queue_position=2),
            (),
            "pending: number 2 in the queue of its tenant, until max_model_calls of the tenant 'acme' is "
            "raised from 0, since 12:00 UTC",
        ),
        (RUNNING, (), "waits: until max_model_calls of the tenant 'acme' is raised from 0"),
        (
            RUNNING,
            (a_step_row(1, GOES_ON, a_call_row()),),
            "waits: until max_model_calls of the tenant 'acme' is raised from 0",
        ),
        (
            RUNNING,
            (a_step_row(1, None, a_call_row()),),
            "waits: until max_model_calls of the tenant 'acme' is raised from 0",
        ),
        (RUNNING, (UNANSWERED,), "runs: the model has been answering since 12:00 UTC"),
        (PAUSED, (a_step_row(1, GOES_ON, a_call_row()),), "paused: until it is resumed"),
    ],
)
def test_an_execution_that_a_limit_holds_says_so(
    row: ExecutionRow, steps: tuple[StepRow, ...], sentence: str
) -> None:
    """18.2.18"""
    explainer = StepExplainer(row, NOW, limit="until max_model_calls of the tenant 'acme' is raised from 0")
    assert execution_sentence(explainer, steps[-1] if steps else None) == sentence


ENDED = an_execution_row(ExecutionStatus.COMPLETED, step_count=1, stop_reason=StopReason.COMPLETED)
LIMITED = replace(ENDED, stop_reason=StopReason.STEPS_LIMIT)
CANCELLED = an_execution_row(
    ExecutionStatus.CANCELLED, stop_reason=StopReason.USER_REQUESTED, cancelled_by=JANE
)
FAILED = an_execution_row(
    ExecutionStatus.FAILED,
    stop_reason=StopReason.ERROR,
    error_message="the secret",
    error_told="KeyError (ref 1)",
)


@pytest.mark.parametrize(
    ("row", "steps", "sentence"),
    [
        (ENDED, (a_step_row(1, ENDS),), "completed: the model answered without calling tools"),
        (LIMITED, (a_step_row(1, an_outcome(CALLED, StepsLimit(1)), a_call_row()),), "stopped: 1 of 1 steps"),
        (CANCELLED, (), "cancelled: by jane (cancel), before its first step was complete"),
        (
            replace(CANCELLED, step_count=1),
            (a_step_row(1, GOES_ON, a_call_row()), replace(UNANSWERED, number=2)),
            "cancelled: by jane (cancel), after 1 step",
        ),
        (FAILED, (), "failed: KeyError (ref 1)"),
        (replace(FAILED, error_told=None), (), "failed: the reason is not recorded"),
        (
            replace(LIMITED, outcome=an_outcome(CALLED, StepsLimit(0)), step_count=0),
            (),
            "stopped: 1 of 0 steps",
        ),
        (LIMITED, (), "stopped: the step limit was reached after 1 step; the votes are not recorded"),
        (replace(LIMITED, step_count=0), (), "stopped: 0 of 0 steps"),
    ],
)
def test_an_ended_execution_says_why(row: ExecutionRow, steps: tuple[StepRow, ...], sentence: str) -> None:
    """15.1.1, 15.1.5: by the votes, or as far as it is recorded."""
    because = explain(row, *steps)

    assert because.sentence == sentence
    if steps and steps[-1].facts:
        assert because.steps[-1].sentence == sentence


def test_a_step_that_the_end_cut_short_was_abandoned() -> None:
    """15.1.1: the execution ended before the model answered."""
    steps = a_step_row(1, GOES_ON, a_call_row()), replace(UNANSWERED, number=2)

    explained = explain(replace(CANCELLED, step_count=1), *steps).steps

    assert [step.sentence for step in explained] == [
        "went on: the model called 1 tool: search",
        "abandoned: the execution ended before the model answered",
    ]


def test_a_step_waits_for_the_budget_of_the_next_one() -> None:
    """15.1.1: the request comes before that step begins."""
    request = a_request(RequestKind.BUDGET, BUDGET, step_number=2)

    because = explain(PAUSED, a_step_row(1, None, a_call_row()), requests=[request])

    assert because.sentence.startswith(
        "waits: a higher limit by scope approve since 12:00 UTC; budget of the"
    )
    assert because.steps[0].sentence == because.sentence


def test_each_step_says_why_another_one_followed() -> None:
    """15.1.1, 15.1.4: with the votes, the usage and the cost."""
    because = explain(replace(ENDED, step_count=2), a_step_row(1, GOES_ON, a_call_row()), a_step_row(2, ENDS))
    first, last = because.steps

    assert (first.number, first.sentence) == (1, "went on: the model called 1 tool: search")
    assert last.sentence == because.sentence == "completed: the model answered without calling tools"
    assert [vote.name for vote in first.votes] == ["ToolCallPresenceCheck"]
    assert first.folded_votes == 1
    assert (first.usage, first.cost_usd) == (Usage(input=3), Decimal("0.5"))


def test_a_step_counts_what_its_tools_used() -> None:
    """15.1.4: the model calls of tools, too."""
    call = a_call_row()
    assert call.record
    used = Besides(usage=Usage(output=4))
    (step,) = explain(
        RUNNING, a_step_row(1, None, replace(call, record=replace(call.record, besides=used)))
    ).steps

    assert step.usage == Usage(input=3, output=4)


def test_a_step_after_a_message_is_explained_by_it() -> None:
    """15.1.1: the message that the next step read requested it."""
    requested = an_outcome(ANSWERED.requested())
    steps = a_step_row(1, requested), a_step_row(2, ENDS, message_keys=("k",))

    because = explain(replace(ENDED, step_count=2), *steps)

    assert [step.sentence for step in because.steps] == [
        "went on: a message arrived",
        "completed: the model answered without calling tools",
    ]
    assert because.steps[1].messages == (HeardMessage("message", "k"),)


def test_a_step_names_the_decisions_of_people() -> None:
    """15.1.4: by the id of the request, with who decided."""
    approved = Resolution("approve", by=Decider("jane", NOON, ("approve",)))
    (step,) = explain(RUNNING, a_step_row(1, GOES_ON, a_call_row(decision=approved))).steps

    identity = str(request_id(REF.execution_id, "a"))
    assert step.messages == (HeardMessage("approve", identity, "jane (approve)"),)
    assert step.messages[0].to_dict() == {"kind": "approve", "id": identity, "by": "jane (approve)"}


def test_a_step_names_the_answer_to_its_question() -> None:
    """15.1.4: without its text."""
    answered = AnsweredQuestion(UUID(int=3), Resolution("answer", "Friday", by=JANE))
    (step,) = explain(RUNNING, a_step_row(1, GOES_ON, a_call_row(answered=answered))).steps

    assert step.messages == (HeardMessage("answer", str(UUID(int=3)), "jane (cancel)"),)
    assert "Friday" not in repr(step)


@pytest.mark.parametrize(
    ("step", "superseded"),
    [
        (a_step_row(1, ENDS), ()),
        (a_step_row(1, ENDS, attempt=2), ("attempt 1 given up: the worker was lost or stopped",)),
        (
            a_step_row(1, ENDS, attempt=4, wait=WAIT, failed_attempts=(1, 2)),
            (
                "attempts 1 to 2 given up: provider unavailable for 20 s",
                "attempt 3 given up: the worker was lost or stopped",
            ),
        ),
        (
            a_step_row(1, ENDS, attempt=4, wait=WAIT, failed_attempts=(1, 3)),
            (
                "attempts 1, 3 given up: provider unavailable for 20 s",
                "attempt 2 given up: the worker was lost or stopped",
            ),
        ),
        (
            a_step_row(1, ENDS, attempt=2, failed_attempts=(1,)),
            ("attempt 1 given up: the provider failed",),
        ),
        (
            replace(UNANSWERED, attempt=2, wait=WAIT, failed_attempts=(1, 2)),
            ("attempts 1 to 2 given up: provider unavailable for 20 s",),
        ),
        (
            a_step_row(1, GOES_ON, a_call_row(attempts=3)),
            ("2 attempts at search given up: the worker was lost or stopped",),
        ),
    ],
)
def test_a_step_says_which_attempts_were_given_up(step: StepRow, superseded: tuple[str, ...]) -> None:
    """15.1.4: those at its model call, and at its tool calls."""
    assert explain(RUNNING, step).steps[0].superseded == superseded


def test_a_step_says_what_was_compacted_before_it() -> None:
    """15.1.4."""
    compaction = Compaction(messages=4, tokens_before=900, tokens_after=300)
    (step,) = explain(RUNNING, a_step_row(1, GOES_ON, compactions=(compaction,))).steps

    assert step.compactions == (compaction.text,)


def test_a_step_without_a_decision_was_interrupted() -> None:
    """15.1.1: an exception after a step is a step of its own."""
    row = replace(FAILED, step_count=2)
    failure = replace(a_step_row(2, ENDS), facts=StepFacts.failure(2, StepError("", exception="KeyError")))

    assert explain(row, a_step_row(1, None), failure).steps[0].sentence == (
        "interrupted: by the exception recorded as step 2"
    )


def test_a_decision_that_an_older_release_lost_is_said_to_be_missing() -> None:
    """15.1.5"""
    row = replace(FAILED, step_count=2)

    assert explain(row, a_step_row(1, None), a_step_row(2, ENDS)).steps[0].sentence == (
        "went on: the votes are not recorded"
    )


def test_viewers_do_not_read_the_texts_of_errors() -> None:
    """15.1.3, 5.4.4: neither in sentences nor in votes."""
    failed = replace(an_answered_call(), error=StepError("", None, "search", "KeyError"))
    error = StepError("the secret", exception="KeyError", ref="12ab")
    call = a_call_row()
    assert call.record
    step = a_step_row(
        1, an_outcome(an_execution(a_step(failed))), replace(call, record=replace(call.record, error=error))
    )
    row = replace(FAILED, step_count=1, error_told=None, error_message=None)

    public, full = explain(row, step), explain(row, step, in_full=True)

    assert (
        public.sentence
        == "failed: tool error in search: KeyError (ref 12ab); 1 failure in a row, max_retries 0"
    )
    assert full.sentence == "failed: tool error in search: the secret; 1 failure in a row, max_retries 0"
    assert "the secret" not in repr(public)
    assert explain(FAILED, in_full=True).sentence == "failed: the secret"


def test_the_sentence_of_an_end_quotes_no_text_where_content_is_not_sent() -> None:
    """18.6.5: nor the text of a tool's error that every viewer may read."""
    error = StepError("no patient Ann", exception="ToolError", is_public=True)
    row = replace(FAILED, step_count=1, error_told=error.message, error_message=error.message)
    failed = replace(an_answered_call(), error=replace(error, message="", tool_name="search"))
    step = a_step_row(1, an_outcome(an_execution(a_step(failed))), a_call_row(), errors=(error,))

    assert "no patient Ann" in ended_sentence(row, step)
    assert (
        ended_sentence(row, step, has_content=False)
        == "failed: tool error in search: ToolError; 1 failure in a row, max_retries 0"
    )
    assert ended_sentence(row, None, has_content=False) == "failed: the execution has the error"
    lost = a_step_row(1, None, errors=(replace(error, exception=None, ref="12ab"),))
    assert ended_sentence(row, lost, has_content=False) == "failed: unknown (ref 12ab)"


def test_explaining_a_thousand_steps_takes_no_more_for_each_than_for_one() -> None:
    """15.1.6: a step is explained by itself and the one after it."""
    explainer = StepExplainer(replace(RUNNING, step_count=1000), NOW)
    steps = [a_step_row(number, GOES_ON, a_call_row()) for number in range(1, 1001)]

    alone = [explainer.explain(step, follower) for step, follower in pairwise(steps)]

    assert tuple(alone) == explain_execution(explainer.row, steps, now=NOW).steps[:-1]


def test_times_of_another_day_have_a_date() -> None:
    """15.1.1."""
    (step,) = explain_execution(RUNNING, [UNANSWERED], now=NOW + timedelta(days=1)).steps

    assert step.sentence == "runs: the model has been answering since 2026-01-16 12:00 UTC"
