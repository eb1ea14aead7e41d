"""The inputs of steps whose previous step this process has recorded, which need not be read from the store.

Most steps follow a step that the same worker has just recorded, with all of its results. Their input is that
of the step before plus what was recorded. It is built here only if nothing else can have changed the
conversation: the step before succeeded, its calls ran without people, hooks, processors or compactions, and
no message was sent to the execution. Otherwise, and in every other process, the store is read.

What the store checks when a reply is recorded does not depend on this: whether the execution has ended, and
whether another attempt has recorded a reply.
"""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from time import monotonic
from typing import Final
from uuid import UUID

from everstep.agent_domain.ids import ExecutionRef
from everstep.agent_domain.loop.step_facts import NOTHING_BESIDES, Besides, CallNeed, StepFacts
from everstep.agent_domain.messages.messages import Messages
from everstep.agent_domain.storage.calls import RecordCall
from everstep.agent_domain.storage.steps import (
    NO_ADDITIONS,
    PreviousStep,
    RecordReply,
    StepInput,
    result_index,
)

FRESH_SECONDS: Final = 5.0
"""How long an input is used after it was read: a budget that an operator sets applies at the latest then."""

MAX_STEPS: Final = 200
"""The number of steps that are kept; the oldest are evicted."""


@dataclass(frozen=True, slots=True)
class LoadedInput:
    """The input of a step, and when it was read from the store."""

    material: StepInput
    read_at: float

    def is_fresh(self, now: float) -> bool:
        """Whether it was read so recently that it may be used."""
        return now - self.read_at <= FRESH_SECONDS


@dataclass(slots=True)
class _RecordedStep:
    """A step that this process has recorded."""

    loaded: LoadedInput
    facts: StepFacts
    reply: Messages
    began_at: float
    results: dict[int, Messages] = field(default_factory=dict[int, Messages])

    @property
    def is_complete(self) -> bool:
        return len(self.results) == len(self.facts.calls)

    def next_input(self, now: float) -> StepInput:
        number, material = self.facts.number, self.loaded.material
        messages, places = [*material.messages, *self.reply], list(material.places)
        places += [(number, index) for index in range(len(self.reply))]
        for call_index in sorted(self.results):
            said = self.results[call_index]
            messages += said
            places += [(number, result_index(call_index) + index) for index in range(len(said))]
        before = PreviousStep(self.facts, duration_ms=(now - self.began_at) * 1000)
        return replace(material, messages=tuple(messages), places=tuple(places), before=before)


class NextInputs:
    """The steps that this process has recorded last, one for each execution."""

    def __init__(self, seconds: Callable[[], float] = monotonic) -> None:
        self._seconds = seconds
        self._steps: dict[tuple[str, UUID], _RecordedStep] = {}
        """By tenant and execution: a task that names another tenant gets nothing, as from the store."""
        self._sweep: asyncio.TimerHandle | None = None

    def __len__(self) -> int:
        return len(self._steps)

    def keep_reply(self, reply: RecordReply, loaded: LoadedInput, began_at: float) -> None:
        """Keep a reply that was recorded, if its results are all that is added to the conversation.

        Args:
            reply: The reply.
            loaded: The input of its step.
            began_at: When the step began.
        """
        self._steps.pop(_key(reply.ref), None)
        if not _is_plain(reply, loaded.material):
            return
        self._steps[_key(reply.ref)] = _RecordedStep(loaded, reply.facts, reply.messages, began_at)
        if len(self._steps) > MAX_STEPS:
            del self._steps[next(iter(self._steps))]
        if self._sweep is None:
            self._sweep = asyncio.get_running_loop().call_later(FRESH_SECONDS, self.evict_expired)

    def add_result(self, recorded: RecordCall) -> None:
        """Add the result of a call that was recorded; after one with side effects, the store is read."""
        step = self._steps.get(_key(recorded.ref))
        if step is None or step.facts.number != recorded.step_number:
            return
        record = recorded.record
        if recorded.notes or record.error or record.attachments or _has_side_effects(record.besides):
            del self._steps[_key(recorded.ref)]
        else:
            step.results[recorded.index] = recorded.messages

    def take(self, ref: ExecutionRef, number: int) -> LoadedInput | None:
        """Return the input of a step, once; None if the store has to be read."""
        step, now = self._steps.pop(_key(ref), None), self._seconds()
        if step is None or step.facts.number != number - 1 or not step.is_complete:
            return None
        if not step.loaded.is_fresh(now):
            return None
        return LoadedInput(step.next_input(now), step.loaded.read_at)

    def evict_expired(self) -> None:
        """Evict what no step has taken: its execution waits, goes on in another process, or has ended."""
        now = self._seconds()
        self._steps = {key: step for key, step in self._steps.items() if step.loaded.is_fresh(now)}
        loop = asyncio.get_running_loop()
        self._sweep = loop.call_later(FRESH_SECONDS, self.evict_expired) if self._steps else None


def _key(ref: ExecutionRef) -> tuple[str, UUID]:
    return ref.tenant_id, ref.execution_id


def _is_plain(reply: RecordReply, material: StepInput) -> bool:
    """Whether only the reply and the results of its calls come before the next step."""
    facts = reply.facts
    return (
        reply.attempt == 1
        and not (facts.is_failure or facts.errors or reply.errors)
        and bool(facts.calls)
        and len(facts.calls) == len(reply.calls)
        and all(call.need is CallNeed.RUN and not call.is_settled for call in facts.calls)
        and not _has_side_effects(facts.besides)
        and reply.added == NO_ADDITIONS
        and not material.plan.get("processes")
    )


def _has_side_effects(besides: Besides) -> bool:
    return besides != NOTHING_BESIDES or bool(besides.usage.uncounted_calls)
