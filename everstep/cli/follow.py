"""Following an execution at a terminal: what is new, as it becomes known, until it ends."""

import asyncio
from collections.abc import AsyncGenerator, Iterator
from contextlib import aclosing
from time import monotonic

from agent_domain.ports import ExecutionRow, RequestRow, StepRow
from agent_domain.status import ExecutionStatus
from everstep.cli import output
from everstep.client.client import Execution

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


async def streamed(execution: Execution) -> AsyncGenerator[str]:
    """Text as it becomes known, line ends included; ends with the execution."""
    told, began, counted = _Told(), monotonic(), 0
    while True:
        row = await execution.get()
        # The last step that was over at the look before may have been completed since; none before it.
        async for step in execution.each_step(after=counted - 1):
            for text in told.of_step(step):
                yield text
        for request in await execution.requests():
            for text in told.of_request(request, row):
                yield text
        if row.status is ExecutionStatus.PENDING and monotonic() - began > PATIENCE_SECONDS:
            for text in told.once("nobody", [f"pending: {output.NOBODY}"]):
                yield text
        if row.status in output.ENDED:
            break
        counted = row.step_count
        await asyncio.sleep(LOOK_SECONDS)
    for text in told.line_end():
        yield text


class _Told:
    """What was told already, so that only what is new is told."""

    def __init__(self) -> None:
        self._keys: set[str] = set()
        self._said: dict[int, str] = {}
        """What the model said, by step."""
        self._in_line = False

    def of_step(self, step: StepRow) -> Iterator[str]:
        """The model's words as it writes them; a call once it has its result."""
        head = f"step {step.number} {step.attempt}"
        if head not in self._keys:
            # A new attempt says everything anew.
            self._said.pop(step.number, None)
        yield from self.once(head, [output.step_head(step)])
        yield from self._words(step)
        if step.facts is None:
            return
        yield from self.line_end()
        for call in step.calls:
            if call.record:
                yield from self.once(call.call.id, [output.call_line(call)])
        for number, error in enumerate(step.errors):
            yield from self.once(f"{head} {number}", [output.error_line(error)])

    def _words(self, step: StepRow) -> Iterator[str]:
        said, before = output.words(step), self._said.get(step.number, "")
        if said == before:
            return
        if not said.startswith(before):
            # What the model wrote is not what it is taken to have said.
            yield from self.line_end()
            before = ""
        new = output.indented(said[len(before) :])
        yield new if before else f"{output.MODEL}{new}"
        self._said[step.number], self._in_line = said, True

    def of_request(self, request: RequestRow, row: ExecutionRow) -> Iterator[str]:
        """What people are asked."""
        yield from self.once(str(request.id), output.request_lines([request], str(row.ref.execution_id)))

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
