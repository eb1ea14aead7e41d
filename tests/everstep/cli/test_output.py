"""The output of the commands."""

import re
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from uuid import UUID

import pytest

import everstep.cli
from everstep.agent_domain.ids import ExecutionRef
from everstep.agent_domain.loop.status import ExecutionStatus
from everstep.agent_domain.loop.step_error import StepError
from everstep.agent_domain.loop.step_facts import StepFacts
from everstep.agent_domain.messages.compaction import Compaction
from everstep.agent_domain.messages.messages import assistant
from everstep.agent_domain.storage.executions import ExecutionRow
from everstep.agent_domain.storage.steps import StepRow
from everstep.agent_domain.values import FrozenDict
from everstep.cli.output import execution_lines, step_lines
from everstep.cli.printing import visible

AT = datetime(2026, 1, 16, 10, 5, tzinfo=UTC)


def a_step(attempt: int = 1, **told: str) -> StepRow:
    errors = (StepError(told["error"]),) if "error" in told else ()
    said = (assistant(told["said"]),) if "said" in told else ()
    facts = StepFacts(number=2) if said or errors else None
    return StepRow(2, attempt, facts, errors, None, told.get("partial", ""), AT, None, said)


@pytest.mark.parametrize(
    ("step", "lines"),
    [
        (a_step(), ["step 2"]),
        (a_step(partial="Let me"), ["step 2", "  model   Let me"]),
        (a_step(3, said="Two\nlines"), ["step 2  (attempt 3)", "  model   Two\n          lines"]),
        (a_step(said="x" * 300), ["step 2", f"  model   {'x' * 200}..."]),
        (a_step(error="It broke"), ["step 2", "  error   It broke"]),
    ],
)
def test_a_step_is_shown_in_lines(step: StepRow, lines: list[str]) -> None:
    assert [*step_lines(step)] == lines


def test_a_compaction_is_shown_before_the_step_that_it_precedes() -> None:
    """14.9"""
    done = Compaction(replaced=4, messages=4, results=1, tokens_before=900, tokens_after=400)
    did = "4 messages were summarized and 1 result of a tool was cut"
    shown = replace(a_step(said="Hi"), compactions=(done,))
    assert [*step_lines(shown)] == [
        "step 2",
        f"  compact The conversation was compacted: {did}, 900 -> 400 tokens",
        "  model   Hi",
    ]


def test_a_terminal_gets_no_control_characters() -> None:
    assert visible("a\tb\nc 東京 👩‍🚀") == "a\tb\nc 東京 👩‍🚀"
    assert visible("\x1b[2J\r\x07\x9b\x7f") == "�[2J����"


@pytest.mark.parametrize(
    "code",
    [
        0x1B,
        0x00,
        0x0D,
        0x9B,
        0xAD,
        0x61C,
        0x200B,
        0x200D,
        0x200E,
        0x200F,
        0x2028,
        *range(0x202A, 0x202F),
        *range(0x2060, 0x2065),
        *range(0x2066, 0x206A),
        0xFEFF,
        0xFFF9,
        0xE0041,
    ],
    ids=hex,
)
def test_invisible_characters_are_shown(code: int) -> None:
    """8.11.1: controls, bidirectional and other formatting characters, and invisible tags."""
    assert visible(f"a{chr(code)}b") == "a�b"


def test_joined_letters_stay_joined() -> None:
    for text in ("\u0645\u06cc\u200c\u062e\u0648", "👩\u200d💻"):
        assert visible(text) == text


def test_commands_print_through_one_function() -> None:
    """Other output could contain control characters."""
    others = re.compile(r"click\.(s?echo|style)|(?<!console\.)\bprint\(|(stdout|stderr)\.write")
    drawing = re.compile(r"(?<!Safe)\bConsole\(")
    for file in Path(everstep.cli.__file__).parent.glob("*.py"):
        code = file.read_text(encoding="utf-8")
        if file.name != "printing.py":
            assert not others.search(code), file
        # The console that draws pages makes all texts visible.
        if file.name != "console.py":
            assert not drawing.search(code), file


@pytest.mark.parametrize(("parent", "line"), [(None, []), (UUID(int=7), [f"parent     {UUID(int=7)}"])])
def test_a_subagents_execution_names_its_parent(parent: UUID | None, line: list[str]) -> None:
    """9.6.2"""
    empty = FrozenDict()
    row = ExecutionRow(
        ExecutionRef(UUID(int=1), "tenant"),
        "coder/reviewer",
        ExecutionStatus.RUNNING,
        2,
        empty,
        None,
        None,
        None,
        empty,
        AT,
        AT,
        None,
        parent_execution_id=parent,
    )
    told = [*execution_lines(row, None)]
    assert [each for each in told if each.startswith("parent")] == line
    assert told[:2] == [f"execution  {UUID(int=1)}", "agent      coder/reviewer"]
