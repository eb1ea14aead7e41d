"""Formats executions, steps, requests and votes as lines for a terminal."""

from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from decimal import Decimal
from math import ceil
from typing import Any

from everstep.agent_domain.agents.definition import AgentDefinition
from everstep.agent_domain.explanation.waits import FOR_A_WORKER
from everstep.agent_domain.loop.budget import BudgetUnit
from everstep.agent_domain.loop.continuation import ContinuationOutcome
from everstep.agent_domain.loop.status import ExecutionStatus
from everstep.agent_domain.loop.step_error import StepError
from everstep.agent_domain.loop.step_facts import CallNeed
from everstep.agent_domain.messages.compaction import Compaction
from everstep.agent_domain.storage.calls import CallRow
from everstep.agent_domain.storage.executions import ExecutionRow
from everstep.agent_domain.storage.requests import RequestKind, RequestRow, RequestState, Resolution
from everstep.agent_domain.storage.steps import RetryWait, StepRow
from everstep.agent_domain.tools.summaries import args_summary
from everstep.agent_domain.values import EMPTY, format_moment, json_text, truncate
from everstep.cli.times import seconds_text

WIDTH = 200
MODEL_PREFIX = "  model   "
UNKNOWN_COST = "unknown: a model has no prices, or its provider counted no tokens"
NO_WORKER = "no worker has picked it up; `everstep doctor` checks whether one runs"


def pending_hint(because: str) -> str:
    """What to say about an execution that has been pending for a while, from its because."""
    return f"pending: {NO_WORKER}" if FOR_A_WORKER in because else because


def execution_line(row: ExecutionRow) -> str:
    """One execution in a list."""
    summary = f"{row.status:<9}  {row.agent}  {row.step_count} steps  {row.created_at:%F %T}"
    return f"{row.ref.execution_id}  {summary}"


def agent_lines(agent: AgentDefinition) -> Iterator[str]:
    """An agent with its tools, its capabilities and its source."""
    descriptor = agent.descriptor
    yield f"{descriptor.name}  {' '.join(descriptor.description.split())}"
    yield f"  tools         {', '.join(descriptor.tools) or 'none'}"
    yield f"  capabilities  {', '.join(descriptor.capabilities) or 'none'}"
    if agent.source:
        yield f"  from          {agent.source}"


def execution_lines(
    row: ExecutionRow,
    ui_url: str | None,
    namespace: str = "default",
    public_url: str | None = None,
    because: str | None = None,
) -> Iterator[str]:
    """One execution with its status and its result."""
    for label, value in execution_fields(row, ui_url, namespace, public_url, because):
        yield f"{label:<10} {value}"


def execution_fields(
    row: ExecutionRow,
    ui_url: str | None,
    namespace: str = "default",
    public_url: str | None = None,
    because: str | None = None,
) -> Iterator[tuple[str, str]]:
    """The fields of an execution, with their labels.

    Args:
        row: The execution.
        ui_url: The address of Temporal's UI.
        namespace: Its namespace in Temporal.
        public_url: The address of the installation, whose console has a page about it.
        because: Why it ended, waits or goes on.
    """
    yield "execution", str(row.ref.execution_id)
    yield "agent", row.agent
    if row.parent_execution_id:
        yield "parent", str(row.parent_execution_id)
    # Most completed executions have the stop reason "completed", too.
    reason = f" ({row.stop_reason})" if row.stop_reason and str(row.stop_reason) != str(row.status) else ""
    yield "status", f"{row.status}{reason}"
    if row.status is ExecutionStatus.PENDING and (because is None or FOR_A_WORKER in because):
        yield "", NO_WORKER
    if because:
        yield "because", because
    if row.definition_hash:
        yield "definition", row.definition_hash
    took = f", {seconds_text(_seconds(row))}" if row.completed_at else ""
    yield "steps", f"{row.step_count}, {row.usage.get('total', 0)} tokens{took}"
    yield "cost", f"{usd_text(row.cost_usd)}{_tree_text(row)}"
    if ui_url:
        address = f"{ui_url}/namespaces/{namespace}/workflows/agent-execution%2F{row.ref.execution_id}"
        yield "temporal", address
    if public_url:
        yield "console", f"{public_url}/console/executions/{row.ref.execution_id}"
    yield from _end_fields(row)


def _end_fields(row: ExecutionRow) -> Iterator[tuple[str, str]]:
    if row.cancelled_by:
        yield "cancelled", f"by {row.cancelled_by.text}, {format_moment(row.cancelled_by.at, 0)}"
    if row.error_message:
        yield "error", row.error_message
    output = row.output or EMPTY
    if output.get("data") is not None:
        yield "result", json_text(output["data"])
    elif output.get("response"):
        yield "answer", str(output["response"])


def _seconds(row: ExecutionRow) -> float:
    began = row.started_at or row.created_at
    return ((row.completed_at or began) - began).total_seconds()


def is_open(request: RequestRow) -> bool:
    """Whether a request waits for an answer."""
    return request.state is RequestState.OPEN


def step_lines(step: StepRow, width: int | None = WIDTH) -> Iterator[str]:
    """A step: the messages that it read, the model's text, calls and errors.

    Args:
        step: The step.
        width: The length to which texts are cut; None for no limit.
    """
    yield step_head(step.number, step.attempt)
    yield from map(compaction_line, step.compactions)
    for message in step.messages[: step.heard]:
        yield f"  read    {indent(cut(message.text, width))}"
    if text := model_text(step):
        yield f"{MODEL_PREFIX}{indent(cut(text, width))}"
    if step.waits:
        yield wait_line(step.waits)
    yield from (call_line(call, width) for call in step.calls)
    yield from map(error_line, step.errors)
    yield from cost_line(step)


def compaction_line(compaction: Compaction) -> str:
    """A compaction before a step."""
    return f"  compact {compaction.text}"


def step_head(number: int, attempt: int) -> str:
    """The headline of a step."""
    return f"step {number}" + (f"  (attempt {attempt})" if attempt > 1 else "")


def usd_text(cost_usd: Decimal | None) -> str:
    """A cost in US dollars, to at least a cent and to two digits."""
    if cost_usd is None:
        return UNKNOWN_COST
    digits = 2 if cost_usd >= 1 or not cost_usd else 1 - cost_usd.adjusted()
    return f"${cost_usd:.{max(2, digits)}f}"


def short_usd(cost_usd: Decimal | None) -> str:
    """A cost for a table."""
    return "unknown" if cost_usd is None else usd_text(cost_usd)


def _tree_text(row: ExecutionRow) -> str:
    if row.tree_cost_usd == row.cost_usd:
        return ""
    return f", {usd_text(row.tree_cost_usd)} with subagents"


def cost_line(step: StepRow) -> Iterator[str]:
    """What a step cost, if that is known."""
    if step.cost_usd:
        yield f"  cost    {usd_text(step.cost_usd)}"


def wait_line(wait: RetryWait) -> str:
    """The line about a delayed model call."""
    return f"  waits   {wait_text(wait)}"


def wait_text(wait: RetryWait) -> str:
    """The reason for a delayed model call, and the seconds until the next attempt."""
    seconds = max(1, ceil((wait.until - datetime.now(UTC)).total_seconds()))
    reason = f"{wait.told.split(', next attempt')[0]}, next attempt in {seconds} s"
    return f"{reason} ({indent(truncate(wait.error, WIDTH))})"


def model_text(step: StepRow) -> str:
    """The model's text in a step, complete or so far."""
    if step.facts is None:
        return step.partial_text
    return "\n".join(message.text for message in step.messages if message.is_assistant and message.text)


def indent(text: str) -> str:
    """A text whose later lines are indented below the first."""
    return text.replace("\n", "\n" + " " * len(MODEL_PREFIX))


_STATES = {"told": "waits", "reserved": "runs"}
"""How calls without a result are shown: a worker has begun the second, and no one the first."""


def _state_text(row: CallRow) -> str:
    # A call that reports runs, also if its start is not recorded yet.
    return f"runs: {row.progress.detail}" if row.progress else _STATES[row.state]


def running_text(row: CallRow) -> str:
    """A call without a result, on one line."""
    how_far = f" {row.progress.detail}" if row.progress else ""
    verb = "runs" if row.state == "reserved" or row.progress else "waits"
    return f"{row.call.name} {verb}{how_far}"


def cut(text: str, width: int | None) -> str:
    """A text, cut to a length unless that is None."""
    return text if width is None else truncate(text, width)


def call_line(row: CallRow, width: int | None = WIDTH) -> str:
    """A call with its result or its state."""
    call = f"{row.call.name}({args_summary(row.allowed.args)})"
    result = indent(cut(row.record.text, width)) if row.record else _state_text(row)
    again = f"  ({row.attempts} attempts)" if row.attempts > 1 else ""
    ref = error_reference(row.record.error if row.record else None)
    files = row.record.attachments if row.record else ()
    attached = "".join(f"\n  file    {each}  {each.id}" for each in files)
    return f"  tool    {call} -> {result}{ref}{again}{attached}"


def error_line(error: StepError) -> str:
    """An error of a step."""
    return f"  error   {indent(error_text(error))}"


def error_text(error: StepError) -> str:
    """An error, with its reference."""
    return f"{error.message}{error_reference(error)}"


def error_reference(error: StepError | None) -> str:
    """The reference of an error that viewers see in place of its text; an operator finds it by that."""
    return f"  (ref {error.ref})" if error and error.ref and error.told != error.message else ""


def vote_lines(step: StepRow) -> Iterator[str]:
    """The decision after a step, with every vote."""
    if step.outcome is None:
        return
    outcome = ContinuationOutcome.from_dict(step.outcome)
    verdict = "another step" if outcome.should_continue else f"stop: {outcome.stop_reason}"
    yield f"  {verdict}, decided by {outcome.resolved_by}"
    for vote in outcome.evaluations:
        source = f" of {vote.source}" if vote.source else ""
        yield f"    {vote.decision:<7} {vote.name}{source}: {vote.reason}"


def request_lines(requests: Sequence[RequestRow]) -> Iterator[str]:
    """Open requests, with the commands that answer them."""
    for request in requests:
        yield f"{request_kind(request):<10} {request_text(request)}"
        if choices := request.request.get("choices"):
            yield f"choices    {', '.join(choices)}"
        yield f"           {request_command(request)}"
        if request.kind is CallNeed.APPROVAL:
            yield f"digest     {request.args_digest}"
            if request.policy:
                until = f" until {format_moment(request.expires_at, 0)}" if request.expires_at else ""
                yield f"by         {request.policy.approver_text}{until}"


def request_kind(request: RequestRow) -> str:
    """What a request asks for, in one word."""
    return {CallNeed.INPUT: "question", RequestKind.BUDGET: "budget"}.get(request.kind, "approval")


def request_text(request: RequestRow) -> str:
    """What a request asks: the question, the call, or the exhausted budget."""
    if request.kind is CallNeed.INPUT:
        return str(request.request.get("prompt", ""))
    if request.kind is RequestKind.BUDGET:
        return exhausted_text(request.request)
    return f"{request.tool} {json_text(request.args)}"


def request_command(request: RequestRow) -> str:
    """The command that answers a request."""
    if request.kind is CallNeed.INPUT:
        return f"everstep answer {request.ref.execution_id} TEXT"
    if request.kind is RequestKind.BUDGET:
        return f"everstep budget {request.ref.execution_id} --{request.request['unit']} TOTAL"
    return f"everstep approve {request.ref.execution_id} [--deny]"


def exhausted_text(request: Mapping[str, Any]) -> str:
    """What a request says of an exhausted budget."""
    unit = BudgetUnit(request["unit"])
    limit, spent, needed = (unit.text(Decimal(str(request[key]))) for key in ("limit", "spent", "needed"))
    return f"the {request['scope']}'s {limit}: {spent} spent, the next model call needs up to {needed}"


_VERDICTS = {
    "approve": "approved",
    "deny": "denied",
    "edit": "edited",
    "answer": "answered",
    "raise": "raised to",
}


def verdict_text(resolution: Resolution) -> str:
    """What was decided, as a participle."""
    return _VERDICTS.get(resolution.outcome, resolution.outcome)


def decision_lines(requests: Sequence[RequestRow]) -> Iterator[str]:
    """The decisions about calls and the answers to questions, with who gave them."""
    for request in requests:
        resolution = request.resolution
        if resolution is None:
            continue
        is_budget = request.kind is RequestKind.BUDGET
        verdict = verdict_text(resolution)
        by = f" by {resolution.by.text}, {format_moment(resolution.by.at, 0)}" if resolution.by else ""
        reason = f": {resolution.reason}" if resolution.reason else ""
        what = f"{resolution.value} {request.request['unit']}" if is_budget else request.tool
        yield f"{verdict:<10} {what}{by}{reason}"
