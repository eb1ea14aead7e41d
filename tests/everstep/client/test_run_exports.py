"""What exports of a run contain: no secrets, the answers in order, and messages as fine-tuning reads them."""

import json
from dataclasses import replace
from typing import Any

import pytest

from everstep.agent_domain.attachments import Attachment
from everstep.agent_domain.loop.status import ExecutionStatus
from everstep.agent_domain.loop.step_error import ErrorType, StepError
from everstep.agent_domain.loop.step_facts import StepFacts
from everstep.agent_domain.messages.messages import Message, user
from everstep.agent_domain.redaction import Redaction
from everstep.agent_domain.storage.run_record import RunRecord, RunStep
from everstep.agent_domain.values import frozen_map
from everstep.client.run_exports import (
    Shape,
    dataset_line,
    file_stem,
    redacted,
    scenario_text,
    test_files as files_of_test,
)
from everstep.inference.scripted import Script
from tests.everstep.runtime.replay.shop import RUN

RECORD = RunRecord.from_dict(json.loads(RUN.read_text()))
SECRET = "correct-horse-battery"  # noqa: S105 -- made up


def with_result(value: Any) -> RunRecord:
    """The run, whose first call returned something else."""
    data = json.loads(RUN.read_text())
    record = data["steps"][0]["calls"][0]["record"]
    record |= {"result": value, "text": json.dumps(value)}
    data["steps"][0]["calls"][0]["args"] = {"number": 7, "password": "hunter2"}
    return RunRecord.from_dict(data)


class TestSecrets:
    def test_secrets_are_replaced_and_counted_by_place(self) -> None:
        """15.3.6: known by their value, by their form, and by the name of their key."""
        record = with_result({"url": f"pg://ann:{SECRET}@db", "note": "Bearer abc123def456", "api_key": "x9"})
        clean, counts = redacted(record, Redaction((SECRET,)))
        text = json.dumps(clean.to_dict())

        for secret in (SECRET, "hunter2", "abc123def456", "x9"):
            assert secret not in text
        assert counts == {"the arguments of find_order": 1, "the results of find_order": 6}
        assert clean.redacted == 7

    def test_json_in_a_text_stays_json(self) -> None:
        """15.3.6"""
        clean, _ = redacted(with_result({"token": "x9x9x9"}), Redaction())
        call = clean.steps[0].calls[0].record

        assert call is not None
        assert json.loads(call.text) == {"token": "[redacted]"}

    def test_a_record_without_secrets_is_unchanged(self) -> None:
        """15.3.6"""
        assert redacted(replace(RECORD, redacted=0), Redaction()) == (replace(RECORD, redacted=0), {})


class TestFiles:
    def test_names_and_texts_are_the_same_each_time(self) -> None:
        """15.3.1"""
        files = files_of_test(RECORD)

        assert files == files_of_test(RECORD)
        assert list(files) == ["test_desk_0f804d81.py", "desk_0f804d81.json"]
        compile(files["test_desk_0f804d81.py"], "test.py", "exec")

    @pytest.mark.parametrize("asked", ['Say """ and \\', "Two\nlines", "x" * 500, ""])
    def test_any_message_leaves_the_test_valid(self, asked: str) -> None:
        """15.3.1"""
        record = replace(RECORD, messages=(user(asked),), agent="boss/der Höfliche Helfer!")

        source = next(iter(files_of_test(record).values()))
        compile(source, "test.py", "exec")
        assert file_stem(record) == "boss_der_höfliche_helfer_0f804d81"


def a_failure(number: int, kind: ErrorType | None) -> RunStep:
    error = StepError("busy", kind, None, "RateLimited")
    facts = StepFacts.failure(number, error)
    return replace(RECORD.steps[0], number=number, facts=facts, response=None, errors=(error,), calls=())


class TestScenarios:
    def test_the_answers_are_in_order(self) -> None:
        """15.3.7"""
        (scenario,) = Script.from_yaml(scenario_text(RECORD)).scenarios

        assert scenario.when == "Refund order 7"
        assert [[call.name for call in turn.calls] for turn in scenario.turns] == [
            ["find_order"],
            ["refund"],
            [],
        ]
        assert scenario.turns[1].calls[0].args == {"number": 7, "amount": 19.9}
        assert scenario.turns[2].text == "Order 7 is refunded: 19.90."

    def test_failures_come_before_the_answer_that_followed(self) -> None:
        """15.3.7"""
        steps = (a_failure(1, ErrorType.RATE_LIMIT), a_failure(2, ErrorType.RATE_LIMIT), RECORD.steps[2])
        (scenario,) = Script.from_yaml(scenario_text(replace(RECORD, steps=steps))).scenarios
        (turn,) = scenario.turns

        assert turn.error
        assert (turn.error.type, turn.error.times, turn.error.message) == ("rate_limit", 2, "busy")
        assert turn.text == "Order 7 is refunded: 19.90."

    def test_a_failure_at_the_end_is_the_last_turn(self) -> None:
        """15.3.7"""
        record = replace(RECORD, steps=(RECORD.steps[0], a_failure(2, None)))
        (scenario,) = Script.from_yaml(scenario_text(record)).scenarios

        last = scenario.turns[-1].error
        assert last
        assert (last.type, last.times) == ("refused", None)

    def test_subagents_have_scenarios_of_their_own(self) -> None:
        """15.3.7: the longer condition comes first."""
        child = replace(RECORD, messages=(user("Refund order 7 now, please"),))
        script = Script.from_yaml(scenario_text(replace(RECORD, children=(child,))))

        assert [each.when for each in script.scenarios] == ["Refund order 7 now, please", "Refund order 7"]

    def test_decisions_in_json_are_written_as_the_driver_reads_them(self) -> None:
        """15.3.7"""
        record = replace(RECORD, plan=frozen_map({**RECORD.plan, "driver": "react"}))
        (scenario,) = Script.from_yaml(scenario_text(record)).scenarios

        first, *_, last = [json.loads(turn.text) for turn in scenario.turns]
        assert (first["type"], first["tool"], first["args"]) == ("call_tool", "find_order", {"number": 7})
        assert (last["type"], last["answer"]) == ("final_answer", "Order 7 is refunded: 19.90.")


class TestDatasets:
    def test_messages_and_tools_are_as_fine_tuning_reads_them(self) -> None:
        """15.3.8"""
        line = json.loads(dataset_line(RECORD, Shape.OPENAI))

        assert list(line) == ["messages", "tools"]
        roles = [message["role"] for message in line["messages"]]
        assert roles == ["system", "user", "assistant", "tool", "assistant", "tool", "assistant"]
        call = line["messages"][2]
        assert call["content"] is None
        assert call["tool_calls"][0]["function"] == {"name": "find_order", "arguments": '{"number":7}'}
        assert line["messages"][3]["tool_call_id"] == call["tool_calls"][0]["id"]
        assert {key for message in line["messages"] for key in message} == {
            "role",
            "content",
            "tool_calls",
            "tool_call_id",
        }

    def test_an_evaluation_has_an_input_and_what_is_expected(self) -> None:
        """15.3.8"""
        line = json.loads(dataset_line(RECORD, Shape.EVAL))

        assert [message["role"] for message in line["input"]] == ["system", "user"]
        assert line["expected"] == "Order 7 is refunded: 19.90."
        assert line["metadata"]["tools_called"] == ["find_order", "refund"]

    def test_a_structured_result_is_what_is_expected(self) -> None:
        """15.3.8"""
        record = replace(RECORD, output=frozen_map({"response": "{}", "data": {"city": "Oslo"}}))
        assert json.loads(dataset_line(record, Shape.EVAL))["expected"] == {"city": "Oslo"}

    def test_files_are_named_and_nothing_is_missing_without_an_end(self) -> None:
        """15.3.8"""
        message = Message.user("Look", attachments=[Attachment.from_bytes("sea.txt", b"blue")])
        record = replace(
            RECORD,
            messages=(message,),
            steps=(),
            output=None,
            status=ExecutionStatus.RUNNING,
            spec=frozen_map({}),
        )

        assert json.loads(dataset_line(record, Shape.OPENAI)) == {
            "messages": [{"role": "user", "content": "Look\n[file: sea.txt]"}]
        }
        assert json.loads(dataset_line(record, Shape.EVAL))["expected"] is None
