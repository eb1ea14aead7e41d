"""What a decision may know of a step: counts, names, reasons and kinds, never a body.

This is all of a step that travels through a workflow's history. It does not grow with the
conversation, and nothing in it was written by a person or a model.
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from enum import StrEnum

from everstep.agent_domain.loop.hook_requests import NO_WISHES, Wishes
from everstep.agent_domain.loop.step_error import StepError
from everstep.agent_domain.loop.usage import Usage


class StepType(StrEnum):
    """What a step turned out to be."""

    TOOL_EXECUTION = "tool_execution"
    FINAL = "final"
    ERROR = "error"

    @classmethod
    def parse(cls, text: str) -> "StepType":
        """Read a stored type; `final_response` is an older word for `final`."""
        return cls.FINAL if text == "final_response" else cls(text)


def type_of_step(*, failed: bool, called: bool) -> StepType:
    """The type of a step that does not state its own."""
    if failed:
        return StepType.ERROR
    return StepType.TOOL_EXECUTION if called else StepType.FINAL


class CallNeed(StrEnum):
    """What a tool call waits for before it has a result."""

    RUN = "run"
    APPROVAL = "approval"
    INPUT = "input"
    SUBAGENT = "subagent"


@dataclass(frozen=True, slots=True)
class CallFacts:
    """A tool call without its arguments and result."""

    id: str
    name: str
    need: CallNeed = CallNeed.RUN
    is_settled: bool = False
    error: StepError | None = None


@dataclass(frozen=True, slots=True)
class Besides:
    """What a call, or the processing of a step, brought about besides its result."""

    usage: Usage = Usage()
    """What it cost to ask models."""
    child_tokens: int = 0
    """What the execution used that it started, and those that this one started."""
    wishes: Wishes = NO_WISHES
    """What hooks asked for."""

    def __add__(self, other: "Besides") -> "Besides":
        return Besides(
            self.usage + other.usage, self.child_tokens + other.child_tokens, self.wishes | other.wishes
        )


NOTHING_BESIDES = Besides()


@dataclass(frozen=True, slots=True)
class StepFacts:
    """A step without its bodies."""

    number: int
    calls: tuple[CallFacts, ...] = ()
    finish_reason: str | None = None
    usage: Usage = Usage()
    pseudo_errors: tuple[StepError, ...] = ()
    """Failures reported like a tool's although the model called none, such as an unusable decision."""
    own_errors: tuple[StepError, ...] = ()
    own_type: StepType | None = None
    is_failure: bool = False
    """An exception escaped the driver, a tool's executor, a processor or a criterion."""
    seconds: float = 0.0
    besides: Besides = NOTHING_BESIDES
    """What came of its calls and hooks."""

    @classmethod
    def failure(cls, number: int, error: StepError, seconds: float = 0.0) -> "StepFacts":
        """A step that consists of an exception."""
        own = (replace(error, message=""),)
        return cls(number, own_errors=own, own_type=StepType.ERROR, is_failure=True, seconds=seconds)

    @property
    def pending(self) -> tuple[CallFacts, ...]:
        """The calls that have no result yet, in response order."""
        return tuple(call for call in self.calls if not call.is_settled)

    @property
    def is_complete(self) -> bool:
        """Whether every call has its result."""
        return all(call.is_settled for call in self.calls)

    @property
    def tool_errors(self) -> tuple[StepError, ...]:
        """The errors of failing calls."""
        return (*self.pseudo_errors, *(call.error for call in self.calls if call.error))

    @property
    def errors(self) -> tuple[StepError, ...]:
        """Its own errors, or else those of its failing calls."""
        return self.own_errors or self.tool_errors

    @property
    def has_unknown_effect(self) -> bool:
        """Whether a call may have had its effect, and nothing says so."""
        return any(error.is_effect_unknown for error in self.tool_errors)

    @property
    def has_errors(self) -> bool:
        """Whether anything failed."""
        return bool(self.errors)

    @property
    def has_tool_calls(self) -> bool:
        """Whether the response called tools, successfully or not."""
        return bool(self.calls)

    @property
    def step_type(self) -> StepType:
        """What the step turned out to be."""
        return self.own_type or type_of_step(failed=bool(self.tool_errors), called=self.has_tool_calls)

    def settled(
        self,
        results: Iterable[CallFacts],
        seconds: float = 0.0,
        besides: Besides = NOTHING_BESIDES,
    ) -> "StepFacts":
        """The same with these calls answered; a call that already has its result keeps it."""
        answers = {call.id: replace(call, is_settled=True) for call in results}
        calls = tuple(call if call.is_settled else answers.get(call.id, call) for call in self.calls)
        # To the microsecond: sums of binary fractions write themselves with seventeen digits.
        return replace(
            self,
            calls=calls,
            seconds=round(self.seconds + seconds, 6),
            besides=self.besides + besides,
        )

    def granted(self) -> "StepFacts":
        """The same once the loop has heard what hooks ask for: else every later call would pause it anew."""
        if not self.besides.wishes:
            return self
        return replace(self, besides=replace(self.besides, wishes=NO_WISHES))

    def needing(self, call_id: str, need: CallNeed) -> "StepFacts":
        """The same with one call waiting for something else, such as to run once it is approved."""
        calls = (replace(c, need=need) if c.id == call_id else c for c in self.calls)
        return replace(self, calls=tuple(calls))
