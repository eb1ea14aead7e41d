"""Model calls of executions with the profile `burst`, which begin in the worker that runs the workflow.

A local activity costs Temporal nothing of its own, but a workflow receives no messages while one runs. So
a model call that takes longer than `BRIEF_SECONDS` is moved: the local activity ends and the call continues,
until the activity that the workflow starts next takes it over. Temporal usually gives that activity to the
same worker. In another worker it asks the model again, as after a crash.
"""

import asyncio
from collections.abc import Callable, Coroutine
from typing import TypeAlias
from uuid import UUID

from everstep.activities.contracts import InferInput
from everstep.agent_domain.loop.step_facts import StepFacts

BRIEF_SECONDS = 0.4
"""How long a local activity waits for the model. A cancel waits for it, too."""

UNCLAIMED_SECONDS = 5.0
"""How long a call continues that no activity takes over, as another worker has it or the execution ended."""

Infer: TypeAlias = Callable[[InferInput], Coroutine[object, object, StepFacts]]

_Step: TypeAlias = tuple[UUID, int]


class BriefInference:
    """The model calls of this process that no activity waits for at the moment."""

    def __init__(self, infer: Infer) -> None:
        self._infer = infer
        self._unclaimed: dict[_Step, asyncio.Task[StepFacts]] = {}

    async def start(self, request: InferInput) -> StepFacts | None:
        """Return the facts of the step; None if the call takes longer and continues."""
        call = self._take_over(request) or asyncio.create_task(self._infer(request))
        try:
            done, _ = await asyncio.wait([call], timeout=BRIEF_SECONDS)
        except asyncio.CancelledError:
            await _cancel(call)
            raise
        if done:
            return call.result()
        self._keep(request, call)
        return None

    async def finish(self, request: InferInput) -> StepFacts:
        """Return the facts of the step: of the call that continues in this process, or of a new one."""
        call = self._take_over(request)
        return await (call or self._infer(request))

    def _take_over(self, request: InferInput) -> asyncio.Task[StepFacts] | None:
        return self._unclaimed.pop(_step(request), None)

    def _keep(self, request: InferInput, call: asyncio.Task[StepFacts]) -> None:
        step = _step(request)
        self._unclaimed[step] = call

        def abandon() -> None:
            if self._unclaimed.get(step) is call:
                del self._unclaimed[step]
                call.add_done_callback(_ignore_result)
                call.cancel()

        asyncio.get_running_loop().call_later(UNCLAIMED_SECONDS, abandon)


def _step(request: InferInput) -> _Step:
    return request.ref.execution_id, request.number


async def _cancel(call: asyncio.Task[StepFacts]) -> None:
    call.cancel()
    await asyncio.gather(call, return_exceptions=True)


def _ignore_result(call: asyncio.Task[StepFacts]) -> None:
    """Nothing waits for the call: another attempt reports what it has recorded, or its failure."""
    if not call.cancelled():
        call.exception()
