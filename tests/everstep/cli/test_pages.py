"""Pages for terminals: no text of a model is markup or moves the cursor, and tables stay aligned."""

import io
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given, settings, strategies as st
from rich.cells import cell_len
from rich.console import RenderableType
from rich.theme import Theme

from everstep.agent_domain.capabilities.rights import Decider, DecisionPolicy
from everstep.agent_domain.ids import ExecutionRef
from everstep.agent_domain.loop.status import ExecutionStatus
from everstep.agent_domain.loop.step_error import StepError
from everstep.agent_domain.loop.step_facts import CallNeed, StepFacts
from everstep.agent_domain.messages.messages import assistant, user
from everstep.agent_domain.storage.calls import CallRecord, CallRow
from everstep.agent_domain.storage.executions import ExecutionRow
from everstep.agent_domain.storage.overview import AgentLoad, CurrentStep, OpenExecution, Overview
from everstep.agent_domain.storage.requests import RequestKind, RequestRow, RequestState, Resolution
from everstep.agent_domain.storage.steps import RetryWait, StepRow
from everstep.agent_domain.tools.tools import ToolCall
from everstep.agent_domain.values import EMPTY, frozen_map
from everstep.cli import output
from everstep.cli.console import SafeConsole
from everstep.cli.execution_page import (
    CARD_LINES,
    PageContext,
    call_card,
    children_tree,
    execution_head,
    request_card,
    step_block,
)
from everstep.cli.execution_trees import ExecutionTree
from everstep.cli.printing import visible
from everstep.cli.styles import COLORS
from everstep.cli.table_output import Column, build_table
from everstep.cli.top import build_page, doing_text
from everstep.cli.what_if_output import progress_text
from tests.everstep.cli.agents import HOSTILE

AT = datetime(2026, 1, 16, 10, 5, tzinfo=UTC)
LATER = AT + timedelta(seconds=2)
REF = ExecutionRef(UUID(int=1), "tenant")
MARKUP = "[bold red]not bold[/] :smile: [link=http://x]y[/link]"


def draw(part: RenderableType, width: int = 80, encoding: str = "utf-8") -> str:
    """What a terminal shows, without colours."""
    binary = io.BytesIO()
    file = io.TextIOWrapper(binary, encoding=encoding, errors="replace", newline="")
    console = SafeConsole(
        file=file, width=width, theme=Theme(dict(COLORS)), markup=False, emoji=False, highlight=False
    )
    console.print(part)
    file.flush()
    return binary.getvalue().decode(encoding)


def an_execution(status: ExecutionStatus = ExecutionStatus.COMPLETED, agent: str = "clerk") -> ExecutionRow:
    return ExecutionRow(
        REF, agent, status, 2, frozen_map({"total": 12}), None, None, None, EMPTY, AT, AT, LATER
    )


def a_call(text: str = "done", *, name: str = "transfer", success: bool = True, **args: Any) -> CallRow:
    record = CallRecord("c1", text, None, text, AT, LATER, 2.0, success)
    return CallRow(ToolCall("c1", name, frozen_map(args)), "done", 1, record)


def a_request(kind: CallNeed = CallNeed.APPROVAL, **request: Any) -> RequestRow:
    policy = DecisionPolicy() if kind is CallNeed.APPROVAL else None
    return RequestRow(
        UUID(int=7), REF, "c1", kind, RequestState.OPEN, "transfer", frozen_map({"euros": 80}), "d" * 64,
        frozen_map(request), None, AT, 1, "clerk", "ann", policy,
    )  # fmt: skip


def a_step(*calls: CallRow, said: str = "Hello", **changes: Any) -> StepRow:
    row = StepRow(1, 1, StepFacts(number=1), (), None, "", AT, LATER, (assistant(said),), calls)
    return replace(row, **changes)


def test_a_card_shows_the_call_and_its_result() -> None:
    """15.5.1"""
    shown = draw(call_card(a_call("transferred 80", euros=80), PageContext(LATER)))

    assert "transfer  done · 2.0 s" in shown
    assert "euros: 80" in shown
    assert "→ transferred 80" in shown


def test_a_step_that_waited_for_a_budget_says_who_raised_it() -> None:
    """15.5.4"""
    given = Resolution("raise", "5", by=Decider("ann", LATER, ("approve",)))
    budget = replace(
        a_request(CallNeed.INPUT, unit="steps"), call_id="", kind=RequestKind.BUDGET, resolution=given
    )
    shown = draw(step_block(a_step(), PageContext(LATER, requests=[budget])))

    assert "budget     raised to 5 steps by ann (approve)" in shown


def test_a_failed_call_says_so_in_words() -> None:
    """15.5.5"""
    assert "failed · 2.0 s" in draw(call_card(a_call("no", success=False), PageContext(LATER)))


def test_an_undecided_call_says_who_may_decide() -> None:
    """15.5.4"""
    call = replace(a_call(), record=None, state="told")
    shown = draw(step_block(a_step(call), PageContext(LATER, requests=[a_request()])))

    assert "waiting for approval" in shown
    assert "may be decided by" in shown
    assert f"everstep approve {REF.execution_id} [--deny]" in shown


def test_a_page_shows_what_the_model_read_and_why_it_went_on() -> None:
    """15.5.4"""
    step = a_step(messages=(user("Hurry"), assistant("Yes")), heard=1)
    shown = draw(step_block(step, PageContext(LATER), "another step: it called transfer"))

    assert "read       Hurry" in shown
    assert "because    another step: it called transfer" in shown
    assert "step 1  10:05:00 · 2.0 s · 0 tokens" in shown


def test_long_results_are_cut_unless_all_is_wanted() -> None:
    """15.5.4"""
    text = "\n".join(f"line {number}" for number in range(40))
    cut, whole = (draw(call_card(a_call(text), PageContext(LATER, full))) for full in (False, True))

    assert f"line {CARD_LINES - 1}" in cut
    assert f"line {CARD_LINES} " not in cut
    assert "more characters: --full" in cut
    assert "line 39" in whole


def test_subagents_are_a_tree() -> None:
    """15.5.4"""
    inner = ExecutionTree(an_execution(agent="reviewer"))
    shown = draw(children_tree([ExecutionTree(an_execution(agent="coder"), (inner,))]))

    assert shown.index("coder") < shown.index("reviewer")
    assert shown.count(str(REF.execution_id)) == 2


def parts_with(text: str) -> list[RenderableType]:
    """Pages on which a model's text is in every place."""
    call = a_call(text, name=text, key=text)
    request = replace(a_request(CallNeed.INPUT, prompt=text, choices=[text]), agent=text, tool=text)
    row = replace(an_execution(agent=text), error_message=text, output=frozen_map({"response": text}))
    error = StepError(text)
    decided = Resolution("deny", reason=text, by=Decider(text, AT))
    step = a_step(replace(call, decision=decided), said=text, errors=(error,))
    overview = Overview(
        (AgentLoad(text, text, {ExecutionStatus.PAUSED: 1}),), (OpenExecution(row, requests=(request,)),)
    )
    return [
        execution_head(row, output.execution_fields(row, None, "default", text, text), text),
        step_block(step, PageContext(LATER), text),
        request_card(request),
        children_tree([ExecutionTree(row)]),
        build_table([text], [Column("text", str), Column("more", str, is_free=True)], 80),
        build_page(overview, LATER, 120, text),
    ]


def test_no_text_reaches_the_terminal_as_control_or_markup() -> None:
    """8.11.1, 15.5.5"""
    for part in parts_with(HOSTILE):
        shown = draw(part)
        assert "fine" in shown
        assert {char for char in shown if not char.isprintable()} == {"\n"}
    for part in parts_with("[red]x[/] :smile:"):
        assert "[red]x[/] :smile:" in draw(part, width=200)


STORABLE = st.characters(exclude_categories=("Cs",), exclude_characters="\0")
"""What a store can hold."""


@settings(max_examples=25, deadline=None)
@given(st.text(STORABLE, max_size=30))
def test_every_text_can_be_drawn_at_every_width(text: str) -> None:
    """15.5.5"""
    for part in parts_with(text):
        for width in (20, 80):
            shown = draw(part, width)
            assert visible(shown) == shown
            assert "\t" not in shown
            assert all(cell_len(line) <= width for line in shown.splitlines())


@pytest.mark.parametrize("text", ["東京タワー", "שלום עולם", "👩‍🚀 in space", "e\u0301a\u0300"])
def test_wide_characters_and_text_from_the_right_keep_the_columns(text: str) -> None:
    """15.5.5"""
    columns: list[Column[str]] = [
        Column("agent", lambda row: row),
        Column("steps", lambda _row: "7", is_number=True),
    ]
    lines = draw(build_table([text, "clerk"], columns, 80)).splitlines()

    ends = {cell_len(line.rstrip()) for line in lines[1:]}
    assert len(ends) == 1


def test_a_long_text_in_the_last_column_leaves_the_others_whole() -> None:
    """15.5.5"""
    columns: list[Column[str]] = [
        Column("agent", lambda row: row),
        Column("asked", lambda _row: "long " * 60, is_free=True),
    ]
    lines = draw(build_table(["a-rather-long-name"], columns, 60), 60).splitlines()

    assert lines[1].startswith("a-rather-long-name  long long")
    assert lines[1].rstrip().endswith("…")


def test_a_terminal_without_unicode_gets_ascii() -> None:
    """15.5.5"""
    shown = draw(step_block(a_step(a_call(euros=80)), PageContext(LATER)), encoding="ascii")

    assert "+-" in shown
    assert "done" in shown


WAIT = RetryWait(2, AT, LATER + timedelta(seconds=8), "provider unavailable", "503")
RUNNING = OpenExecution(an_execution(ExecutionStatus.RUNNING), step=CurrentStep(1, 1, AT, has_reply=False))
PENDING = OpenExecution(an_execution(ExecutionStatus.PENDING))


@pytest.mark.parametrize(
    ("execution", "text"),
    [
        (PENDING, "waits for a worker"),
        (replace(PENDING, is_queued=True), "waits for its session"),
        (RUNNING, "asks the model for 2.0 s"),
        (
            replace(RUNNING, step=CurrentStep(1, 2, AT, has_reply=False, wait=WAIT)),
            "waits for the provider, next attempt in 8 s",
        ),
        (
            replace(RUNNING, step=CurrentStep(1, 3, AT, has_reply=False)),
            "asks the model for 2.0 s, attempt 3",
        ),
        (replace(RUNNING, step=CurrentStep(1, 1, AT, has_reply=True), calls=("a", "b")), "runs a, b"),
        (
            replace(RUNNING, requests=(a_request(), a_request())),
            'waits 2.0 s for approval: transfer {"euros":80} and 1 more',
        ),
        (OpenExecution(an_execution(ExecutionStatus.PAUSED)), "waits until it is resumed"),
    ],
)
def test_an_overview_says_what_each_execution_does(execution: OpenExecution, text: str) -> None:
    """15.5.6"""
    assert doing_text(execution, LATER) == text


@pytest.mark.parametrize(
    ("examined", "total", "seconds", "shown"),
    [
        (0, 0, 0.0, "[########################] 100%  0 of 0 executions"),
        (0, 10, 1.0, "[                        ]   0%  0 of 10 executions"),
        (5, 10, 2.0, "[############            ]  50%  5 of 10 executions, 2.0 s left"),
        (10, 10, 2.0, "[########################] 100%  10 of 10 executions"),
        # Executions that were accepted after the count.
        (12, 10, 2.0, "[########################] 100%  12 of 10 executions"),
    ],
)
def test_the_bar_shows_the_share_and_the_time_that_is_left(
    examined: int, total: int, seconds: float, shown: str
) -> None:
    """15.2.8"""
    assert progress_text(examined, total, seconds) == shown
