"""A recorded run against changed agents: what differs, in which words, and what is refused."""

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from everstep.agent_domain.agents.builder import DefinitionBuilder
from everstep.agent_domain.agents.drivers import ToolCallingDriver
from everstep.agent_domain.errors import InvalidInput
from everstep.runtime.replay.record_files import read_record, record_files
from everstep.runtime.replay.recorded_agents import AgentNotFound
from everstep.testing import Replay, RunDiffers, replay
from tests.everstep.runtime.replay.shop import RUN, a_desk, another_refund


def failure(*agents: DefinitionBuilder) -> RunDiffers:
    with pytest.raises(RunDiffers) as raised:
        replay(RUN, agents=agents)
    return raised.value


def changed(folder: Path, *path: str | int, value: Any) -> Path:
    """The recorded run with another value somewhere."""
    data = json.loads(RUN.read_text())
    inner = data
    for key in path[:-1]:
        inner = inner[key]
    inner[path[-1]] = value
    file = folder / RUN.name
    file.write_text(json.dumps(data))
    return file


def lines_of(text: str, *signs: str) -> list[str]:
    return [line.strip() for line in text.splitlines() if line.strip().startswith(signs)]


class TestSame:
    def test_the_same_agent_does_the_same(self) -> None:
        """15.3.1, 15.3.2: an approval by a person included."""
        run = replay(RUN, agents=[a_desk()])

        assert run.differences == ()
        assert run.calls == ("find_order(number=7)", "refund(number=7, amount=19.9)")
        assert run.decisions == (
            "step 1: continues, decided by ToolCallPresenceCheck",
            "step 2: continues, decided by ToolCallPresenceCheck",
            "step 3: stops: completed, decided by ToolCallPresenceCheck",
        )

    def test_a_policy_that_changes_nothing_is_no_difference(self) -> None:
        """15.3.3"""
        assert replay(RUN, agents=[a_desk().with_max_steps(3).with_timeout(600)]).differences == ()

    async def test_a_test_with_an_event_loop_can_replay(self) -> None:
        """15.3.1"""
        assert isinstance(replay(RUN, agents=[a_desk()]), Replay)


class TestDifferent:
    def test_a_lower_limit_is_shown_with_the_decisions_that_it_changes(self) -> None:
        """15.3.3"""
        text = str(failure(a_desk().with_max_steps(1)))

        assert "max_steps: 20 -> 1" in text
        assert lines_of(text, "+ ") == [
            "+   stops: steps_limit, decided by StepsLimit",
            "+ ends: completed (steps_limit)",
        ]
        assert "- step 2 calls tools" in text
        assert 'which was asked "Refund order 7"' in text
        assert "Requests to the model" not in text

    def test_a_changed_prompt_is_shown_line_by_line(self) -> None:
        """15.3.3"""
        text = str(failure(a_desk("You help the customers of a bank.")))

        assert lines_of(text, "- ", "+ ") == [
            "- You help the customers of a shop.",
            "+ You help the customers of a bank.",
        ]
        assert "What happened" not in text

    def test_a_tool_that_is_gone_is_shown(self) -> None:
        """15.3.3"""
        desk = DefinitionBuilder.base().with_name("desk").with_driver(ToolCallingDriver())
        text = str(failure(desk.with_system_prompt("You help the customers of a shop.")))

        assert "the tool find_order is not offered any more" in text
        assert "Unknown tool" in text or "No tool named" in text

    def test_recorded_arguments_are_checked_against_the_schema_of_today(self) -> None:
        """15.3.3"""
        text = str(failure(a_desk(refund_tool=another_refund("number", "amount"))))

        assert "the recorded arguments of refund do not fit its schema any more" in text
        assert "the tool refund is described differently" in text
        assert '+ amount (optional): {"type":"string"}' in text

    def test_a_call_without_its_approval_is_shown(self) -> None:
        """15.3.3"""
        text = str(failure(a_desk().with_approval("refund", "never")))

        assert lines_of(text, "- ", "+ ") == ["-     waits for an approval: approve"]

    def test_a_missing_answer_ends_the_replay_and_is_named(self, tmp_path: Path) -> None:
        """15.3.4"""
        file = changed(tmp_path, "steps", value=json.loads(RUN.read_text())["steps"][:2])
        with pytest.raises(RunDiffers) as raised:
            replay(file, agents=[a_desk()])

        expected = "the model is asked for step 3 of desk, and the recorded run ended after step 2"
        assert raised.value.replay.ends == (expected,)
        assert f"The replay stopped:\n  {expected}" in str(raised.value)

    def test_long_texts_are_cut_around_the_place_where_they_differ(self, tmp_path: Path) -> None:
        """15.3.3"""
        long = "word " * 100
        path = ("steps", 0, "calls", 0, "record")
        record = json.loads(RUN.read_text())["steps"][0]["calls"][0]["record"]
        file = changed(tmp_path, *path, value={**record, "result": f"{long}one", "text": f"{long}two"})
        with pytest.raises(RunDiffers) as raised:
            replay(file, agents=[a_desk()])
        removed, added = lines_of(str(raised.value), "- ...", "+ ...")

        assert removed.endswith("word two")
        assert added.endswith("word one")
        assert len(removed) < 250


class TestRecordingAgain:
    def test_what_happens_now_can_be_accepted(self, tmp_path: Path) -> None:
        """15.3.5: then it passes, and the former agent does not."""
        file, shorter = changed(tmp_path, "redacted", value=3), a_desk().with_max_steps(1)

        assert replay(file, agents=[shorter], record=True).differences
        assert replay(file, agents=[shorter]).differences == ()
        with pytest.raises(RunDiffers):
            replay(file, agents=[a_desk()])

    def test_a_run_that_is_the_same_is_not_written(self, tmp_path: Path) -> None:
        """15.3.5"""
        file = tmp_path / RUN.name
        file.write_bytes(RUN.read_bytes())
        replay(file, agents=[a_desk()], record=True)

        assert file.read_bytes() == RUN.read_bytes()

    def test_a_missing_answer_cannot_be_accepted(self, tmp_path: Path) -> None:
        """15.3.5"""
        file = changed(tmp_path, "steps", value=json.loads(RUN.read_text())["steps"][:2])
        before = file.read_text()

        with pytest.raises(InvalidInput, match="cannot be recorded again, because the model is asked"):
            replay(file, agents=[a_desk()], record=True)
        assert file.read_text() == before


class TestBadInput:
    def test_an_agent_that_is_not_found_is_named_with_what_to_set(self) -> None:
        """15.3.1"""
        with pytest.raises(AgentNotFound, match=r"'desk' is not found \(known: other\): set EVERSTEP_AGENTS"):
            replay(RUN, agents=[a_desk().with_name("other")])

    @pytest.mark.usefixtures("monkeypatch")
    def test_agents_are_those_of_the_settings(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """15.3.1"""
        monkeypatch.setenv("EVERSTEP_AGENTS", "tests.everstep.runtime.replay.shop_agents:agents")
        assert replay(RUN).differences == ()

    @pytest.mark.parametrize(
        ("content", "message"),
        [
            ("[]", "is not an exported run"),
            ("{", "is not JSON"),
            ('{"format": "other"}', "is not an exported run"),
            (
                '{"format": "everstep.run", "version": 99}',
                "has version 99 .* reads up to 1; upgrade",
            ),
            ('{"format": "everstep.run", "version": 1}', "desk.json"),
        ],
    )
    def test_other_files_are_refused(self, tmp_path: Path, content: str, message: str) -> None:
        """15.3.9"""
        file = tmp_path / "desk.json"
        file.write_text(content)
        with pytest.raises(InvalidInput, match=message):
            read_record(file)

    def test_a_file_that_is_not_there_is_refused(self, tmp_path: Path) -> None:
        """15.3.9"""
        with pytest.raises(InvalidInput, match="cannot be read: No such file"):
            read_record(tmp_path / "none.json")


class TestFiles:
    def names(self, paths: Iterable[Path]) -> list[str]:
        return [path.name for path in record_files(paths)]

    def test_a_test_a_file_and_a_folder_name_the_same_run(self, tmp_path: Path) -> None:
        """15.3.10"""
        (tmp_path / "other.json").write_text("{}")
        (tmp_path / RUN.name).write_bytes(RUN.read_bytes())

        test = tmp_path / f"test_{RUN.stem}.py"
        test.touch()
        assert self.names([tmp_path, tmp_path / RUN.name, test]) == [RUN.name]

    def test_a_folder_without_runs_is_refused(self, tmp_path: Path) -> None:
        """15.3.10"""
        with pytest.raises(InvalidInput, match="has no exported run in it"):
            self.names([tmp_path])
