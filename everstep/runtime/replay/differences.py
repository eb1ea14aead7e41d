"""Compares a replayed run with the recorded one, in words for people who have never seen the record."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher, unified_diff
from typing import Any, Final

from everstep.agent_domain.agents.definition import AgentDefinition
from everstep.agent_domain.messages.messages import Message
from everstep.agent_domain.redaction import Redaction
from everstep.agent_domain.storage.requests import RequestKind, Resolution
from everstep.agent_domain.storage.run_record import RunCall, RunRecord, RunRequest, RunStep
from everstep.agent_domain.values import EMPTY, FrozenDict, json_text, truncate
from everstep.runtime.replay.recorded import Findings

SHOWN: Final = 200
"""Characters of a text that are shown."""

ACCEPT: Final = (
    "If this is what you want, accept it: `pytest --everstep-record` writes the record again. "
    "Otherwise change the agent back."
)

_PLAN_NAMES: Final = frozenset({"agent", "broadcast", "debug", "tools", "compaction"})
"""Parts of a plan that are compared elsewhere, or that change nothing in a replay."""

_REDACT: Final = Redaction()


@dataclass(frozen=True, slots=True)
class ReplayComparison:
    """What is different between two runs."""

    differences: tuple[str, ...]
    """One line each."""
    text: str
    """All of it, with what is the same around it; empty if nothing is different."""
    decisions: tuple[str, ...]
    """What was decided after each step of the replay."""
    calls: tuple[str, ...]
    """The tool calls of the replay."""


def compare(
    recorded: RunRecord, replayed: RunRecord, definition: AgentDefinition, findings: Findings
) -> ReplayComparison:
    """Compare two runs of an agent.

    Args:
        recorded: The recorded run.
        replayed: The replayed run.
        definition: The agent as it is now.
        findings: What else stood out during the replay.
    """
    del definition
    before, after = list(_story(recorded)), list(_story(replayed))
    requests = list(_request_changes(recorded, replayed))
    parts: list[str] = []
    differences: list[str] = [*findings.ends, *findings.problems, *requests]
    story = _story_diff(before, after)
    differences.extend(line for line in story if line[:1] in "+-")
    if differences:
        policies = list(_policy_changes(recorded.plan, replayed.plan))
        parts = [
            _headline(recorded),
            *_section("Policies that are different now", policies),
            *_section("The replay stopped", findings.ends),
            *_section("What happened (-) and what happens now (+)", story if before != after else ()),
            *_section("Requests to the model", requests),
            *_section("Also", findings.problems),
            ACCEPT,
        ]
    return ReplayComparison(
        tuple(differences),
        "\n\n".join(parts),
        tuple(_decisions(replayed)),
        tuple(_calls(replayed)),
    )


def _headline(record: RunRecord) -> str:
    asked = next((message.text for message in reversed(record.messages) if message.is_user), "")
    told = f', which was asked "{truncate(" ".join(asked.split()), 60)}"' if asked else ""
    return (
        f"The agent '{record.agent}' does not do what it did in the recorded run "
        f"{record.ref.execution_id}{told}."
    )


def _section(title: str, lines: Sequence[str]) -> list[str]:
    return ["\n".join([f"{title}:", *(f"  {line}" for line in lines)])] if lines else []


# What happened, line by line.


def _story(run: RunRecord, indent: str = "") -> Iterator[str]:
    for step in run.steps:
        if step.facts is None:
            continue
        for line in _step_story(run, step):
            yield f"{indent}{line}"
    end = f"ends: {run.status}"
    if run.stop_reason and run.stop_reason != run.status:
        end += f" ({run.stop_reason})"
    if run.error:
        end += f": {_safe(run.error)}"
    yield f"{indent}{end}"
    if run.output and run.output.get("data") is not None:
        yield f"{indent}result: {_safe(json_text(run.output['data']))}"


def _step_story(run: RunRecord, step: RunStep) -> Iterator[str]:
    for message in _read_before_reply(step):
        yield f"step {step.number} reads {message.role}: {_safe(message.text)}"
    for compaction in step.compactions:
        yield f"step {step.number} compacts {compaction.messages} messages and {compaction.results} results"
    yield f"step {step.number} {_reply_text(step)}"
    for call in step.calls:
        yield f"  calls {call.call.name}({_args_text(call)})"
        yield from (f"    {line}" for line in _call_story(run, call))
        child = run.child(call.call.id)
        if child is not None:
            yield from _story(child, "      ")
    for message in _added_after_results(step):
        yield f"  adds {message.role}: {_safe(message.text)}"
    outcome = step.outcome
    if outcome is not None:
        yield f"  {decision_text(outcome)}"


def _reply_text(step: RunStep) -> str:
    facts, response = step.facts, step.response or EMPTY
    if facts and facts.is_failure:
        error = step.errors[0] if step.errors else facts.own_errors[0]
        return f"fails: {error.exception or error.type}: {_safe(error.message)}"
    text = _safe(str(response.get("text") or ""))
    kind = "calls tools" if step.calls or (facts and facts.calls) else "answers"
    errors = "".join(f"; {_safe(error.message)}" for error in step.errors)
    return f"{kind}{f': {text}' if text else ''}{errors}"


def _args_text(call: RunCall) -> str:
    if call.call.malformed is not None:
        return _safe(call.call.malformed)
    return ", ".join(f"{name}={_safe(json_text(value))}" for name, value in call.call.args.items())


def _call_story(run: RunRecord, call: RunCall) -> Iterator[str]:
    for request in run.requests:
        if request.call_id == call.call.id and request.kind is not RequestKind.BUDGET:
            yield _request_story(request)
    record = call.record
    if record is None or call.is_abandoned:
        yield "has no result"
    elif record.error is not None:
        yield f"fails: {_safe(record.error.message)}"
    else:
        yield f"returns: {_safe(record.text)}"


def _request_story(request: RunRequest) -> str:
    kind = "approval" if request.kind == "approval" else "answer"
    resolution = request.resolution
    if resolution is None:
        return f"waits for an {kind}"
    return f"waits for an {kind}: {_resolution_text(resolution)}"


def _resolution_text(resolution: Resolution) -> str:
    value = f" {_safe(json_text(resolution.value))}" if resolution.value is not None else ""
    return f"{resolution.outcome}{value}"


def _read_before_reply(step: RunStep) -> Sequence[Message]:
    """The messages of people and hooks before the model's reply."""
    found: list[Message] = []
    for message in step.messages:
        if message.is_assistant:
            break
        found.append(message)
    return found if any(message.is_assistant for message in step.messages) else ()


def _added_after_results(step: RunStep) -> Sequence[Message]:
    """The messages of processors after the results, which are no results themselves."""
    after: list[Message] = []
    for message in step.messages:
        if message.is_assistant:
            after = []
        elif not message.is_tool:
            after.append(message)
    return after


def decision_text(outcome: Mapping[str, Any]) -> str:
    """What was decided after a step, by which criterion, in words."""
    decided_by = str(outcome.get("resolvedBy"))
    votes = [vote for vote in outcome.get("evaluations") or () if vote.get("criterion") == decided_by]
    source = str(votes[0].get("source") or decided_by) if votes else decided_by
    if outcome.get("shouldContinue"):
        return f"continues, decided by {source}"
    return f"stops: {outcome.get('stopReason')}, decided by {source}"


def _decisions(run: RunRecord) -> Iterator[str]:
    for step in run.steps:
        if step.outcome is not None:
            yield f"step {step.number}: {decision_text(step.outcome)}"


def _calls(run: RunRecord) -> Iterator[str]:
    for step in run.steps:
        for call in step.calls:
            yield f"{call.call.name}({_args_text(call)})"


def _safe(text: str) -> str:
    """A text in one line, without what looks like a secret: the record does not have it either."""
    return _REDACT(" ".join(text.split()))


# Differences.


def _story_diff(before: list[str], after: list[str]) -> list[str]:
    """Both stories, with what differs marked by - and +; runs of equal lines are folded."""
    lines: list[str] = []
    for tag, b1, b2, a1, a2 in SequenceMatcher(None, before, after, autojunk=False).get_opcodes():
        if tag == "equal":
            lines.extend(f"  {_cut(line)}" for line in before[b1:b2])
            continue
        shown = _shown_pairs(before[b1:b2], after[a1:a2])
        lines.extend(shown)
    return lines


def _shown_pairs(before: list[str], after: list[str]) -> list[str]:
    """Removed and added lines; a long line is cut around the place where it differs."""
    starts = [0] * max(len(before), len(after))
    for index, (old, new) in enumerate(zip(before, after, strict=False)):
        same = next((at for at, (a, b) in enumerate(zip(old, new, strict=False)) if a != b), 0)
        starts[index] = max(0, same - SHOWN // 2) if same > SHOWN // 2 else 0
    removed = [f"- {_cut(line, starts[index])}" for index, line in enumerate(before)]
    return [*removed, *(f"+ {_cut(line, starts[index])}" for index, line in enumerate(after))]


def _cut(line: str, start: int = 0) -> str:
    text = f"...{line[start:]}" if start else line
    return truncate(text, SHOWN)


def _policy_changes(before: Mapping[str, Any], after: Mapping[str, Any]) -> Iterator[str]:
    for name in sorted({*before, *after} - _PLAN_NAMES):
        old, new = before.get(name), after.get(name)
        if old != new:
            yield f"{name}: {_cut(_value(old))} -> {_cut(_value(new))}"
    tools, now = _by_name(before.get("tools")), _by_name(after.get("tools"))
    for name in sorted(tools.keys() & now.keys()):
        if tools[name] != now[name]:
            yield f"the tool {name}: {_value(tools[name])} -> {_value(now[name])}"


def _value(value: Any) -> str:
    return "none" if value is None else json_text(value)


def _by_name(tools: Any) -> dict[str, Any]:
    return {str(tool.get("name")): tool for tool in tools or ()}


def _request_changes(recorded: RunRecord, replayed: RunRecord, where: str = "") -> Iterator[str]:
    """What of the requests to the model is different, apart from the conversation."""
    before = recorded.spec.get("cached_context") or EMPTY
    after = replayed.spec.get("cached_context") or EMPTY
    prefix = f"{where}: " if where else ""
    old, new = _prompt_lines(before), _prompt_lines(after)
    if old != new:
        yield f"{prefix}system prompt"
        yield from (f"  {line}" for line in _text_diff(old, new))
    yield from (f"{prefix}{line}" for line in _tool_changes(before, after))
    formats = before.get("responseFormat"), after.get("responseFormat")
    if formats[0] != formats[1]:
        yield f"{prefix}response format"
        yield f"  - {_cut(_value(formats[0]))}"
        yield f"  + {_cut(_value(formats[1]))}"
    now = {child.ref.execution_id: child for child in replayed.children}
    for child in recorded.children:
        if child.ref.execution_id in now:
            yield from _request_changes(child, now[child.ref.execution_id], f"subagent {child.agent}")


def _prompt_lines(context: Mapping[str, Any]) -> list[str]:
    messages = [Message.from_dict(message) for message in context.get("messages") or ()]
    return [_REDACT(line) for message in messages for line in message.text.splitlines()]


def _text_diff(old: Sequence[str], new: Sequence[str]) -> Iterator[str]:
    for line in unified_diff(old, new, lineterm="", n=1):
        if not line.startswith(("---", "+++", "@@")):
            yield f"{line[:1]} {_cut(line[1:])}"


def _tool_changes(before: Mapping[str, Any], after: Mapping[str, Any]) -> Iterator[str]:
    old, new = _functions(before), _functions(after)
    for name in old.keys() - new.keys():
        yield f"the tool {name} is not offered any more"
    for name in new.keys() - old.keys():
        yield f"the tool {name} is offered as well"
    for name in old.keys() & new.keys():
        if old[name] != new[name]:
            yield f"the tool {name} is described differently"
            yield from (
                f"  {line}" for line in _text_diff(_function_lines(old[name]), _function_lines(new[name]))
            )


def _functions(context: Mapping[str, Any]) -> dict[str, FrozenDict]:
    functions: Iterable[Any] = (tool.get("function") or EMPTY for tool in context.get("tools") or ())
    return {str(function.get("name")): function for function in functions}


def _function_lines(function: Mapping[str, Any]) -> list[str]:
    parameters = function.get("parameters") or EMPTY
    required = set(parameters.get("required") or ())
    lines = [_REDACT(line) for line in str(function.get("description") or "").splitlines()]
    for name, schema in (parameters.get("properties") or EMPTY).items():
        lines.append(f"{name}{'' if name in required else ' (optional)'}: {json_text(schema)}")
    others = {key: value for key, value in parameters.items() if key not in {"properties", "required"}}
    return [*lines, json_text(others)]
