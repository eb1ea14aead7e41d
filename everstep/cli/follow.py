"""Follows an execution at a terminal: prints new output until the execution ends.

The steps are read from the database. The gateway, if there is one, signals when to read again, and delivers
the model's text before it is stored.
"""

from collections.abc import AsyncGenerator, Iterator, Sequence
from contextlib import aclosing
from time import monotonic

from everstep.agent_domain.loop.status import ExecutionStatus
from everstep.agent_domain.storage.calls import CallRow
from everstep.agent_domain.storage.executions import ExecutionRow
from everstep.agent_domain.storage.requests import RequestRow
from everstep.agent_domain.storage.steps import StepRow
from everstep.cli import output
from everstep.cli.watch import Watch
from everstep.client.execution import Execution
from everstep.streams.client_events import Wrote

LOOK_SECONDS = 0.2

PENDING_HINT_SECONDS = 3.0
"""Seconds after which a worker should have picked the execution up."""


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
    watch, output_state, counted = watch or Watch(), _PrintedOutput(), 0
    while True:
        # Taken before the database is read, which then contains everything that precedes this text.
        wrote = watch.latest_text(execution.id)
        row = await execution.get()
        async for text in _poll_output(execution, row, output_state, counted):
            yield text
        if row.status.is_terminal:
            break
        counted = row.step_count
        is_time = False
        while not is_time:
            for text in output_state.of_text(wrote):
                yield text
            is_time = await watch.wait(LOOK_SECONDS)
            wrote = watch.latest_text(execution.id)
            is_time = is_time or output_state.is_behind(wrote)
    for text in output_state.line_end():
        yield text


async def _poll_output(
    execution: Execution, row: ExecutionRow, output_state: "_PrintedOutput", counted: int
) -> AsyncGenerator[str]:
    # All stored requests are read, not only the open ones: a request that is answered between two reads is
    # printed as well. They are read before the steps, which then contain everything that precedes them.
    requests = [request for request in await execution.all_requests() if not output_state.is_printed(request)]
    # Only the last step that the previous read counted may have changed since.
    async for step in execution.each_step(after=counted - 1):
        for text in output_state.of_step(step, requests):
            yield text
    for request in requests:
        for text in output_state.of_request(request):
            yield text
    for text in output_state.of_row(row):
        yield text


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

    def of_row(self, row: ExecutionRow) -> Iterator[str]:
        """A hint that no worker starts the execution, after some seconds."""
        if row.status is ExecutionStatus.PENDING and monotonic() - self._began > PENDING_HINT_SECONDS:
            yield from self.once("pending", [f"pending: {output.NO_WORKER}"])

    def of_step(self, step: StepRow, requests: Sequence[RequestRow] = ()) -> Iterator[str]:
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

    def _call(self, step: StepRow, call: CallRow, requests: Sequence[RequestRow]) -> Iterator[str]:
        """A call with its result, after the requests about it; or how far it is."""
        line = output.call_line(call)
        if call.record:
            for request in requests:
                if _comes_before(request, step, call):
                    yield from self.of_request(request)
            yield from self.once(call.call.id, [line])
        elif call.progress:
            yield from self.once(f"{call.call.id} {line}", [line])

    def _compactions(self, step: StepRow) -> Iterator[str]:
        for index, compaction in enumerate(step.compactions):
            yield from self.once(f"compact {step.number} {index}", [output.compaction_line(compaction)])

    def of_text(self, wrote: Wrote | None) -> Iterator[str]:
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

    def _begin(self, at: tuple[int, int]) -> Iterator[str]:
        number, attempt = at
        key = f"step {number} {attempt}"
        if key not in self._keys:
            # A new attempt repeats all text.
            self._said.pop(number, None)
        if at > self._at:
            self._at, self._is_over = at, False
        yield from self.once(key, [output.step_head(number, attempt)])

    def _new_text(self, number: int, text: str, *, is_all: bool = False) -> Iterator[str]:
        before = self._said.get(number, "")
        if not text or (before.startswith(text) and not (is_all and before[len(text) :].strip())):
            # Already printed, from the database or from the gateway.
            return
        if not text.startswith(before):
            # The stored text differs from the text that was streamed.
            yield from self.line_end()
            before = ""
        new = output.indent(text[len(before) :])
        yield new if before else f"{output.MODEL_PREFIX}{new}"
        self._said[number], self._in_line = text, True

    def is_printed(self, request: RequestRow) -> bool:
        """Whether this request was printed."""
        return str(request.id) in self._keys

    def of_request(self, request: RequestRow) -> Iterator[str]:
        """The lines of a request."""
        yield from self.once(str(request.id), output.request_lines([request]))

    def once(self, key: str, lines: list[str] | Iterator[str]) -> Iterator[str]:
        """Lines that are printed only once per key."""
        if key in self._keys:
            return
        self._keys.add(key)
        yield from self.line_end()
        yield from (f"{line}\n" for line in lines)

    def line_end(self) -> Iterator[str]:
        """The end of an unfinished line."""
        if self._in_line:
            self._in_line = False
            yield "\n"


def _comes_before(request: RequestRow, step: StepRow, call: CallRow) -> bool:
    """Whether a request precedes the result of a call: its own request, or one of a subagent's execution."""
    if call.record is None or request.step_number > step.number:
        return False
    return request.call_id == call.call.id or request.created_at < call.record.completed_at
