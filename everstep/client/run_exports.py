"""What is made of a recorded run: a test, a script for a model, and lines of training data."""

import json
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from enum import StrEnum
from typing import Any, Final, cast

import yaml

from everstep.agent_domain.loop.step_error import ErrorType
from everstep.agent_domain.messages.messages import Message
from everstep.agent_domain.redaction import REDACTED, Redaction
from everstep.agent_domain.storage.run_record import RunRecord, RunStep
from everstep.agent_domain.values import EMPTY, frozen_map, json_text, thaw, truncate


class Shape(StrEnum):
    """The forms of a line of training data."""

    OPENAI = "openai"
    """`{"messages": [...], "tools": [...]}`, as fine-tuning reads it."""
    EVAL = "eval"
    """`{"input": [...], "expected": ...}`, as evaluations read it."""


# Secrets.


def redacted(record: RunRecord, redaction: Redaction) -> tuple[RunRecord, Mapping[str, int]]:
    """Replace the secrets of a record.

    Returns:
        The record, and how many secrets were replaced, by the place in words.
    """
    counts = Counter[str]()
    clean = _redacted_run(record, redaction, counts)
    return replace(clean, redacted=counts.total()), counts


def _redacted_run(run: RunRecord, redaction: Redaction, counts: Counter[str]) -> RunRecord:
    found = _SecretReplacement(redaction, run, counts)
    data = found.value(run.to_dict() | {"children": []}, ())
    children = tuple(_redacted_run(child, redaction, counts) for child in run.children)
    return replace(RunRecord.from_dict(data), children=children)


_Path = tuple[str | int, ...]


class _SecretReplacement:
    """Replaces secrets in the JSON form of a run, and counts them by their place."""

    def __init__(self, redaction: Redaction, run: RunRecord, counts: Counter[str]) -> None:
        self._redaction = redaction
        self._run = run
        self._counts = counts

    def value(self, value: Any, path: _Path) -> Any:
        """The value without secrets."""
        if isinstance(value, Mapping):
            entries = cast("Mapping[str, Any]", value).items()
            return {key: self._entry(key, each, (*path, key)) for key, each in entries}
        if isinstance(value, list | tuple):
            items = cast("Sequence[Any]", value)
            return [self.value(each, (*path, index)) for index, each in enumerate(items)]
        return self._text(value, path) if isinstance(value, str) else value

    def _entry(self, key: str, value: Any, path: _Path) -> Any:
        """The value of a key, which is a secret if its name says so: `"password": "..."`."""
        if isinstance(value, str) and value and value != REDACTED and _names_secret(key, self._redaction):
            self._counts[_place_of(self._run, path)] += 1
            return REDACTED
        return self.value(value, path)

    def _text(self, text: str, path: _Path) -> str:
        if text[:1] in {"{", "["} and (parsed := _parsed(text)) is not None:
            # JSON in a text stays JSON, such as the arguments of a call in a message.
            clean = self.value(parsed, path)
            return text if clean == parsed else json_text(clean)
        clean = self._redaction(text)
        if clean != text:
            count = max(1, clean.count(REDACTED) - text.count(REDACTED))
            self._counts[_place_of(self._run, path)] += count
        return clean


def _names_secret(key: str, redaction: Redaction) -> bool:
    return REDACTED in redaction(f'{key}: "x"')


def _parsed(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None


def _place_of(run: RunRecord, path: _Path) -> str:
    """The place of a value in words."""
    match path:
        case ("steps", int(at), "calls", int(index), "args" | "malformed", *_):
            return f"the arguments of {run.steps[at].calls[index].call.name}"
        case ("steps", int(at), "calls", int(index), *_):
            return f"the results of {run.steps[at].calls[index].call.name}"
        case (str(part), *_):
            return _PLACES.get(part, "other parts of the record")
        case _:
            return "the record"


_PLACES: Final = {
    "start": "the messages and the metadata of the start",
    "spec": "the prompts and the tools",
    "steps": "the messages of the steps",
    "requests": "the questions and approvals",
    "execution": "the end of the run",
}


# The test.


def file_stem(record: RunRecord) -> str:
    """The beginning of the names of files about this run: the same in each export."""
    agent = re.sub(r"\W+", "_", record.agent).strip("_").lower() or "agent"
    return f"{agent}_{record.ref.execution_id.hex[:8]}"


_TEST: Final = '''\
"""A recorded run of the agent {agent}.

It was asked: {asked}

`everstep export {id} --as test` made this file. The answers of models,
the results of tools and what people did are in {data}, so it needs no model, tool or server.
The agent is loaded from EVERSTEP_AGENTS or everstep.toml.
"""

from pathlib import Path

from everstep.testing import replay


def test_{stem}_runs_as_recorded() -> None:
    replay(Path(__file__).with_name("{data}"))
'''


def test_files(record: RunRecord) -> Mapping[str, str]:
    """The files of an exported test, by name."""
    stem = file_stem(record)
    text = _TEST.format(
        agent=json_text(record.agent),
        asked=_comment(_asked(record)),
        id=record.ref.execution_id,
        data=f"{stem}.json",
        stem=stem,
    )
    return {f"test_{stem}.py": text, f"{stem}.json": record_text(record)}


def record_text(record: RunRecord) -> str:
    """The data file of a test."""
    data: Any = json.loads(json_text(record.to_dict()))
    return json.dumps(data, indent=1, ensure_ascii=False, allow_nan=False) + "\n"


def _asked(record: RunRecord) -> str:
    return next((message.text for message in reversed(record.messages) if message.is_user), "nothing")


def _comment(text: str) -> str:
    """A text for a docstring: one line that ends nothing."""
    safe = " ".join(text.split()).replace("\\", "/").replace('"', "'")
    return truncate(safe, 80)


# The script.


def scenario_text(record: RunRecord) -> str:
    """The run as a script for the scripted driver."""
    scenarios = [_scenario(run) for run in record.each_run()]
    # A longer condition is the more precise one.
    scenarios.sort(key=lambda scenario: -len(str(scenario.get("when", ""))))
    body = yaml.safe_dump(
        thaw(frozen_map({"scenarios": scenarios})), allow_unicode=True, sort_keys=False, width=100
    )
    header = (
        f"# The run {record.ref.execution_id} of the agent {json_text(record.agent)} as a script. "
        "Name this file in a preset:\n#\n"
        '#   [presets.replay]\n#   driver = "scripted"\n'
        f'#   scenario = "{file_stem(record)}.yaml"\n'
    )
    return f"{header}{body}"


def _scenario(run: RunRecord) -> dict[str, Any]:
    turns: list[dict[str, Any]] = []
    failures: list[RunStep] = []
    for step in run.steps:
        if step.facts is None:
            continue
        if step.facts.is_failure:
            failures.append(step)
            continue
        turn = _turn(run, step)
        turns.append(turn | ({"error": _error(failures)} if failures else {}))
        failures = []
    if failures:
        turns.append({"error": _error(failures) | {"times": None}})
    asked = _asked(run)
    return {**({"when": asked} if asked != "nothing" else {}), "turns": turns or [{"text": ""}]}


def _turn(run: RunRecord, step: RunStep) -> dict[str, Any]:
    response = step.response or EMPTY
    if run.plan.get("driver") == "react":
        return {"text": _react_text(step)} | _usage(response)
    calls = [_call(call) for call in response.get("toolCalls") or ()]
    finish, usual = response.get("finishReason"), "tool_calls" if calls else "stop"
    return {
        **({"text": str(response.get("text"))} if response.get("text") else {}),
        **({"calls": calls} if calls else {}),
        **({"finish_reason": finish} if finish and finish != usual else {}),
        **_usage(response),
    }


def _call(call: Mapping[str, Any]) -> dict[str, Any]:
    given = {"name": call["name"], "id": call["id"]}
    if call.get("malformed") is not None:
        return given | {"arguments": call["malformed"]}
    return given | ({"args": call["args"]} if call.get("args") else {})


def _usage(response: Mapping[str, Any]) -> dict[str, Any]:
    usage = response.get("usage") or EMPTY
    counts = {name: usage[name] for name in ("input", "output") if usage.get(name)}
    return {"usage": counts} if counts else {}


def _react_text(step: RunStep) -> str:
    """A decision in the form that the ReAct driver reads: it keeps the parts and not the text."""
    response = step.response or EMPTY
    text = str(response.get("text") or "")
    calls = response.get("toolCalls") or ()
    if calls:
        decision = {"thought": text, "type": "call_tool", "tool": calls[0]["name"], "args": calls[0]["args"]}
    else:
        decision = {"thought": "", "type": "final_answer", "answer": text}
    return json_text(decision)


def _error(steps: list[RunStep]) -> dict[str, Any]:
    error = steps[-1].errors[0] if steps[-1].errors else None
    kind = error.type if error else None
    names: dict[ErrorType | None, str] = {ErrorType.RATE_LIMIT: "rate_limit", ErrorType.TIMEOUT: "timeout"}
    return {
        "type": names.get(kind, "refused"),
        "message": error.message if error else "",
        "times": len(steps),
    }


# Training data.


def dataset_line(record: RunRecord, shape: Shape) -> str:
    """The run as one line of JSON."""
    messages = [*_system_messages(record), *map(_openai_message, _conversation(record))]
    tools = thaw((record.spec.get("cached_context") or EMPTY).get("tools") or ())
    if shape is Shape.OPENAI:
        return json_text({"messages": messages, **({"tools": tools} if tools else {})})
    last = max((at for at, message in enumerate(messages) if message["role"] == "user"), default=-1)
    output = record.output or EMPTY
    expected = output.get("data") if output.get("data") is not None else output.get("response")
    return json_text(
        {
            "input": messages[: last + 1],
            "expected": expected,
            **({"tools": tools} if tools else {}),
            "metadata": {
                "execution_id": str(record.ref.execution_id),
                "agent": record.agent,
                "status": str(record.status),
                "stop_reason": record.stop_reason and str(record.stop_reason),
                "tools_called": [call.call.name for step in record.steps for call in step.calls],
            },
        }
    )


def _system_messages(record: RunRecord) -> Iterator[dict[str, Any]]:
    context = record.spec.get("cached_context") or EMPTY
    for data in context.get("messages") or ():
        yield _openai_message(Message.from_dict(data))


def _conversation(record: RunRecord) -> Iterable[Message]:
    yield from record.earlier
    yield from record.messages
    for step in record.steps:
        yield from step.messages


def _openai_message(message: Message) -> dict[str, Any]:
    text = message.text
    for attachment in message.attachments:
        text = f"{text}\n[file: {attachment.name}]".strip()
    found: dict[str, Any] = {"role": str(message.role), "content": text}
    calls = [
        {"id": call.get("id"), "type": "function", "function": thaw(call.get("function"))}
        for call in message.calls
    ]
    if calls:
        found["content"] = text or None
        found["tool_calls"] = calls
    if message.answers:
        found["tool_call_id"] = message.answers
    return found
