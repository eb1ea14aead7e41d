"""Following an execution at a terminal: what is new, as it becomes known, until it ends.

What it did is read from the table. The gateway, where there is one, says when to look, and what the model
writes before that is in the table.
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

PATIENCE_SECONDS = 3.0
"""After so long somebody should have picked it up."""


async def followed(execution: Execution) -> AsyncGenerator[str]:
    """Whole lines; ends with the execution."""
    line = ""
    async with aclosing(streamed(execution)) as texts:
        async for text in texts:
            *lines, line = (line + text).split("\n")
            for whole in lines:
                yield whole


async def streamed(execution: Execution, watch: Watch | None = None) -> AsyncGenerator[str]:
    """Text as it becomes known, line ends included; ends with the execution."""
    watch, told, counted = watch or Watch(), _Told(), 0
    while True:
        # Before the table is looked at, which then has whatever came before these words.
        wrote = watch.wrote(execution.id)
        row = await execution.get()
        async for text in _looked(execution, row, told, counted):
            yield text
        if row.status in output.ENDED:
            break
        counted = row.step_count
        is_time = False
        while not is_time:
            for text in told.of_text(wrote):
                yield text
            is_time = await watch.rest(LOOK_SECONDS)
            wrote = watch.wrote(execution.id)
            is_time = is_time or told.is_behind(wrote)
    for text in told.line_end():
        yield text


async def _looked(
    execution: Execution, row: ExecutionRow, told: "_Told", counted: int
) -> AsyncGenerator[str]:
    # Requests are read from what is stored and not from what is open: one that is answered between two looks
    # is shown as well. They are read before the steps, which then have what was said before them.
    requests = [request for request in await execution.all_requests() if not told.is_told(request)]
    # The last step that was over at the look before may have been completed since; none before it.
    async for step in execution.each_step(after=counted - 1):
        for text in told.of_step(step, requests):
            yield text
    for request in requests:
        for text in told.of_request(request):
            yield text
    for text in told.of_row(row):
        yield text


class _Told:
    """What was told already, so that only what is new is told."""

    def __init__(self) -> None:
        self._began = monotonic()
        self._keys: set[str] = set()
        self._said: dict[int, str] = {}
        """What the model said, by step."""
        self._in_line = False
        self._at = (0, 0)
        """The last step of which was told, and its attempt."""
        self._is_over = False
        """Whether all words of that step were told."""

    def of_row(self, row: ExecutionRow) -> Iterator[str]:
        """That nobody begins, after a while."""
        if row.status is ExecutionStatus.PENDING and monotonic() - self._began > PATIENCE_SECONDS:
            yield from self.once("nobody", [f"pending: {output.NOBODY}"])

    def of_step(self, step: StepRow, requests: Sequence[RequestRow] = ()) -> Iterator[str]:
        """The model's words as it writes them; what people are asked; a call once it has its result."""
        at = step.number, step.attempt
        if step.facts is None and at < self._at:
            # The gateway was quicker.
            return
        yield from self._begin(at)
        yield from self._words(step.number, output.words(step), is_all=step.facts is not None)
        if step.waits:
            yield from self.once(f"waits {at}", [output.wait_line(step.waits)])
        if step.facts is None:
            return
        if step.number == self._at[0]:
            self._is_over = True
            yield from self.line_end()
        for call in step.calls:
            if call.record:
                for request in requests:
                    if _comes_before(request, step, call):
                        yield from self.of_request(request)
                yield from self.once(call.call.id, [output.call_line(call)])
        for number, error in enumerate(step.errors):
            yield from self.once(f"error {at} {number}", [output.error_line(error)])

    def of_text(self, wrote: Wrote | None) -> Iterator[str]:
        """The model's words, before they are in the table."""
        if wrote is None:
            return
        at = wrote.step_number, wrote.attempt
        if at < self._at or (at == self._at and self._is_over):
            return
        yield from self._begin(at)
        yield from self._words(wrote.step_number, wrote.text)

    def is_behind(self, wrote: Wrote | None) -> bool:
        """Whether these words are of a later step or attempt: what came before has to be told first."""
        return wrote is not None and (wrote.step_number, wrote.attempt) > self._at

    def _begin(self, at: tuple[int, int]) -> Iterator[str]:
        number, attempt = at
        key = f"step {number} {attempt}"
        if key not in self._keys:
            # A new attempt says everything anew.
            self._said.pop(number, None)
        if at > self._at:
            self._at, self._is_over = at, False
        yield from self.once(key, [output.step_head(number, attempt)])

    def _words(self, number: int, said: str, *, is_all: bool = False) -> Iterator[str]:
        before = self._said.get(number, "")
        if not said or (before.startswith(said) and not (is_all and before[len(said) :].strip())):
            # Told already, by the table or by the gateway, whichever was quicker.
            return
        if not said.startswith(before):
            # What the model wrote is not what it is taken to have said.
            yield from self.line_end()
            before = ""
        new = output.indented(said[len(before) :])
        yield new if before else f"{output.MODEL}{new}"
        self._said[number], self._in_line = said, True

    def is_told(self, request: RequestRow) -> bool:
        """Whether people know that this is asked."""
        return str(request.id) in self._keys

    def of_request(self, request: RequestRow) -> Iterator[str]:
        """What people are asked."""
        yield from self.once(str(request.id), output.request_lines([request]))

    def once(self, key: str, lines: list[str] | Iterator[str]) -> Iterator[str]:
        """Lines that are told once."""
        if key in self._keys:
            return
        self._keys.add(key)
        yield from self.line_end()
        yield from (f"{line}\n" for line in lines)

    def line_end(self) -> Iterator[str]:
        """The end of a line that is being written."""
        if self._in_line:
            self._in_line = False
            yield "\n"


def _comes_before(request: RequestRow, step: StepRow, call: CallRow) -> bool:
    """Whether a request was there before the result of a call: its own, or that of a subagent's execution."""
    if call.record is None or request.step_number > step.number:
        return False
    return request.call_id == call.call.id or request.created_at < call.record.completed_at
