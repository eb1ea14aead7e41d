"""The facts of a step that decisions read: counts, names, reasons and kinds, never a body.

Only these facts of a step are stored in a workflow's history. They do not grow with the
conversation, and contain no text of a person or a model.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from decimal import Decimal
from enum import StrEnum

from everstep.agent_domain.errors import HookFailed, ToolFailed
from everstep.agent_domain.loop.hook_requests import NO_WISHES, Wishes
from everstep.agent_domain.loop.step_error import StepError
from everstep.agent_domain.loop.usage import NO_COST, Usage, sum_costs


class StepType(StrEnum):
    """The type of a completed step."""

    TOOL_EXECUTION = "tool_execution"
    FINAL = "final"
    ERROR = "error"

    @classmethod
    def parse(cls, text: str) -> "StepType":
        """Read a stored type; `final_response` is an older name of `final`."""
        return cls.FINAL if text == "final_response" else cls(text)


def type_of_step(*, failed: bool, called: bool) -> StepType:
    """The type of a step that does not state its own."""
    if failed:
        return StepType.ERROR
    return StepType.TOOL_EXECUTION if called else StepType.FINAL


class CallNeed(StrEnum):
    """The action that a tool call waits for before it has a result."""

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
    digest: str | None = field(default=None, compare=False)
    """The digest of its arguments and its result (see `repeated_calls`); None without a result."""


@dataclass(frozen=True, slots=True)
class Besides:
    """The side effects of a call, or of a step's processing, in addition to its result."""

    usage: Usage = Usage()
    """Tokens used by model calls during it."""
    child_tokens: int = 0
    """Tokens used by the child execution that it started, and by the children of that one."""
    wishes: Wishes = NO_WISHES
    """The requests of hooks."""
    child_cost_usd: Decimal | None = NO_COST
    """What that child execution and its children cost, in US dollars; None if it is unknown."""

    def __add__(self, other: "Besides") -> "Besides":
        return Besides(
            self.usage + other.usage,
            self.child_tokens + other.child_tokens,
            self.wishes | other.wishes,
            sum_costs(self.child_cost_usd, other.child_cost_usd),
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
    """Failures reported like a tool's although the model called no tool, such as an unusable decision."""
    own_errors: tuple[StepError, ...] = ()
    own_type: StepType | None = None
    is_failure: bool = False
    """An exception escaped the driver, a tool's executor, a processor or a criterion."""
    seconds: float = 0.0
    besides: Besides = NOTHING_BESIDES
    """The side effects of its calls and hooks."""

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
        """The step's own errors, or those of its failing calls if it has none."""
        return self.own_errors or self.tool_errors

    @property
    def has_unknown_effect(self) -> bool:
        """Whether it is unknown if one of the calls had its effect."""
        return any(error.is_effect_unknown for error in self.tool_errors)

    def escaped_error(self, *, throws_tool_failures: bool) -> StepError | None:
        """The exception that escaped a call: of a hook, or of the tool itself if the plan lets it escape."""
        errors = (call.error for call in self.calls if call.error)
        for error in errors:
            if error.exception == HookFailed.__name__:
                return replace(error, tool_name=None)
            if throws_tool_failures:
                return StepError("", exception=ToolFailed.__name__)
        return None

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
        """The step's own type, or the type that follows from its calls."""
        return self.own_type or type_of_step(failed=bool(self.tool_errors), called=self.has_tool_calls)

    def settled(
        self,
        results: Iterable[CallFacts],
        seconds: float = 0.0,
        besides: Besides = NOTHING_BESIDES,
    ) -> "StepFacts":
        """A copy with results for these calls; a call that already has a result keeps it."""
        answers = {call.id: replace(call, is_settled=True) for call in results}
        calls = tuple(call if call.is_settled else answers.get(call.id, call) for call in self.calls)
        # Rounded to microseconds: sums of binary fractions serialize with seventeen digits.
        return replace(
            self,
            calls=calls,
            seconds=round(self.seconds + seconds, 6),
            besides=self.besides + besides,
        )

    def granted(self) -> "StepFacts":
        """A copy without the requests of hooks, once the loop has applied them.

        Otherwise every later call would pause the execution again.
        """
        if not self.besides.wishes:
            return self
        return replace(self, besides=replace(self.besides, wishes=NO_WISHES))

    def needing(self, call_id: str, need: CallNeed) -> "StepFacts":
        """A copy in which one call waits for something else, such as to run after its approval."""
        calls = (replace(c, need=need) if c.id == call_id else c for c in self.calls)
        return replace(self, calls=tuple(calls))
