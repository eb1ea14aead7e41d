"""Skills: instructions that a model loads when it needs them.

Rules and texts are in `everstep.agent_domain.capabilities.skills`; `library` reads the files. An agent with
skills gets their names and descriptions in one system message, and reads them with `load_skill`.
"""

from typing import Any, Self

from everstep.agent_domain.agents.builder import DefinitionBuilder
from everstep.agent_domain.agents.processors import AgentHook
from everstep.agent_domain.capabilities.skills import load_text, metadata_message
from everstep.agent_domain.errors import InvalidInput
from everstep.agent_domain.messages.messages import Role, system
from everstep.agent_domain.state.state import AgentState
from everstep.agent_domain.tools.function_tool import BaseTool
from everstep.agent_domain.tools.tools import Effect, ToolContext, ToolOptions
from everstep.capabilities.skills.library import SkillLibrary

__all__ = ["AnnounceSkills", "LoadSkillTool", "SkillLibrary", "UseSkills"]


class LoadSkillTool(BaseTool):
    """Load a skill: instructions for a kind of work. Load it before you begin with what it covers.

    Args:
        skill_name: Which one. Without a name, the skills are listed.
        list_skills: Whether to list the skills instead.
        arguments: What to fill into the skill's placeholders, separated by white space.
    """

    name = "load_skill"
    # It answers from memory.
    options = ToolOptions(quick=True, effect=Effect.IDEMPOTENT)

    def __init__(self, library: SkillLibrary) -> None:
        super().__init__()
        self._library = library

    @classmethod
    def with_library(cls, library: SkillLibrary) -> Self:
        """The tool for the skills of a library."""
        return cls(library)

    def __call__(self, skill_name: str = "", list_skills: bool = False, arguments: str | None = None) -> str:
        """Load it."""
        return load_text(self._library.skills, skill_name, list_skills, arguments)

    def call(self, args: dict[str, Any], context: ToolContext) -> Any:
        """Check the arguments and load; null counts as a missing argument."""
        return super().call({name: value for name, value in args.items() if value is not None}, context)


class AnnounceSkills(AgentHook):
    """Puts the list of skills before the conversation, once."""

    def __init__(self, library: SkillLibrary) -> None:
        self._library = library

    def before_step(self, state: AgentState) -> AgentState:
        """Add the system message, unless it is there already or there are no skills."""
        texts = [message.text for message in state.messages if message.role is Role.SYSTEM]
        announcement = metadata_message(list(self._library.skills.values()), texts)
        if announcement is None:
            return state
        return state.with_messages((system(announcement), *state.messages))


class UseSkills:
    """Lets an agent load the skills of a library."""

    name = "skills"

    def __init__(self, library: SkillLibrary) -> None:
        if not isinstance(library, SkillLibrary):  # pyright: ignore[reportUnnecessaryIsInstance] -- a path is passed easily
            raise InvalidInput(f"{library!r} is not a SkillLibrary; pass SkillLibrary(path)")
        self.library = library

    def install(self, builder: DefinitionBuilder) -> DefinitionBuilder:
        """Add the tool, and the hook that announces the skills."""
        return builder.with_tools([LoadSkillTool(self.library)]).add_hook(AnnounceSkills(self.library))
