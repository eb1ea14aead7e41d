"""Subagents: the inheritance of a child execution, and the texts that its parent reads.

A child does not see the history of its parent, and the parent sees only the child's text. A child
that fails yields an error text, never a failure.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from everstep.agent_domain.checks import require_integer, require_integer_at_least
from everstep.agent_domain.errors import unknown_name_text
from everstep.agent_domain.loop.child_end import ChildEnd
from everstep.agent_domain.loop.status import ExecutionStatus
from everstep.agent_domain.values import FrozenDict, frozen_map, json_text

TOOL = "spawn_subagent"
INHERIT = "inherit"

CHILD_MAX_STEPS = 20
CHILD_MAX_TOKENS = 32_768
CHILD_TIMEOUT_SECONDS = 300


@dataclass(frozen=True, slots=True)
class SubagentPolicy:
    """The maximum depth of nesting, and the maximum length of the text that the parent reads (≤ 0: all)."""

    max_depth: int = 3
    summary_max_chars: int = 8_000

    def __post_init__(self) -> None:
        require_integer_at_least("max_depth", self.max_depth, 0)
        require_integer("summary_max_chars", self.summary_max_chars)

    def refusal(self, name: str, depth: int) -> str | None:
        """The error text if an agent at this depth (0 is the top) must not start another; else None."""
        if depth < self.max_depth:
            return None
        return f"Error: Subagent '{name}' not started, subagents nest at most {self.max_depth} deep"

    def trimmed(self, response: str) -> str:
        """The part of a response that the parent reads."""
        text = response.strip()
        if self.summary_max_chars <= 0 or len(text) <= self.summary_max_chars:
            return text
        return text[: self.summary_max_chars].rstrip() + "\n..."


def success_text(name: str, response: str, policy: SubagentPolicy) -> str:
    """The text for the parent about a child that succeeded."""
    return f"[Subagent: {name}] {policy.trimmed(response) or '(no response)'}"


def failure_text(name: str, error: str) -> str:
    """The text for the parent about a child that failed."""
    return f"Error: Subagent '{name}' failed: {error}"


def outcome_text(name: str, end: ChildEnd, policy: SubagentPolicy) -> str:
    """The text for the parent about a child that ended in any way."""
    match end.status:
        case ExecutionStatus.FAILED:
            return failure_text(name, end.error or "It gave no reason")
        case ExecutionStatus.CANCELLED:
            return failure_text(name, "It was cancelled")
        case _:
            response = end.response if end.output is None else json_text(end.output)
            return success_text(name, response or "", policy)


def unknown_agent_text(name: str, names: Iterable[str]) -> str:
    """The text for the parent if there is no agent of this name."""
    return f"Error: {unknown_name_text('agent', name, names)}"


def inherited_tools(parent: Sequence[str], wanted: Sequence[str] | None) -> tuple[str, ...]:
    """The child's tools in the parent's order: all, or those of the parent that are in `wanted`."""
    return tuple(name for name in dict.fromkeys(parent) if wanted is None or name in wanted)


@dataclass(frozen=True, slots=True)
class SubagentListing:
    """An agent in the description of spawn_subagent; `tools` None: all tools of the parent."""

    name: str
    description: str
    tools: tuple[str, ...] | None = None

    @property
    def line(self) -> str:
        """The agent as one line of text."""
        tools = "all parent tools" if self.tools is None else ", ".join(self.tools) or "none"
        return f"- {self.name}: {self.description} (tools: {tools})"


def description(agents: Iterable[SubagentListing]) -> str:
    """The description of spawn_subagent for the model."""
    intro = (
        "Start a subagent on a task of its own and wait for its answer. It sees nothing of this "
        "conversation: put all that it needs to know into the prompt. Available subagents:"
    )
    return "\n".join([intro, *(agent.line for agent in agents)])


def parameters(names: Sequence[str]) -> FrozenDict:
    """The JSON schema of the arguments. Without names it has no enum, because an empty one is invalid."""
    choice = {"type": "string", "description": "Which subagent to start"}
    subagent = {**choice, "enum": list(names)} if names else choice
    prompt = {"type": "string", "description": "The whole task, with everything the subagent has to know"}
    schema = {
        "type": "object",
        "properties": {"subagent": subagent, "prompt": prompt},
        "required": ["subagent", "prompt"],
    }
    return frozen_map(schema, "the parameters of spawn_subagent")
