"""Following an execution at a terminal: what is new, line by line, until it ends."""

import asyncio
from collections.abc import AsyncGenerator, Iterator, Sequence

from agent_domain.ports import StepRow
from agent_domain.status import ExecutionStatus
from everstep.cli import output
from everstep.client.client import Execution

LOOK_SECONDS = 0.2
ENDED = {ExecutionStatus.COMPLETED, ExecutionStatus.FAILED, ExecutionStatus.CANCELLED}


async def followed(execution: Execution) -> AsyncGenerator[str]:
    """Lines as they become known; ends with the execution."""
    told: set[str] = set()
    while True:
        row = await execution.get()
        fresh = [*_told(await execution.steps()), *_asked(await execution.requests(), str(execution.id))]
        for key, line in fresh:
            if key not in told:
                told.add(key)
                yield line
        if row.status in ENDED:
            return
        await asyncio.sleep(LOOK_SECONDS)


def _told(steps: Sequence[StepRow]) -> Iterator[tuple[str, str]]:
    """Complete lines only: a step's, once the model has answered; a call's, once it has its result."""
    for step in steps:
        if step.facts is None:
            yield f"{step.number}", f"step {step.number} ..."
            continue
        yield f"{step.number}", f"step {step.number}"
        calls = iter(step.calls)
        for index, line in enumerate(output.step_lines(step)):
            is_call = line.startswith("  tool")
            settled = next(calls).record is not None if is_call else True
            if index and settled:
                yield f"{step.number}/{line}", line


def _asked(requests: Sequence[output.RequestRow], execution: str) -> Iterator[tuple[str, str]]:
    for request in requests:
        for line in output.request_lines([request], execution):
            yield f"{request.id}/{line}", line
