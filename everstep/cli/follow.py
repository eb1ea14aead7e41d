"""Follows an execution at a terminal: prints new output until the execution ends.

The steps are read from the database. The gateway, if there is one, signals when to read again, and delivers
the model's text before it is stored.
"""

from collections.abc import AsyncGenerator, Iterable, Iterator, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from datetime import datetime
from time import monotonic
from typing import TypeAlias

from everstep.agent_domain.loop.status import ExecutionStatus
from everstep.agent_domain.storage.calls import CallRow
from everstep.agent_domain.storage.executions import ExecutionRow
from everstep.agent_domain.storage.requests import RequestRow, RequestState
from everstep.agent_domain.storage.steps import StepRow
from everstep.cli import output
from everstep.cli.watch import Watch
from everstep.client.execution import Execution
from everstep.streams.client_events import Wrote

LOOK_SECONDS = 0.2

PENDING_HINT_SECONDS = 3.0
"""Seconds after which a worker should have picked the execution up."""


@dataclass(frozen=True, slots=True)
class StepHead:
    """The beginning of a step, or of another attempt of it."""

    number: int
    attempt: int


@dataclass(frozen=True, slots=True)
class Activity:
    """What the execution does until the next piece of output."""

    text: str
    since: datetime | None = None


Shown: TypeAlias = StepHead | StepRow | CallRow | RequestRow | Activity | None


@dataclass(frozen=True, slots=True)
class OutputPiece:
    """A piece of output: the text for a pipe, and what it shows, for a terminal that draws it."""

    text: str
    shown: Shown = None
    """A `StepRow` is a step that is complete; its text is empty, like that of an activity."""


async def follow_lines(execution: Execution) -> AsyncGenerator[str]:
    """Yield the output of an execution as whole lines, until the execution ends."""
    line = ""
    async with aclosing(follow_text(execution)) as texts:
        async for text in texts:
            *lines, line = (line + text).split("\n")
            for whole in lines:
                yield whole


async def follow_text(execution: Execution, watch: Watch | None = None) -> AsyncGenerator[str]:
    """Yield the output of an execution as text with line ends, until the execution ends."""
    async with aclosing(follow_pieces(execution, watch)) as pieces:
        async for piece in pieces:
            if piece.text:
                yield piece.text


async def follow_pieces(execution: Execution, watch: Watch | None = None) -> AsyncGenerator[OutputPiece]:
    """Yield the output of an execution in pieces, until the execution ends."""
    watch, output_state, counted = watch or Watch(), _PrintedOutput(), 0
    while True:
        # Taken before the database is read, which then contains everything that precedes this text.
        wrote = watch.latest_text(execution.id)
        row = await execution.get()
        async for piece in _poll_output(execution, row, output_state, counted):
            yield piece
        if row.status.is_terminal:
            break
        counted = row.step_count
        is_time = False
        while not is_time:
            for piece in output_state.of_text(wrote):
                yield piece
            is_time = await watch.wait(LOOK_SECONDS)
            wrote = watch.latest_text(execution.id)
            is_time = is_time or output_state.is_behind(wrote)
    for piece in output_state.line_end():
        yield piece


async def _poll_output(
    execution: Execution, row: ExecutionRow, output_state: "_PrintedOutput", counted: int
) -> AsyncGenerator[OutputPiece]:
    # All stored requests are read, not only the open ones: a request that is answered between two reads is
    # printed as well. They are read before the steps, which then contain everything that precedes them.
    stored = await execution.all_requests()
    requests = [request for request in stored if not output_state.is_printed(request)]
    last: StepRow | None = None
    # Only the last step that the previous read counted may have changed since.
    async for last in execution.each_step(after=counted - 1):
        for piece in output_state.of_step(last, requests):
            yield piece
    for request in requests:
        for piece in output_state.of_request(request):
            yield piece
    if row.status is ExecutionStatus.PENDING:
        because = await execution.sentence(row)
        for piece in output_state.of_pending(because):
            yield piece
        yield OutputPiece("", Activity(because.removeprefix("pending: "), None))
        return
    yield OutputPiece("", _activity(row, last, stored))


def _activity(row: ExecutionRow, step: StepRow | None, requests: Sequence[RequestRow]) -> Activity:
    """What an execution that has begun does now, or waits for."""
    waiting = [request for request in requests if request.state is RequestState.OPEN]
    if waiting:
        asked = output.request_text(waiting[0])
        return Activity(f"waiting for people: {asked}", waiting[0].created_at)
    if row.status is ExecutionStatus.PAUSED:
        return Activity("paused", None)
    return Activity("starting", row.created_at) if step is None else _step_activity(row, step)


def _step_activity(row: ExecutionRow, step: StepRow) -> Activity:
    if step.waits:
        return Activity(f"waiting until the next attempt: {step.waits.told}", step.waits.since)
    if step.facts is None:
        return Activity(f"{row.agent} thinks", step.started_at)
    running = [call for call in step.calls if call.record is None]
    return Activity(", ".join(map(output.running_text, running)) or "between two steps")


class _PrintedOutput:
    """Remembers what was printed, so that only new output is printed."""

    def __init__(self) -> None:
        self._began = monotonic()
        self._keys: set[str] = set()
        self._said: dict[int, str] = {}
        """The model's text that was printed, by step."""
        self._in_line = False
        self._at = (0, 0)
        """The last step that was printed, and its attempt."""
        self._is_over = False
        """Whether all text of that step was printed."""

    def of_pending(self, because: str) -> Iterator[OutputPiece]:
        """A hint that the execution does not begin, after some seconds."""
        if monotonic() - self._began > PENDING_HINT_SECONDS:
            yield from self.once("pending", [output.pending_hint(because)])

    def of_step(self, step: StepRow, requests: Sequence[RequestRow] = ()) -> Iterator[OutputPiece]:
        """The model's text so far, the requests to people, and the calls that have results."""
        at = step.number, step.attempt
        if step.facts is None and at < self._at:
            # The gateway has already delivered text of a later attempt.
            return
        yield from self._begin(at)
        yield from self._compactions(step)
        yield from self._new_text(step.number, output.model_text(step), is_all=step.facts is not None)
        if step.waits:
            yield from self.once(f"waits {at}", [output.wait_line(step.waits)])
        if step.facts is None:
            return
        if step.number == self._at[0]:
            self._is_over = True
            yield from self.line_end()
        for call in step.calls:
            yield from self._call(step, call, requests)
        for number, error in enumerate(step.errors):
            yield from self.once(f"error {at} {number}", [output.error_line(error)])
        if all(call.record for call in step.calls):
            yield from self.once(f"complete {at}", [], step)

    def _call(self, step: StepRow, call: CallRow, requests: Sequence[RequestRow]) -> Iterator[OutputPiece]:
        """A call with its result, after the requests about it; or how far it is."""
        line = output.call_line(call)
        if call.record:
            for request in requests:
                if _comes_before(request, step, call):
                    yield from self.of_request(request)
            yield from self.once(call.call.id, [line], call)
        elif call.progress:
            yield from self.once(f"{call.call.id} {line}", [line], call)

    def _compactions(self, step: StepRow) -> Iterator[OutputPiece]:
        for index, compaction in enumerate(step.compactions):
            yield from self.once(f"compact {step.number} {index}", [output.compaction_line(compaction)])

    def of_text(self, wrote: Wrote | None) -> Iterator[OutputPiece]:
        """The model's text from the gateway, before it is stored."""
        if wrote is None:
            return
        at = wrote.step_number, wrote.attempt
        if at < self._at or (at == self._at and self._is_over):
            return
        yield from self._begin(at)
        yield from self._new_text(wrote.step_number, wrote.text)

    def is_behind(self, wrote: Wrote | None) -> bool:
        """Whether this text is of a later step or attempt: the stored steps before it are printed first."""
        return wrote is not None and (wrote.step_number, wrote.attempt) > self._at

    def _begin(self, at: tuple[int, int]) -> Iterator[OutputPiece]:
        number, attempt = at
        key = f"step {number} {attempt}"
        if key not in self._keys:
            # A new attempt repeats all text.
            self._said.pop(number, None)
        if at > self._at:
            self._at, self._is_over = at, False
        yield from self.once(key, [output.step_head(number, attempt)], StepHead(number, attempt))

    def _new_text(self, number: int, text: str, *, is_all: bool = False) -> Iterator[OutputPiece]:
        before = self._said.get(number, "")
        if not text or (before.startswith(text) and not (is_all and before[len(text) :].strip())):
            # Already printed, from the database or from the gateway.
            return
        if not text.startswith(before):
            # The stored text differs from the text that was streamed.
            yield from self.line_end()
            before = ""
        new = output.indent(text[len(before) :])
        yield OutputPiece(new if before else f"{output.MODEL_PREFIX}{new}")
        self._said[number], self._in_line = text, True

    def is_printed(self, request: RequestRow) -> bool:
        """Whether this request was printed."""
        return str(request.id) in self._keys

    def of_request(self, request: RequestRow) -> Iterator[OutputPiece]:
        """The lines of a request."""
        yield from self.once(str(request.id), output.request_lines([request]), request)

    def once(self, key: str, lines: Iterable[str], shown: Shown = None) -> Iterator[OutputPiece]:
        """Lines that are printed only once per key."""
        if key in self._keys:
            return
        self._keys.add(key)
        text = "".join(f"{line}\n" for line in lines)
        if text:
            yield from self.line_end()
        yield OutputPiece(text, shown)

    def line_end(self) -> Iterator[OutputPiece]:
        """The end of an unfinished line."""
        if self._in_line:
            self._in_line = False
            yield OutputPiece("\n")


def _comes_before(request: RequestRow, step: StepRow, call: CallRow) -> bool:
    """Whether a request precedes the result of a call: its own request, or one of a subagent's execution."""
    if call.record is None or request.step_number > step.number:
        return False
    return request.call_id == call.call.id or request.created_at < call.record.completed_at
