"""A capability as a user writes it: a processor and a hook that set marks, and criteria that read them."""

from everstep import (
    REGISTERED,
    AgentHook,
    AgentState,
    ContinuationDecision,
    ExecutionView,
    ToolExecution,
)
from everstep.agent_domain.agents.builder import DefinitionBuilder

SHORT = "That is too short."


@REGISTERED.function("tests.long-enough")
def long_enough(state: ExecutionView, rounds: int) -> ContinuationDecision:
    """Requests another answer while the last one is too short."""
    review = state.marks.get("review")
    if review is None or review["is_fine"]:
        return ContinuationDecision.STOP
    return ContinuationDecision.FORBID if review["round"] >= rounds else ContinuationDecision.REQUEST


@REGISTERED.function("tests.calls-allowed")
def calls_allowed(state: ExecutionView, most: int) -> ContinuationDecision:
    """Forbids another step once hooks have counted so many calls."""
    is_over = state.marks.get("calls", 0) >= most
    return ContinuationDecision.FORBID if is_over else ContinuationDecision.ALLOW


@REGISTERED.function("tests.serves")
def serves(state: ExecutionView, user: str) -> ContinuationDecision:
    """Forbids steps for every other user."""
    return ContinuationDecision.ALLOW if state.run.user_id == user else ContinuationDecision.FORBID


class CountCalls(AgentHook):
    """Counts the calls, and notes in which step the latest one began."""

    def before_step(self, state: AgentState) -> AgentState:
        return state.with_mark("step", state.facts.next_step_number)

    def after_tool(self, state: AgentState, execution: ToolExecution) -> AgentState:
        del execution
        return state.with_mark("calls", state.marks.get("calls", 0) + 1).with_mark(
            "calls of", state.marks["step"]
        )


class UseReview:
    """Has answers repeated until they have enough words."""

    name = "review"

    def __init__(self, words: int = 2, rounds: int = 2, most_calls: int = 3) -> None:
        self.words = words
        self.rounds = rounds
        self.most_calls = most_calls

    def __call__(self, state: AgentState) -> AgentState:
        step = state.current_step
        if step is None or step.has_tool_calls:
            return state.with_mark("review", None)
        is_fine = len((state.final_response or "").split()) >= self.words
        before = state.marks.get("review", {"round": 0})
        state = state.with_mark("review", {"is_fine": is_fine, "round": before["round"] + 1})
        is_repeated = not is_fine and before["round"] + 1 < self.rounds
        return state.with_user_message(SHORT, reset=False) if is_repeated else state

    def install(self, builder: DefinitionBuilder) -> DefinitionBuilder:
        builder.add_processor(self).add_hook(CountCalls())
        return builder.add_continuation_criteria(
            long_enough(rounds=self.rounds), calls_allowed(most=self.most_calls)
        )
