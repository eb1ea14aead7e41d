"""An agent with the real tools, for tests that kill the worker during their calls.

It answers each message with one step: all quick tools at once, all others at once, a subagent, a question.
Each call is journalled once the tool has done its work, and is then held until the gates open: a worker
killed at that point has had every effect and reported none.
"""

import asyncio
import inspect
import os
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from pydantic import BaseModel

from everstep.agent_domain.agents.builder import DefinitionBuilder
from everstep.agent_domain.agents.definition import AgentDefinition
from everstep.agent_domain.agents.drivers import ToolCallingDriver
from everstep.agent_domain.agents.registry import AgentSpecRegistry
from everstep.agent_domain.agents.spec import AgentSpec
from everstep.agent_domain.capabilities.bash import ExecutionPolicy
from everstep.agent_domain.loop.error_policy import ErrorPolicy
from everstep.agent_domain.tools.tools import Tool, ToolContext, ToolOptions, options_of
from everstep.agent_domain.tools.toolsets import Asker, ListedTool, Toolset
from everstep.capabilities.bash import UseBash
from everstep.capabilities.files import ListDirTool, SearchFilesTool, UseFileTools
from everstep.capabilities.llm_query import LlmQueryTool
from everstep.capabilities.mcp import StdioServer, UseMCP
from everstep.capabilities.metadata import UseMetadataTools
from everstep.capabilities.skills import SkillLibrary, UseSkills
from everstep.capabilities.structured_output import UseStructuredOutputs
from everstep.capabilities.subagents import UseSubagents
from everstep.capabilities.tasks import UseTaskPlanning
from everstep.capabilities.user_input import UseUserInput
from everstep.inference.scripted import Scenario, ScenarioModel, Script, ScriptedCall, ScriptedTurn
from tests.acceptance.agents import FOLDER, WitnessedModel, at, note

WORK: Final = FOLDER / "work"
SERVER: Final = Path(__file__).parents[1] / "everstep" / "capabilities" / "mcp" / "hostile.py"
MARK: Final = "LC_EVERSTEP_SITE"
"""A variable that commands may see. It identifies the processes that a site started."""

BILL, PLAN, LETTER, WALK, GO, MEMO = "bill", "plan", "letter", "walk", "go", "memo.md"
SKILLS: Final = "skills"


def furnish(work: Path) -> None:
    """Create the files that the tools find."""
    (work / SKILLS).mkdir(parents=True)
    (work / SKILLS / "joining.md").write_text("---\ndescription: How to join wood\n---\nUse a dowel.\n")
    (work / MEMO).write_text("Buy nails.\n")
    (work / PLAN).write_text("A draft.\n")


@dataclass(frozen=True)
class Watched:
    """A tool whose calls are journalled, and held once they have had their effect."""

    tool: Tool

    @property
    def name(self) -> str:
        return self.tool.name

    @property
    def description(self) -> str:
        return self.tool.description

    @property
    def schema(self) -> Mapping[str, Any]:
        return self.tool.schema

    @property
    def options(self) -> ToolOptions:
        return options_of(self.tool)

    async def call(self, args: dict[str, Any], context: ToolContext) -> Any:
        if inspect.iscoroutinefunction(self.tool.call):
            result = await self.tool.call(args, context)
        else:
            result = await asyncio.to_thread(self.tool.call, args, context)
        note("ran", self.name, key=context.tool_call_id)
        await at(f"{self.name} ran")
        return result


@dataclass(frozen=True)
class WatchedSet:
    """The same for the tools of a server."""

    toolset: Toolset

    @property
    def name(self) -> str:
        return self.toolset.name

    async def list_tools(self, asker: Asker) -> Sequence[ListedTool]:
        note("listed", self.name)
        return await self.toolset.list_tools(asker)

    def tool(self, listed: ListedTool) -> Tool:
        return Watched(self.toolset.tool(listed))


class Fruit(BaseModel):
    """Name some fruit."""

    number: int


QUICK: Final[Mapping[str, dict[str, Any]]] = {
    "read_file": {"path": MEMO},
    "list_dir": {"path": SKILLS},
    "metadata_write": {"key": "wood", "value": "oak"},
    "metadata_read": {"key": "wood"},
    "metadata_list": {},
    "todo_write": {"todos": [{"content": "Saw", "status": "pending", "activeForm": "Sawing"}]},
    "load_skill": {"skill_name": "joining"},
}
ASKED, EXTRACTED, TASK = "Which is the capital of France?", "Six apples", "Find the memo"
SLOW: Final[Mapping[str, dict[str, Any]]] = {
    "bash": {"command": f"echo paid >>{BILL}; cat {BILL}"},
    "write_file": {"path": LETTER, "content": "Dear Ann\n"},
    "edit_file": {"path": PLAN, "old_string": "draft", "new_string": "final draft"},
    "search_files": {"pattern": "*.md"},
    "llm_query": {"query": ASKED},
    "extract_data": {"input": EXTRACTED, "schema": "fruit", "store_as": "found"},
    "server_echo": {"text": "heard"},
    "server_dies_once": {"note": str(WORK / MEMO)},
}
WALKING: Final = {
    "command": f"echo begun >>{WALK}; until [ -e {GO} ]; do sleep 0.05; done; echo ended >>{WALK}; cat {WALK}"
}
"""Runs until the test releases it, so a worker killed before that is killed during the command."""
ERRAND: Final = {"subagent": "finder", "prompt": TASK}
QUESTION: Final = {"prompt": "Which wood?", "choices": ["oak", "pine"]}


def _step(*calls: tuple[str, dict[str, Any]]) -> tuple[ScriptedTurn, ...]:
    made = tuple(ScriptedCall(name=name, args=args) for name, args in calls)
    return (ScriptedTurn(calls=made), ScriptedTurn(text="All done."))


SCRIPT = Script(
    scenarios=(
        Scenario(when="at once", turns=_step(*QUICK.items())),
        Scenario(when="take your time", turns=_step(*SLOW.items(), ("bash", WALKING))),
        Scenario(when="send somebody", turns=_step(("spawn_subagent", ERRAND))),
        Scenario(when="ask me", turns=_step(("user_input", QUESTION))),
        Scenario(when=ASKED, turns=(ScriptedTurn(text="Paris."),)),
        Scenario(when=EXTRACTED, turns=(ScriptedTurn(text='{"value": {"number": 6}}'),)),
        Scenario(
            when=TASK, turns=(*_step(("search_files", {"pattern": MEMO}))[:1], ScriptedTurn(text="Found."))
        ),
    )
)
FINDER = AgentSpec("finder", "Finds files", "You find files.", tools=["search_files"])


def _watch_tools(definition: AgentDefinition, left_alone: Iterable[str]) -> AgentDefinition:
    """The toolset with journalled tools, except for those that others run."""
    tools = definition.tools.merged(
        [Watched(tool) for tool in definition.tools if tool.name not in left_alone]
    )
    return replace(definition, tools=tools, toolsets=tuple(map(WatchedSet, definition.toolsets)))


def _craftsman() -> AgentDefinition:
    policy = ExecutionPolicy.for_bash(WORK)
    server = StdioServer(sys.executable, ["-I", "-S", str(SERVER)], {MARK: os.environ.get(MARK, "")})
    builder = (
        DefinitionBuilder.base()
        .with_name("craftsman", "Works with everything there is")
        .with_error_policy(ErrorPolicy.ignore_tool_errors())
        .with_driver(ToolCallingDriver(WitnessedModel(ScenarioModel(SCRIPT))))
        .with_tools([ListDirTool(WORK), SearchFilesTool(WORK), LlmQueryTool()])
    )
    for capability in (
        UseBash(policy),
        UseFileTools(WORK),
        UseMetadataTools(),
        UseTaskPlanning(),
        UseSkills(SkillLibrary(WORK / SKILLS)),
        UseStructuredOutputs({"fruit": Fruit}),
        UseMCP(server, "server", tools=["echo", "dies_once"]),
        UseUserInput(),
        UseSubagents(AgentSpecRegistry([FINDER])),
    ):
        builder.with_capability(capability)
    watched = _watch_tools(builder.definition(), left_alone=("user_input", "spawn_subagent"))
    # A second time, so that the subagent inherits journalled tools.
    return watched.equipped()


agents = [_craftsman()]
