"""Compares two executions: settings, steps, calls with their arguments, decisions, tokens, cost and time.

Steps that a fork shares with its origin are the same steps. All others are aligned by their calls: first by
tools and arguments, then by tools, then by their order.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any, Final, Generic, TypeVar
from uuid import UUID

from everstep.agent_domain.storage.alignment import Difference, align, differences
from everstep.agent_domain.storage.calls import CallRow
from everstep.agent_domain.storage.executions import ExecutionRow, ExecutionSpec
from everstep.agent_domain.storage.steps import StepRow
from everstep.agent_domain.values import EMPTY, FrozenDict, json_text

COMPARISON_VERSION: Final = 1
"""The version of the JSON form."""

ValueT = TypeVar("ValueT")


@dataclass(frozen=True, slots=True)
class PlacedStep:
    """A step and the execution that ran it."""

    execution_id: UUID
    row: StepRow


@dataclass(frozen=True, slots=True)
class ComparedExecution:
    """One side of a comparison."""

    row: ExecutionRow
    spec: ExecutionSpec
    plan: Mapping[str, Any]
    own: Sequence[StepRow]
    inherited: Sequence[PlacedStep] = ()
    """The steps of the executions from which it branched off."""

    @property
    def steps(self) -> tuple[PlacedStep, ...]:
        """All steps that have a reply, the inherited ones first."""
        own = (PlacedStep(self.row.ref.execution_id, row) for row in self.own)
        return tuple(step for step in (*self.inherited, *own) if step.row.facts is not None)

    @property
    def models(self) -> tuple[str, ...]:
        """The models that replied, in the order of their first reply."""
        return tuple(dict.fromkeys(filter(None, map(_model, self.own))))

    def to_dict(self) -> dict[str, Any]:
        """Convert to JSON data: what is known of the whole execution."""
        row, counted = self.row, [step for step in self.own if step.facts]
        return {
            "id": str(row.ref.execution_id),
            "agent": row.agent,
            "definition_hash": self.spec.definition_hash or None,
            "models": list(self.models),
            "status": str(row.status),
            "stop_reason": row.stop_reason and str(row.stop_reason),
            "steps": row.step_count,
            "compared_steps": len(counted),
            "tokens": row.usage.get("total", 0),
            "cost_usd": _usd(row.cost_usd),
            "seconds": round(sum(map(_seconds, counted)), 6),
        }


@dataclass(frozen=True, slots=True)
class ComparedValue(Generic[ValueT]):
    """A value on both sides; None on a side that has no such step or call."""

    a: ValueT | None
    b: ValueT | None

    @property
    def is_same(self) -> bool:
        """Whether both sides have the same value."""
        return self.a == self.b

    def to_dict(self) -> dict[str, Any]:
        """Convert to JSON data."""
        return {"a": self.a, "b": self.b}


@dataclass(frozen=True, slots=True)
class ComparedCall:
    """A call on both sides, or on one."""

    tool: ComparedValue[str]
    args: tuple[Difference, ...]
    """The arguments that differ; empty if one side has no such call."""
    result: ComparedValue[str]
    """The texts that the model reads; None without a result."""

    @property
    def is_same(self) -> bool:
        """Whether both sides made the call with the same arguments and the same result."""
        return self.tool.is_same and not self.args and self.result.is_same

    def to_dict(self) -> dict[str, Any]:
        """Convert to JSON data; equal results are left out."""
        return {
            "same": self.is_same,
            "tool": self.tool.to_dict(),
            "args": [each.to_dict() for each in self.args],
            "result": None if self.result.is_same else self.result.to_dict(),
        }


@dataclass(frozen=True, slots=True)
class ComparedStep:
    """A step on both sides, or on one."""

    number: ComparedValue[int]
    """Its number in the execution that ran it."""
    is_shared: bool
    """Whether it is one step, which belongs to both."""
    calls: tuple[ComparedCall, ...]
    text: ComparedValue[str]
    """What the model wrote."""
    model: ComparedValue[str]
    error: ComparedValue[str]
    decision: ComparedValue[Mapping[str, Any]]
    """`decision`, `resolved_by` and `stop_reason` of the evaluation after the step."""
    votes: tuple[tuple[str, ComparedValue[str]], ...]
    """The criteria whose votes differ."""
    tokens: ComparedValue[int]
    cost_usd: ComparedValue[float]
    seconds: ComparedValue[float]

    @property
    def is_same(self) -> bool:
        """Whether the model and the tools did the same and the same was decided, at whatever cost."""
        compared = (*self.calls, self.text, self.error, self.decision)
        has_both = self.number.a is not None and self.number.b is not None
        return has_both and all(each.is_same for each in compared) and not self.votes

    def to_dict(self) -> dict[str, Any]:
        """Convert to JSON data; equal texts are left out."""
        return {
            "a": self.number.a,
            "b": self.number.b,
            "shared": self.is_shared,
            "same": self.is_same,
            "calls": [call.to_dict() for call in self.calls],
            "text": None if self.text.is_same else self.text.to_dict(),
            "model": self.model.to_dict(),
            "error": None if self.error.is_same else self.error.to_dict(),
            "decision": self.decision.to_dict(),
            "votes": [{"criterion": name} | sides.to_dict() for name, sides in self.votes],
            "tokens": self.tokens.to_dict(),
            "cost_usd": self.cost_usd.to_dict(),
            "seconds": self.seconds.to_dict(),
        }


@dataclass(frozen=True, slots=True)
class Comparison:
    """Two executions, side by side."""

    a: ComparedExecution
    b: ComparedExecution
    settings: tuple[Difference, ...]
    """What differs in plan, model and definition."""
    steps: tuple[ComparedStep, ...]
    notes: tuple[str, ...]
    """What could not be compared, one sentence each."""

    @property
    def shared_steps(self) -> int:
        """How many steps belong to both, because one is a fork of the other or of the same origin."""
        return sum(step.is_shared for step in self.steps)

    @property
    def differing_steps(self) -> int:
        """How many steps differ, or exist on one side only."""
        return sum(not step.is_same for step in self.steps)

    def to_dict(self) -> dict[str, Any]:
        """Convert to JSON data."""
        return {
            "version": COMPARISON_VERSION,
            "executions": {"a": self.a.to_dict(), "b": self.b.to_dict()},
            "shared_steps": self.shared_steps,
            "differing_steps": self.differing_steps,
            "settings": [each.to_dict() for each in self.settings],
            "steps": [step.to_dict() for step in self.steps],
            "notes": list(self.notes),
        }


def compare(a: ComparedExecution, b: ComparedExecution, *, in_full: bool = False) -> Comparison:
    """Compare two executions.

    Args:
        a: The one.
        b: The other one.
        in_full: Whether results contain the texts of errors, not only those for every viewer.
    """
    one, other = a.steps, b.steps
    shared = _count_shared(one, other)
    pairs = [
        *zip(one[:shared], other[:shared], strict=True),
        *align(one[shared:], other[shared:], (_calls_key, _tools_key), pairs_rest=True),
    ]
    steps = tuple(
        _compare_step(left and left.row, right and right.row, is_shared=place < shared, in_full=in_full)
        for place, (left, right) in enumerate(pairs)
    )
    return Comparison(a, b, tuple(_settings(a, b)), steps, (*_notes("A", a), *_notes("B", b)))


def _count_shared(one: Sequence[PlacedStep], other: Sequence[PlacedStep]) -> int:
    """Return how many steps at the beginning are the same ones."""
    count = 0
    for left, right in zip(one, other, strict=False):
        if (left.execution_id, left.row.number) != (right.execution_id, right.row.number):
            break
        count += 1
    return count


def _calls_key(step: PlacedStep) -> tuple[object, ...]:
    return tuple((call.call.name, json_text(call.call.args)) for call in step.row.calls)


def _tools_key(step: PlacedStep) -> tuple[object, ...]:
    return tuple(call.call.name for call in step.row.calls)


def _call_key(call: CallRow) -> tuple[object, ...]:
    return call.call.name, json_text(call.allowed.args)


def _tool_key(call: CallRow) -> str:
    return call.call.name


# Settings.


def _settings(a: ComparedExecution, b: ComparedExecution) -> Iterator[Difference]:
    yield from differences(a.row.agent, b.row.agent, "agent")
    yield from differences(a.spec.llm_preset, b.spec.llm_preset, "model")
    yield from differences(a.spec.definition_hash, b.spec.definition_hash, "definition_hash")
    yield from differences(_without_trace(a.plan), _without_trace(b.plan), "plan")
    for name in _differing_parts(a.spec, b.spec):
        # A name only: the prompt of an agent is not for every caller.
        yield Difference(f"definition.{name}", "differs", "differs")


def _without_trace(plan: Mapping[str, Any]) -> FrozenDict:
    """Return the plan without the trace in which it was stored, which says nothing about the execution."""
    return FrozenDict({key: value for key, value in plan.items() if key != "traceparent"})


def _differing_parts(a: ExecutionSpec, b: ExecutionSpec) -> Iterator[str]:
    one, other = a.cached_context, b.cached_context
    for key in dict.fromkeys((*one, *other)):
        if one.get(key) != other.get(key):
            yield key
    if a.approvals != b.approvals:
        yield "approvals"


def _notes(name: str, side: ComparedExecution) -> Iterator[str]:
    row = side.row
    if not row.status.is_terminal:
        counted = sum(step.facts is not None for step in side.own)
        yield f"{name} is {row.status}: it is compared up to step {counted}."


# Steps.


def _compare_step(a: StepRow | None, b: StepRow | None, *, is_shared: bool, in_full: bool) -> ComparedStep:
    calls = align(a.calls if a else (), b.calls if b else (), (_call_key, _tool_key))
    return ComparedStep(
        ComparedValue(a and a.number, b and b.number),
        is_shared,
        tuple(_compare_call(left, right, in_full=in_full) for left, right in calls),
        ComparedValue(a and _text(a), b and _text(b)),
        ComparedValue(a and _model(a), b and _model(b)),
        ComparedValue(a and _errors(a, in_full=in_full), b and _errors(b, in_full=in_full)),
        ComparedValue(a and _decision(a), b and _decision(b)),
        tuple(_votes(a, b)) if a and b else (),
        ComparedValue(a and _tokens(a), b and _tokens(b)),
        ComparedValue(a and _usd(a.cost_usd), b and _usd(b.cost_usd)),
        ComparedValue(a and _seconds(a), b and _seconds(b)),
    )


def _compare_call(a: CallRow | None, b: CallRow | None, *, in_full: bool) -> ComparedCall:
    args = differences(a.allowed.args, b.allowed.args) if a and b else ()
    return ComparedCall(
        ComparedValue(a and a.call.name, b and b.call.name),
        args,
        ComparedValue(a and _result(a, in_full=in_full), b and _result(b, in_full=in_full)),
    )


def _result(call: CallRow, *, in_full: bool) -> str | None:
    record = call.record
    if record is None:
        return None
    if record.error is None or in_full:
        return record.text
    return record.text.replace(record.error.message, record.error.told)


def _text(step: StepRow) -> str:
    return "\n".join(message.text for message in step.messages if message.is_assistant and message.text)


def _model(step: StepRow) -> str | None:
    return (step.response or EMPTY).get("model") or None


def _decision(step: StepRow) -> Mapping[str, Any] | None:
    outcome = step.outcome
    if outcome is None:
        return None
    return {
        "decision": outcome.get("decision"),
        "resolved_by": outcome.get("resolvedBy"),
        "stop_reason": None if outcome.get("shouldContinue") else outcome.get("stopReason"),
    }


def _votes(a: StepRow, b: StepRow) -> Iterator[tuple[str, ComparedValue[str]]]:
    one, other = _votes_by_name(a), _votes_by_name(b)
    for name in dict.fromkeys((*one, *other)):
        sides = ComparedValue(one.get(name), other.get(name))
        if not sides.is_same:
            yield name, sides


def _votes_by_name(step: StepRow) -> dict[str, str]:
    """Return the votes by criterion; of several criteria with one name, each has a number."""
    votes = dict[str, str]()
    for vote in (step.outcome or EMPTY).get("evaluations", ()):
        name = base = str(vote.get("criterion", "")).rsplit(".", 1)[-1]
        count = 1
        while name in votes:
            count += 1
            name = f"{base} {count}"
        votes[name] = str(vote.get("decision", ""))
    return votes


def _tokens(step: StepRow) -> int:
    return (step.facts.usage + step.inner_usage).total if step.facts else 0


def _seconds(step: StepRow) -> float:
    return round((step.facts.seconds if step.facts else 0.0) + step.processing_seconds, 6)


def _errors(step: StepRow, *, in_full: bool) -> str | None:
    """Return the errors of a step itself; those of its calls are their results."""
    return "\n".join(error.message if in_full else error.told for error in step.errors) or None


def _usd(cost: Decimal | None) -> float | None:
    return None if cost is None else float(cost)
