"""Subagents in this process: the call of such a tool runs another agent to its end."""

from collections.abc import Awaitable
from dataclasses import replace
from typing import Protocol

from everstep.agent_domain.agents.definition import AgentDefinition
from everstep.agent_domain.agents.spawning import Spawn, child_plan, tokens_left
from everstep.agent_domain.errors import InvalidInput, ListenerFailed
from everstep.agent_domain.loop.child_end import ChildEnd
from everstep.agent_domain.loop.facts import StateInfo
from everstep.agent_domain.loop.status import AgentStatus, ExecutionStatus, final_situation
from everstep.agent_domain.loop.step_error import StepError
from everstep.agent_domain.loop.step_facts import NOTHING_BESIDES, Besides
from everstep.agent_domain.state.state import AgentState
from everstep.agent_domain.values import EMPTY
from everstep.local.local_budgets import LocalBudgets
from everstep.steps.subagents import find_child


class RunChild(Protocol):
    """Runs an agent to its end, within the budgets of its parent."""

    def __call__(
        self, definition: AgentDefinition, state: AgentState, *, budgets: LocalBudgets | None = None
    ) -> Awaitable[AgentState]:
        """Run it."""
        ...


PAUSED = "A hook paused it, and a run in-process cannot be resumed; run the agent on a worker"


class SubagentParent:
    """The agent whose step starts children."""

    def __init__(self, definition: AgentDefinition, state: AgentState, run: RunChild) -> None:
        self.definition = definition
        self.state = state
        self.run = run

    async def run_child(self, spawn: Spawn) -> tuple[ChildEnd, Besides]:
        """Run a child; returns how it ended and what it used."""
        definition, state = self._child_start(spawn)
        try:
            final_state = await self.run(definition, state)
        except ListenerFailed:
            raise
        except Exception as error:  # noqa: BLE001 -- a child that cannot run has failed; its parent continues
            return ChildEnd(ExecutionStatus.FAILED, error=StepError.of(error).message), NOTHING_BESIDES
        used = Besides(child_tokens=final_state.tokens, child_cost_usd=final_state.tree_cost_usd)
        return _end_of(final_state), used

    def _child_start(self, spawn: Spawn) -> tuple[AgentDefinition, AgentState]:
        """Return the child's definition and its initial state."""
        agent, child = find_child(
            self.definition, self.definition.base_plan.agent, spawn.agent, _refuse_agent
        )
        plan = child_plan(spawn, replace(child, criteria=()), agent, self._remaining_tokens())
        plan.rules()
        if spawn.llm_preset:
            child = replace(child, llm_preset=spawn.llm_preset, model_settings=EMPTY)
        state = AgentState.empty().with_messages(spawn.messages).with_metadata(spawn.metadata)
        facts, parent = self.state.facts, self.state.execution
        worked = facts.state_info.session_execution_seconds + facts.seconds_under_way
        state = replace(
            state,
            parent_agent_id=self.state.agent_id,
            execution=replace(state.execution, run=parent.run, resources=parent.resources),
            facts=replace(state.facts, state_info=StateInfo(session_execution_seconds=worked)),
        )
        return replace(child, base_plan=plan), state

    def _remaining_tokens(self) -> int | None:
        step = self.state.current_step
        used = self.state.tokens + (step.usage.total if step else 0)
        return tokens_left(self.definition.base_plan.max_tokens, used)


def _refuse_agent(name: str) -> AgentDefinition:
    raise InvalidInput(
        f"there is no agent '{name}' in-process; let the tool bring it (`subagents`), "
        "or run the agent on a worker"
    )


def _end_of(child: AgentState) -> ChildEnd:
    reason = child.last_outcome.stop_reason if child.last_outcome else None
    if reason is None:
        return ChildEnd(ExecutionStatus.FAILED, error=PAUSED)
    error = None
    if child.status is AgentStatus.FAILED:
        errors = child.steps[-1].errors_as_text if child.steps else ""
        error = errors or f"stopped: {reason}"
    status, result = final_situation(child.status, reason).execution, child.execution.output_data
    return ChildEnd(status, child.final_response, error, reason, result)
