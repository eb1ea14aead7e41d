"""The page about an execution, for a terminal: its parts as rich draws them."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.panel import Panel
from rich.table import Table
from rich.text import Text
from rich.tree import Tree

from everstep.agent_domain.loop.step_facts import CallNeed
from everstep.agent_domain.storage.calls import CallRow
from everstep.agent_domain.storage.executions import ExecutionRow
from everstep.agent_domain.storage.requests import RequestKind, RequestRow, RequestState
from everstep.agent_domain.storage.steps import StepRow
from everstep.agent_domain.values import format_moment, json_text, thaw
from everstep.cli import output
from everstep.cli.console import styled
from everstep.cli.execution_trees import ExecutionTree
from everstep.cli.styles import BAD, GOOD, NAME, QUIET, RUNS, WAITS, status_style
from everstep.cli.times import seconds_text

CARD_LINES = 12
"""Lines of a text in a card; `--full` shows all."""

LABEL_WIDTH = 10


@dataclass(frozen=True, slots=True)
class PageContext:
    """What the parts of a page need beside their own rows."""

    now: datetime
    is_full: bool = False
    """Whether long texts are shown whole."""
    requests: Sequence[RequestRow] = ()
    """All requests of the execution."""

    def request_of(self, step: StepRow, call: CallRow) -> RequestRow | None:
        """The open request of a call."""
        mine = (
            request
            for request in self.requests
            if request.call_id == call.call.id
            and request.step_number == step.number
            and request.state is RequestState.OPEN
        )
        return next(mine, None)

    def budgets_of(self, step: StepRow) -> list[RequestRow]:
        """The requests to raise a budget for which a step waited."""
        return [
            request
            for request in self.requests
            if request.kind is RequestKind.BUDGET and request.step_number == step.number
        ]


def fields_table(fields: Iterable[tuple[str, RenderableType]], width: int = LABEL_WIDTH) -> Table:
    """Labels with their values, which are wrapped beside them."""
    table = Table.grid(padding=(0, 1, 0, 0))
    table.add_column(width=width, no_wrap=True)
    table.add_column(ratio=1, overflow="fold")
    for label, value in fields:
        table.add_row(styled(label, QUIET), value)
    return table


_FIELD_STYLES = {"error": BAD, "answer": GOOD, "result": GOOD, "execution": NAME, "agent": NAME}


def execution_head(row: ExecutionRow, fields: Iterable[tuple[str, str]], message: str | None = None) -> Table:
    """The fields of an execution, and the message that began it."""

    def cells() -> Iterator[tuple[str, RenderableType]]:
        for label, value in fields:
            style = (
                status_style(row.status) if label in ("status", "because") else _FIELD_STYLES.get(label, "")
            )
            yield label, styled(value, style)
            if label == "agent" and message is not None:
                yield "message", styled(message)

    return fields_table(cells())


def step_block(step: StepRow, context: PageContext, because: str = "") -> Group:
    """A step with what the model read and wrote, its calls, and the reason for what followed."""
    parts: list[RenderableType] = [
        Text(),
        step_title(step.number, step.attempt, step_details(step, context.now)),
    ]
    parts.append(_indented(fields_table(_step_fields(step, context))))
    parts.extend(_indented(call_card(call, context, context.request_of(step, call))) for call in step.calls)
    after = [*(("error", styled(output.error_text(error), BAD)) for error in step.errors)]
    if because:
        after.append(("because", styled(because, QUIET)))
    if after:
        parts.append(_indented(fields_table(after)))
    return Group(*parts)


def step_title(number: int, attempt: int, details: str = "") -> Text:
    """The headline of a step."""
    title = styled(f"step {number}", NAME)
    if attempt > 1:
        title.append_text(styled(f"  attempt {attempt}", WAITS))
    if details:
        title.append_text(styled(f"  {details}", QUIET))
    return title


def step_details(step: StepRow, now: datetime) -> str:
    """When a step began, how long it took, and what it used."""
    parts = [f"{step.started_at:%H:%M:%S}", seconds_text(step_seconds(step, now))]
    if step.facts is not None:
        parts.append(f"{step.facts.usage.total} tokens")
    if step.cost_usd:
        parts.append(output.usd_text(step.cost_usd))
    return " · ".join(parts)


def step_seconds(step: StepRow, now: datetime) -> float:
    """How long a step took, or has taken so far."""
    ends = [call.record.completed_at for call in step.calls if call.record]
    is_done = step.facts is not None and len(ends) == len(step.calls)
    end = step.completed_at or (max(ends) if ends and is_done else now)
    return (end - step.started_at).total_seconds()


def _step_fields(step: StepRow, context: PageContext) -> Iterator[tuple[str, RenderableType]]:
    for message in step.messages[: step.heard]:
        yield "read", styled(cut_text(message.text, context.is_full))
    for line in output.decision_lines(context.budgets_of(step)):
        yield "budget", styled(" ".join(line.split()), QUIET)
    for compaction in step.compactions:
        yield "compact", styled(compaction.text, QUIET)
    if text := output.model_text(step):
        yield "model", styled(text.rstrip())
    if step.waits:
        yield "waits", styled(output.wait_text(step.waits), WAITS)


def call_card(call: CallRow, context: PageContext, request: RequestRow | None = None) -> Panel:
    """A call in a frame: its arguments, and its result or what it waits for.

    Args:
        call: The call.
        context: The context of the page.
        request: The open request of the call, if it has one.
    """
    state, style = call_state(call, request)
    args = thaw(call.allowed.args)
    body = [_value_text(f"{name}: ", value, context) for name, value in args.items()]
    if call.edited_args is not None:
        body.append(styled(f"edited; the model's were {json_text(thaw(call.call.args))}", QUIET))
    if call.decision and call.decision.by:
        decider = call.decision.by
        verdict = output.verdict_text(call.decision)
        body.append(styled(f"{verdict} by {decider.text}, {format_moment(decider.at, 0)}", QUIET))
    if request is not None:
        body.extend(request_details(request))
    if call.record:
        error = output.error_reference(call.record.error)
        text = cut_text(call.record.text, context.is_full) + error
        body.append(styled("→ ", style).append_text(styled(text, BAD if not call.record.success else "")))
        body.extend(styled(f"file {each}  {each.id}", QUIET) for each in call.record.attachments)
    elif call.progress:
        body.append(styled(call.progress.detail, RUNS))
    title = styled(f"{call.call.name}  ", NAME).append_text(styled(state, style))
    if call.attempts > 1:
        title.append_text(styled(f"  {call.attempts} attempts", WAITS))
    return Panel(Group(*body), title=title, title_align="left", border_style=style, padding=(0, 1))


def _value_text(label: str, value: Any, context: PageContext) -> Text:
    text = value if isinstance(value, str) else json_text(value)
    return styled(label, QUIET).append_text(styled(cut_text(text, context.is_full)))


def call_state(call: CallRow, request: RequestRow | None) -> tuple[str, str]:
    """What became of a call, in words, and the style of it."""
    record = call.record
    if record is not None:
        took = seconds_text((record.completed_at - record.started_at).total_seconds())
        return (f"done · {took}", GOOD) if record.success else (f"failed · {took}", BAD)
    if request is not None:
        noun = "an answer" if request.kind is CallNeed.INPUT else "approval"
        return f"waiting for {noun}", WAITS
    if call.state == "reserved" or call.progress:
        return "runs", RUNS
    return "waits", QUIET


def request_details(request: RequestRow) -> Iterator[Text]:
    """What a request asks, who may answer, and with which command."""
    if request.kind is not CallNeed.APPROVAL:
        yield styled(output.request_text(request), WAITS)
    if choices := request.request.get("choices"):
        yield styled(f"choices: {', '.join(choices)}")
    if schema := request.request.get("schema"):
        yield styled(f"form: {json_text(thaw(schema))}", QUIET)
    if request.policy:
        until = f" until {format_moment(request.expires_at, 0)}" if request.expires_at else ""
        yield styled(f"may be decided by {request.policy.approver_text}{until}", WAITS)
    yield styled(output.request_command(request), QUIET)


def request_card(request: RequestRow) -> Panel:
    """An open request in a frame."""
    kind = output.request_kind(request)
    title = styled(kind, WAITS)
    body: list[RenderableType] = []
    if request.kind is CallNeed.APPROVAL:
        title = styled(f"approval of {request.tool}", WAITS)
        context = PageContext(request.created_at, is_full=True)
        body.extend(_value_text(f"{name}: ", value, context) for name, value in thaw(request.args).items())
    body.extend(request_details(request))
    return Panel(Group(*body), title=title, title_align="left", border_style=WAITS, padding=(0, 1))


def children_tree(children: Sequence[ExecutionTree]) -> Tree:
    """The executions of subagents, with their own."""
    tree = Tree(styled("subagents", QUIET), guide_style=QUIET)
    for child in children:
        _add_child(tree, child)
    return tree


def _add_child(tree: Tree, child: ExecutionTree) -> None:
    row = child.row
    label = styled(row.agent, NAME)
    label.append_text(styled(f"  {row.status}", status_style(row.status)))
    details = (
        f"  {row.step_count} steps, {row.usage.get('total', 0)} tokens, {output.short_usd(row.cost_usd)}"
    )
    label.append_text(styled(details))
    label.append_text(styled(f"\n{row.ref.execution_id}", QUIET))
    branch = tree.add(label)
    for each in child.children:
        _add_child(branch, each)


def cut_text(text: str, is_full: bool) -> str:
    """A text, cut to some lines unless all of it is wanted."""
    lines = text.splitlines()
    if is_full or (len(lines) <= CARD_LINES and len(text) <= CARD_LINES * 100):
        return text.rstrip("\n")
    kept = "\n".join(lines[:CARD_LINES])[: CARD_LINES * 100]
    more = len(text) - len(kept)
    return f"{kept}\n… {more} more characters: --full"


def _indented(part: RenderableType) -> Padding:
    return Padding(part, (0, 0, 0, 2))
