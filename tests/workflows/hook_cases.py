"""Hooks and processors, and the agents that have them, for every shell of the loop."""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any
from uuid import uuid4

from everstep.agent_domain.agents.builder import DefinitionBuilder
from everstep.agent_domain.agents.processors import AgentHook
from everstep.agent_domain.errors import ModelError, ModelUnavailable, RateLimited
from everstep.agent_domain.loop.error_policy import ErrorPolicy
from everstep.agent_domain.loop.status import StopReason
from everstep.agent_domain.loop.stop_signal import StopSignal
from everstep.agent_domain.loop.usage import Usage
from everstep.agent_domain.messages.cached_context import InferenceRequest
from everstep.agent_domain.messages.messages import system, user
from everstep.agent_domain.state.state import AgentState
from everstep.agent_domain.state.steps import InferenceResponse
from everstep.agent_domain.testing import MockTool, calls, says
from everstep.agent_domain.tools.function_tool import tool
from everstep.agent_domain.tools.inquiry import AskModel
from everstep.agent_domain.tools.tools import (
    ToolCall,
    ToolContext,
    ToolExecution,
    ToolResult,
)
from everstep.agent_domain.values import FrozenDict, frozen_map
from tests.workflows.harness import (
    an_agent,
)

Change = Callable[[AgentState], AgentState]

LOOKS = calls(("look", {}), usage=Usage(input=10, output=5))
DONE = says("Done", Usage(input=20, output=3))
UNAVAILABLE = ModelUnavailable("away")
WORK = "ToolCallPresenceCheck"
GUARD = StopSignal(StopReason.GUARD, "Enough", source="a hook")
POLICIES = {
    "stop_on_any_error": ErrorPolicy(),
    "retry_all": ErrorPolicy.retry_all(2),
    "retry_tool_errors": ErrorPolicy.retry_tool_errors(3),
    "ignore_tool_errors": ErrorPolicy.ignore_tool_errors(),
}
ANOTHER = "returned a state of another execution"
CHANGED = "add new ones before or after the conversation instead"


class Meddler(AgentHook):
    """Changes the state at one place; some changes happen only a few times."""

    def __init__(self, where: str, change: Change, times: int | None = None) -> None:
        self.where = where
        self.change = change
        self.left = times

    def _at(self, where: str, state: AgentState) -> AgentState:
        if where != self.where or self.left == 0:
            return state
        self.left = None if self.left is None else self.left - 1
        return self.change(state)

    def before_step(self, state: AgentState) -> AgentState:
        return self._at("before_step", state)

    def before_tool(self, state: AgentState, call: ToolCall) -> AgentState:
        assert call.name == "look"
        return self._at("before_tool", state)

    def after_tool(self, state: AgentState, execution: ToolExecution) -> AgentState:
        assert execution.result == "seen"
        return self._at("after_tool", state)

    def after_step(self, state: AgentState) -> AgentState:
        return self._at("after_step", state)

    def __call__(self, state: AgentState) -> AgentState:
        return self._at("processor", state)


class Asking:
    """A processor that asks a model about each step, and appends its reply."""

    def __init__(self, change: Change = lambda state: state, fails: Exception | None = None) -> None:
        self.change = change
        self.fails = fails

    async def process(self, state: AgentState, ask: AskModel) -> AgentState:
        said = await ask(InferenceRequest((user(f"How was step {state.step_count}?"),)))
        if self.fails:
            raise self.fails
        return self.change(state.with_metadata(f"step {state.step_count}", said.text))


# Changes.


def speaks(state: AgentState) -> AgentState:
    return state.heard(user(f"A word before the end of step {state.facts.next_step_number}"))


def opens(state: AgentState) -> AgentState:
    first = system("Be brief")
    return state if first in state.messages else state.with_messages((first, *state.messages))


def counts(state: AgentState) -> AgentState:
    return state.with_metadata("seen", state.metadata.get("seen", 0) + 1)


def removes(state: AgentState) -> AgentState:
    kept = {key: value for key, value in state.metadata.items() if key != "seen"}
    return replace(state, metadata=FrozenDict(kept)) if "seen" in state.metadata else counts(state)


def stops(state: AgentState) -> AgentState:
    return state.with_stop_signal(GUARD)


def asks_for_more(state: AgentState) -> AgentState:
    return state.with_continuation_requested()


def raises(state: AgentState) -> AgentState:
    raise ValueError(f"no good, with {len(state.messages)} messages")


def times_out(state: AgentState) -> AgentState:
    raise TimeoutError(f"too slow, with {len(state.messages)} messages")


# Changes that are forbidden in a durable execution.


def rewrites(state: AgentState) -> AgentState:
    return state.with_messages(tuple(user("Something else") for _ in state.messages))


def drops(state: AgentState) -> AgentState:
    return state.with_messages(state.messages[1:])


def swaps(state: AgentState) -> AgentState:
    return replace(state, execution=replace(state.execution, execution_id=uuid4()))


def restarts(state: AgentState) -> AgentState:
    return state.with_user_message("From the beginning")


def forgets(state: AgentState) -> Any:
    """A hook without a return statement."""
    del state


def floods(state: AgentState) -> AgentState:
    return state.heard(*(user(f"{number}") for number in range(1001)))


def is_limited(state: AgentState) -> AgentState:
    raise RateLimited(f"too often, with {len(state.messages)} messages", 3600)


def leaves(state: AgentState) -> AgentState:
    raise SystemExit(f"after {len(state.messages)} messages")


def is_cancelled(state: AgentState) -> AgentState:
    raise asyncio.CancelledError(f"after {len(state.messages)} messages")


class Burst(BaseException):
    """An exception like that of `pytest.fail`."""


def bursts(state: AgentState) -> AgentState:
    raise Burst(f"after {len(state.messages)} messages")


STEP_HOOKS = ("before_step", "after_step", "processor")
EVERYWHERE = (*STEP_HOOKS, "before_tool", "after_tool")


@dataclass(frozen=True)
class Case:
    """The hooks and processors, and how the execution continues after failures."""

    name: str
    build: Callable[[], DefinitionBuilder]


def an_office_worker(*script: InferenceResponse | str | Exception) -> DefinitionBuilder:
    """Looks, then answers; a last step that continues causes another one that ends."""
    return an_agent(*(script or (LOOKS, DONE)), tools=[MockTool.returning("look", "", "seen")])


def a_meddling_case(
    where: str, change: Change, times: int | None = None, policy: str = "stop_on_any_error"
) -> Case:
    """One hook or processor makes the change."""

    def build() -> DefinitionBuilder:
        meddler = Meddler(where, change, times)
        builder = an_office_worker().with_error_policy(POLICIES[policy]).with_max_steps(6)
        return builder.add_processor(meddler) if where == "processor" else builder.add_hook(meddler)

    title = f"{where} {change.__name__}" + (f" {times} times" if times else "")
    return Case(f"{title}, {policy}", build)


def an_asking_builder(
    *script: InferenceResponse | str, policy: str = "stop_on_any_error", **given: Any
) -> DefinitionBuilder:
    """An agent with a processor that asks its model."""
    return an_office_worker(*script).with_error_policy(POLICIES[policy]).add_processor(Asking(**given))


OPINION, SECOND = says("Good", Usage(input=100, output=1)), says("Better", Usage(input=200, output=2))

ASKING = (
    Case("a model is asked", lambda: an_asking_builder(LOOKS, OPINION, DONE, SECOND)),
    Case(
        "a model is asked and speaks", lambda: an_asking_builder(LOOKS, OPINION, DONE, SECOND, change=speaks)
    ),
    Case("a model is asked and stops", lambda: an_asking_builder(LOOKS, OPINION, change=stops)),
    Case(
        "a model is asked and there are no tokens left",
        lambda: an_asking_builder(LOOKS, OPINION, DONE).with_max_tokens(100),
    ),
    Case(
        "a model is asked and fails", lambda: an_asking_builder(LOOKS, OPINION, fails=ModelError("refused"))
    ),
    Case(
        "a model is asked and fails and is retried",
        lambda: an_asking_builder(
            LOOKS, OPINION, DONE, SECOND, fails=ModelError("refused"), policy="retry_all"
        ),
    ),
)


class Witness(AgentHook):
    """Notes what it receives around calls; raises before a call whose arguments say so."""

    def before_tool(self, state: AgentState, call: ToolCall) -> AgentState:
        if call.args.get("raises"):
            raise ValueError("no good")
        return state.with_metadata(f"before {call.name}", dict(call.args))

    def after_tool(self, state: AgentState, execution: ToolExecution) -> AgentState:
        return state.with_metadata(f"after {execution.call.name} {execution.call.args}", execution.text)


@tool
def recall(context: ToolContext, at: int = 0) -> list[str]:
    """Return the names of the metadata."""
    return sorted(context.metadata)


@tool
def leak() -> None:
    """Fail with a secret."""
    raise ValueError("refused for password=hunter22")


@tool
def claim() -> ToolResult:
    """Set what the hook after the next call sets."""
    return ToolResult("claimed", frozen_map({"after look {}": "by a tool", "claimed": True}))


def a_witnessed_builder(*called: tuple[str, Mapping[str, Any]], parallel: bool = True) -> DefinitionBuilder:
    """An agent whose first response makes these calls, and whose hook notes them."""
    builder = an_agent(
        calls(*called), DONE, tools=[recall, leak, claim, MockTool.returning("look", "", "seen")]
    )
    builder.with_error_policy(POLICIES["retry_all"]).with_parallel_tools(parallel)
    return builder.add_hook(Witness())


def a_failing_model_builder(change: Change, error: Exception = UNAVAILABLE) -> DefinitionBuilder:
    """An agent whose hook changes the state before a model call that fails."""
    builder = an_agent(error, DONE).add_hook(Meddler("before_step", change, 1))
    return builder.with_error_policy(POLICIES["retry_all"]).with_max_retries(1).with_max_steps(6)


AROUND = (
    Case("no hook is called for a call that cannot run", lambda: a_witnessed_builder(("listen", {}))),
    Case("hooks read no secrets", lambda: a_witnessed_builder(("leak", {}))),
    Case(
        "tools receive the metadata of the beginning of the step",
        lambda: a_witnessed_builder(("look", {}), ("recall", {}), parallel=False),
    ),
    Case(
        "of calls one after the other, the later one changes the metadata last",
        lambda: a_witnessed_builder(("claim", {}), ("look", {}), parallel=False),
    ),
    Case(
        "what tools changed before a hook ends the step is kept",
        lambda: a_witnessed_builder(("claim", {}), ("look", {"raises": True}), parallel=False),
    ),
    Case(
        "the results of a step that a hook ends are kept",
        lambda: a_witnessed_builder(("look", {}), ("look", {"raises": True}), ("recall", {})),
    ),
    Case(
        "the calls after the one whose hook raises are cancelled",
        lambda: a_witnessed_builder(("look", {}), ("look", {"raises": True}), ("recall", {}), parallel=False),
    ),
    *(
        Case(
            f"a model fails after a hook: {change.__name__}",
            lambda change=change: a_failing_model_builder(change),
        )
        for change in (counts, speaks, stops, asks_for_more)
    ),
    Case(
        "a hook raises what a model may raise",
        lambda: an_office_worker().add_hook(Meddler("before_step", is_limited, 1)),
    ),
)

BOTH = (
    *AROUND,
    *(a_meddling_case(where, change) for where in EVERYWHERE for change in (counts, stops, raises, removes)),
    *(a_meddling_case(where, change) for where in STEP_HOOKS for change in (speaks, opens)),
    # Without end, if nothing else ended it: so only the first two times.
    *(a_meddling_case(where, asks_for_more, 2) for where in EVERYWHERE),
    *(a_meddling_case(where, raises, 1, "retry_all") for where in EVERYWHERE),
    *(a_meddling_case(where, times_out, 1, "retry_all") for where in ("before_step", "after_tool")),
    *(a_meddling_case(where, raises, None, "retry_all") for where in ("processor", "before_tool")),
    *(a_meddling_case(where, raises, None, "retry_tool_errors") for where in ("before_tool", "after_tool")),
    *(
        a_meddling_case(where, times_out, None, "ignore_tool_errors")
        for where in ("after_step", "before_tool", "after_tool")
    ),
    *ASKING,
)
"""Cases with the same result in every shell."""

ESCAPING: Mapping[str, Sequence[Change]] = {
    "before_step": (leaves, is_cancelled, bursts),
    "after_step": (leaves,),
    "processor": (is_cancelled,),
    "before_tool": (bursts,),
    "after_tool": (leaves, is_cancelled),
}
"""By place, exceptions that are no `Exception`, and that must neither end the worker nor be retried without
end.
"""

REFUSED = {
    **{f"{where} swaps": ANOTHER for where in EVERYWHERE},
    **{f"{where} restarts": ANOTHER for where in ("processor", "before_tool")},
    **{f"{where} forgets": "returned NoneType; return the state to go on with" for where in EVERYWHERE},
    **{f"{where} {change.__name__}": CHANGED for where in STEP_HOOKS for change in (rewrites, drops)},
    **{f"{where} speaks": "add them in before_step or after_step" for where in ("before_tool", "after_tool")},
    **{f"{where} floods": "at most 1000 messages" for where in STEP_HOOKS},
    **{f"{where} {change.__name__}": "after" for where, changes in ESCAPING.items() for change in changes},
}
"""Cases that become a failure step, with the text of its error."""

CHANGES: Mapping[str, Change] = {
    change.__name__: change
    for change in (swaps, restarts, forgets, rewrites, drops, speaks, floods, leaves, is_cancelled, bursts)
}


def a_refused_case(name: str) -> Case:
    where, change = name.split()
    return replace(a_meddling_case(where, CHANGES[change]), name=f"refused: {name}")


def agent_of(case: Case) -> DefinitionBuilder:
    """Its name is the case's index: names are short words."""
    return case.build().with_name(f"agent-{ALL.index(case)}")


ALL = (*BOTH, *map(a_refused_case, REFUSED))
