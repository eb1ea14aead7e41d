"""Formats executions, steps, requests and votes as lines for a terminal."""

from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from decimal import Decimal
from math import ceil
from typing import Any

from everstep.agent_domain.agents.definition import AgentDefinition
from everstep.agent_domain.loop.budget import BudgetUnit
from everstep.agent_domain.loop.continuation import ContinuationOutcome
from everstep.agent_domain.loop.status import ExecutionStatus
from everstep.agent_domain.loop.step_error import StepError
from everstep.agent_domain.loop.step_facts import CallNeed
from everstep.agent_domain.messages.compaction import Compaction
from everstep.agent_domain.storage.calls import CallRow
from everstep.agent_domain.storage.executions import ExecutionRow
from everstep.agent_domain.storage.requests import RequestKind, RequestRow
from everstep.agent_domain.storage.steps import RetryWait, StepRow
from everstep.agent_domain.tools.summaries import args_summary
from everstep.agent_domain.values import EMPTY, format_moment, json_text, truncate

WIDTH = 200
MODEL_PREFIX = "  model   "
UNKNOWN_COST = "unknown: a model has no prices, or its provider counted no tokens"
NO_WORKER = "no worker has picked it up; `everstep doctor` checks whether one runs"


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
    row: ExecutionRow, ui_url: str | None, namespace: str = "default", public_url: str | None = None
) -> Iterator[str]:
    """One execution with its status and its result."""
    yield f"execution  {row.ref.execution_id}"
    yield f"agent      {row.agent}"
    if row.parent_execution_id:
        yield f"parent     {row.parent_execution_id}"
    # Most completed executions have the stop reason "completed", too.
    reason = f" ({row.stop_reason})" if row.stop_reason and str(row.stop_reason) != str(row.status) else ""
    yield f"status     {row.status}{reason}"
    if row.status is ExecutionStatus.PENDING:
        yield f"           {NO_WORKER}"
    if row.definition_hash:
        yield f"definition {row.definition_hash}"
    yield f"steps      {row.step_count}, {row.usage.get('total', 0)} tokens"
    yield f"cost       {usd_text(row.cost_usd)}{_tree_text(row)}"
    if ui_url:
        yield f"temporal   {ui_url}/namespaces/{namespace}/workflows/agent-execution%2F{row.ref.execution_id}"
    if public_url:
        yield f"console    {public_url}/console/executions/{row.ref.execution_id}"
    if row.cancelled_by:
        yield f"cancelled  by {row.cancelled_by.text}, {format_moment(row.cancelled_by.at, 0)}"
    if row.error_message:
        yield f"error      {row.error_message}"
    output = row.output or EMPTY
    if output.get("data") is not None:
        yield f"result     {json_text(output['data'])}"
    elif output.get("response"):
        yield f"answer     {output['response']}"


def step_lines(step: StepRow) -> Iterator[str]:
    """A step: the model's text, calls and errors."""
    yield step_head(step.number, step.attempt)
    yield from map(compaction_line, step.compactions)
    if text := model_text(step):
        yield f"{MODEL_PREFIX}{indent(truncate(text, WIDTH))}"
    if step.waits:
        yield wait_line(step.waits)
    yield from map(call_line, step.calls)
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


def _tree_text(row: ExecutionRow) -> str:
    if row.tree_cost_usd == row.cost_usd:
        return ""
    return f", {usd_text(row.tree_cost_usd)} with subagents"


def cost_line(step: StepRow) -> Iterator[str]:
    """What a step cost, if that is known."""
    if step.cost_usd:
        yield f"  cost    {usd_text(step.cost_usd)}"


def wait_line(wait: RetryWait) -> str:
    """The reason for a delayed model call, and the seconds until the next attempt."""
    seconds = max(1, ceil((wait.until - datetime.now(UTC)).total_seconds()))
    reason = f"{wait.told.split(', next attempt')[0]}, next attempt in {seconds} s"
    return f"  waits   {reason} ({indent(truncate(wait.error, WIDTH))})"


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


def call_line(row: CallRow) -> str:
    """A call with its result or its state."""
    call = f"{row.call.name}({args_summary(row.allowed.args)})"
    result = indent(truncate(row.record.text, WIDTH)) if row.record else _state_text(row)
    again = f"  ({row.attempts} attempts)" if row.attempts > 1 else ""
    ref = _error_ref(row.record.error if row.record else None)
    files = row.record.attachments if row.record else ()
    attached = "".join(f"\n  file    {each}  {each.id}" for each in files)
    return f"  tool    {call} -> {result}{ref}{again}{attached}"


def error_line(error: StepError) -> str:
    """An error of a step."""
    return f"  error   {indent(error.message)}{_error_ref(error)}"


def _error_ref(error: StepError | None) -> str:
    # Viewers see this reference where the text of the error is hidden; it lets an operator find the error.
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
        if request.kind is CallNeed.INPUT:
            yield f"question   {request.request.get('prompt', '')}"
            choices = request.request.get("choices")
            if choices:
                yield f"choices    {', '.join(choices)}"
            yield f"           everstep answer {request.ref.execution_id} TEXT"
        elif request.kind is RequestKind.BUDGET:
            asked = request.request
            yield f"budget     {exhausted_text(asked)}"
            yield f"           everstep budget {request.ref.execution_id} --{asked['unit']} TOTAL"
        else:
            yield f"approval   {request.tool} {json_text(request.args)}"
            yield f"           everstep approve {request.ref.execution_id} [--deny]"
            yield f"digest     {request.args_digest}"
            if request.policy:
                until = f" until {format_moment(request.expires_at, 0)}" if request.expires_at else ""
                yield f"by         {request.policy.approver_text}{until}"


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


def decision_lines(requests: Sequence[RequestRow]) -> Iterator[str]:
    """The decisions about calls and the answers to questions, with who gave them."""
    for request in requests:
        resolution = request.resolution
        if resolution is None:
            continue
        is_budget = request.kind is RequestKind.BUDGET
        verdict = _VERDICTS.get(resolution.outcome, resolution.outcome)
        by = f" by {resolution.by.text}, {format_moment(resolution.by.at, 0)}" if resolution.by else ""
        reason = f": {resolution.reason}" if resolution.reason else ""
        what = f"{resolution.value} {request.request['unit']}" if is_budget else request.tool
        yield f"{verdict:<10} {what}{by}{reason}"
