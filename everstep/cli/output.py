"""What the commands print: executions, steps and votes, for people."""

from collections.abc import Iterator, Sequence

from agent_domain.continuation import ContinuationOutcome
from agent_domain.ports import CallRow, ExecutionRow, RequestRow, StepRow
from agent_domain.step_facts import CallNeed
from agent_domain.summaries import args_summary
from agent_domain.values import cut, json_text

WIDTH = 200


def execution_line(row: ExecutionRow) -> str:
    """One execution in a list."""
    told = f"{row.status:<9}  {row.agent}  {row.step_count} steps  {row.created_at:%F %T}"
    return f"{row.ref.execution_id}  {told}"


def execution_lines(row: ExecutionRow, ui_url: str | None) -> Iterator[str]:
    """One execution, with how it ended."""
    yield f"execution  {row.ref.execution_id}"
    yield f"agent      {row.agent}"
    yield f"status     {row.status}" + (f" ({row.stop_reason})" if row.stop_reason else "")
    yield f"steps      {row.step_count}, {row.usage.get('total', 0)} tokens"
    if ui_url:
        yield f"temporal   {ui_url}/namespaces/default/workflows/agent-execution%2F{row.ref.execution_id}"
    if row.error_message:
        yield f"error      {row.error_message}"
    if row.output and row.output.get("response"):
        yield f"answer     {row.output['response']}"


def step_lines(step: StepRow) -> Iterator[str]:
    """What a step did."""
    yield f"step {step.number}" + (f"  (attempt {step.attempt})" if step.attempt > 1 else "")
    said = [message.text for message in step.messages if message.is_assistant and message.text]
    for text in said or ([step.partial_text] if step.partial_text else []):
        yield f"  model   {cut(text, WIDTH)}"
    for call in step.calls:
        yield f"  tool    {_call(call)}"
    for error in step.errors:
        yield f"  error   {error.message}"


def _call(row: CallRow) -> str:
    told = f"{row.call.name}({args_summary(row.call.args)})"
    result = cut(row.record.text, WIDTH) if row.record else row.state
    again = f"  ({row.attempts} attempts)" if row.attempts > 1 else ""
    return f"{told} -> {result}{again}"


def vote_lines(step: StepRow) -> Iterator[str]:
    """Why another step followed, or none: every vote."""
    if step.outcome is None:
        return
    outcome = ContinuationOutcome.from_dict(step.outcome)
    verdict = "another step" if outcome.should_continue else f"stop: {outcome.stop_reason}"
    yield f"  {verdict}, decided by {outcome.resolved_by}"
    for vote in outcome.evaluations:
        yield f"    {vote.decision:<7} {vote.name}: {vote.reason}"


def request_lines(requests: Sequence[RequestRow], execution: str) -> Iterator[str]:
    """What people are asked, and how they answer."""
    for request in requests:
        if request.kind is CallNeed.INPUT:
            yield f"question   {request.request.get('prompt', '')}"
            choices = request.request.get("choices")
            if choices:
                yield f"choices    {', '.join(choices)}"
            yield f"           everstep answer {execution} TEXT"
        else:
            yield f"approval   {request.tool} {json_text(request.args)}"
            yield f"           everstep approve {execution} [--deny]"
