"""Commands in a real pseudo-terminal: requests are answered in place, and the terminal is left as it was."""

import re

import pytest

from everstep.agent_domain.loop.status import ExecutionStatus
from tests.acceptance.harness import until
from tests.everstep.cli.desk import CommandLine
from tests.everstep.cli.pseudo_terminal import PseudoTerminal, open_terminal

pytestmark = pytest.mark.asyncio(loop_scope="session")

DECIDE = "[a]pprove, [d]eny (reason), [e]dit the arguments, Enter: later > "


async def test_a_call_is_approved_where_it_is_shown(desk: CommandLine) -> None:
    """15.5.1, 15.5.2"""
    async with desk.open_terminal("run", "pay", "--agent", "clerk") as terminal:
        await terminal.wait_for(DECIDE)
        assert "approval of transfer" in terminal.text
        assert "euros: 80" in terminal.text
        terminal.type("a\n")

        assert await terminal.end() == 0, terminal.text
    assert 'approved: transfer {"euros":80}' in terminal.text
    assert "transferred 80" in terminal.text
    assert "status     completed" in terminal.text
    assert terminal.is_clean


async def test_what_was_typed_before_a_call_was_shown_approves_nothing(desk: CommandLine) -> None:
    """15.5.2"""
    async with desk.open_terminal("run", "pay", "--agent", "clerk") as terminal:
        terminal.type("a\n")
        await terminal.wait_for(DECIDE)
        terminal.type("d too much\n")

        assert await terminal.end() == 0, terminal.text
    assert "denied: transfer" in terminal.text
    assert "Denied by user: too much" in terminal.text


async def test_arguments_are_edited_one_by_one(desk: CommandLine) -> None:
    """15.5.2"""
    async with desk.open_terminal("run", "pay", "--agent", "clerk") as terminal:
        await terminal.wait_for(DECIDE)
        terminal.type("maybe\n")
        await terminal.wait_for(DECIDE, times=2)
        assert "type a, or d and an optional reason" in terminal.text
        terminal.type("e\n")
        await terminal.wait_for("euros [80] > ")
        terminal.type("8\n")

        assert await terminal.end() == 0, terminal.text
    assert "│ transferred 8  " in terminal.text


async def test_a_choice_is_answered_by_its_number_and_an_open_one_can_wait(desk: CommandLine) -> None:
    """15.5.2"""
    execution = await desk.start_until_pause("choose")
    async with desk.open_terminal("follow", execution.id) as terminal:
        await terminal.wait_for("a number or the text, Enter: later > ")
        terminal.type("\n")
        await terminal.wait_for(f"to answer it later: everstep answer {execution.id} TEXT")
        terminal.type("\x03")
        assert await terminal.end() == 130
    assert f"To follow it again: everstep follow {execution.id}" in terminal.text
    assert terminal.is_clean

    async with desk.open_terminal("follow", execution.id) as terminal:
        await terminal.wait_for("  2  low\n")
        await terminal.wait_for("Enter: later > ")
        terminal.type("2\n")
        assert await terminal.end() == 0, terminal.text
    assert "→ low" in terminal.text


async def test_a_form_is_filled_in_field_by_field(desk: CommandLine) -> None:
    """15.5.2"""
    async with desk.open_terminal("run", "fill in", "--agent", "clerk") as terminal:
        await terminal.wait_for("  day (string), Enter: later > ")
        terminal.type("Friday\n")

        assert await terminal.end() == 0, terminal.text
    assert '{"day":"Friday"}' in terminal.text


async def test_a_request_that_is_answered_elsewhere_is_no_longer_asked(desk: CommandLine) -> None:
    """15.5.2"""
    execution = await desk.start_until_pause("pay")
    async with desk.open_terminal("follow", execution.id) as terminal:
        await terminal.wait_for(DECIDE)
        await execution.approve()
        await terminal.wait_for("no longer open")

        assert await terminal.end() == 0, terminal.text


@pytest.mark.usefixtures("hesitant_model_waits")
async def test_the_time_runs_while_a_model_thinks_and_ctrl_c_says_how_to_come_back(desk: CommandLine) -> None:
    """15.5.1, 15.5.3"""
    async with open_terminal(desk.environment, "run", "Say nothing yet", "--agent", "hesitant") as terminal:

        def times() -> set[str]:
            return set(re.findall(r"(\S+) s hesitant thinks", terminal.text))

        await until("the time runs", lambda: len(times()) > 2)
        terminal.type("\x03")
        assert await terminal.end() == 130, terminal.text
    assert "The execution continues. To follow it again: everstep follow " in terminal.text
    assert terminal.is_clean


async def test_top_leaves_the_terminal_as_it_was(desk: CommandLine) -> None:
    """15.5.6"""
    # Other tests of this installation leave more executions than a terminal has lines.
    execution = await desk.start_until_pause("pay", tenant="top")
    for key, code in (("q", 0), ("\x03", 130)):
        async with desk.open_terminal("top", "--tenant", "top", columns=120) as terminal:
            await terminal.wait_for("for approval: transfer")
            assert "\x1b[?1049h" in terminal.raw
            terminal.type(key)
            assert await terminal.end() == code, terminal.text
        assert terminal.raw.rfind("\x1b[?1049l") > terminal.raw.rfind("\x1b[?1049h")
        assert terminal.is_clean
    await execution.cancel()

    async def has_ended() -> bool:
        return (await execution.get()).status is ExecutionStatus.CANCELLED

    await until("it is cancelled", has_ended)


async def test_pages_fit_into_twenty_columns(desk: CommandLine) -> None:
    """15.5.5"""
    execution = await desk.start_until_pause("pay")
    commands = (
        ("executions",),
        ("inbox",),
        ("show", execution.id),
        ("trace", execution.id),
        ("top", "--once"),
    )
    for arguments in commands:
        async with desk.open_terminal(*arguments, columns=20) as terminal:
            assert await terminal.end() == 0, terminal.text
        lines = terminal.text.splitlines()
        # A cursor is one word, and cannot be broken.
        assert [
            line for line in lines if len(line) > 20 and " " in line.removeprefix("more: --cursor ")
        ] == []
        assert terminal.text.strip()
    await execution.cancel()


async def test_a_page_is_readable_without_colours_and_without_unicode(desk: CommandLine) -> None:
    """15.5.5"""
    execution = await desk.start_until_pause("pay")
    # An interpreter reads these when it starts.
    ascii_only = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0", "PYTHONIOENCODING": "ascii"}
    opened = (
        desk.open_terminal("show", execution.id, told={"NO_COLOR": "1"}),
        desk.open_terminal("show", execution.id, told={"TERM": "dumb"}),
        open_terminal(desk.environment, "show", execution.id, told=ascii_only),
    )
    shown = list[PseudoTerminal]()
    for each in opened:
        async with each as terminal:
            assert await terminal.end() == 0, terminal.text
        assert "status     paused" in terminal.text
        assert "waiting for approval" in terminal.text
        shown.append(terminal)
    await execution.cancel()
    assert ["\x1b[3" in terminal.raw for terminal in shown[:2]] == [False, False]
    assert shown[2].text.isascii()
