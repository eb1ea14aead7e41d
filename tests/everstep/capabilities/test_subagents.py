"""Subagents in this process."""

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from everstep.agent_domain.agents.builder import DefinitionBuilder
from everstep.agent_domain.agents.definition import AgentDefinition
from everstep.agent_domain.agents.drivers import ToolCallingDriver
from everstep.agent_domain.agents.processors import AgentHook
from everstep.agent_domain.agents.registry import AgentSpecRegistry
from everstep.agent_domain.agents.spawning import Spawn
from everstep.agent_domain.agents.spec import AgentSpec
from everstep.agent_domain.capabilities.subagents import SubagentPolicy
from everstep.agent_domain.errors import InvalidInput, ListenerFailed, ModelError
from everstep.agent_domain.loop.child_end import ChildEnd
from everstep.agent_domain.loop.error_policy import ErrorPolicy
from everstep.agent_domain.loop.status import AgentStatus, StopReason
from everstep.agent_domain.loop.step_facts import CallNeed
from everstep.agent_domain.loop.stop_signal import StopSignal
from everstep.agent_domain.loop.usage import Usage
from everstep.agent_domain.messages.messages import user
from everstep.agent_domain.state.events import AgentFinished, AgentStepStarted, Event, ToolCallStarted
from everstep.agent_domain.state.state import AgentState
from everstep.agent_domain.state.steps import InferenceResponse
from everstep.agent_domain.testing import MockTool, ScriptedModel, calls, says
from everstep.agent_domain.tools.tools import ToolCall, ToolContext, ToolOptions
from everstep.agent_domain.values import FrozenDict, frozen_map
from everstep.capabilities.skills import SkillLibrary
from everstep.capabilities.subagents import SelectedTools, SpawnSubagentTool, UseSubagents
from everstep.local.children import PAUSED
from everstep.local.local_agent import Agent
from everstep.runtime.builder import AgentBuilder
from tests.everstep.capabilities.agent_words import LOOK, LOOKS, Presets, results
from tests.toolsets import FakeToolset

BURN = MockTool.returning("burn", "Burns things", "ashes")


def a_spec(name: str = "scout", **fields: Any) -> AgentSpec:
    return AgentSpec(name, f"Is a {name}", f"You are a {name}.", **fields)


def spawn_call(name: Any = "scout", prompt: Any = "Look around", **more: Any) -> InferenceResponse:
    return calls(("spawn_subagent", {"subagent": name, "prompt": prompt}), **more)


def a_builder(*specs: AgentSpec, **use: Any) -> AgentBuilder:
    builder = AgentBuilder.base().with_tools([LOOK, BURN])
    return builder.with_capability(UseSubagents(AgentSpecRegistry(specs), **use))


def agent_with_model(
    builder: AgentBuilder, *script: InferenceResponse | str | Exception
) -> tuple[Agent, ScriptedModel]:
    """The agent with a model, also for all agents that inherit it, that gives these responses."""
    model = ScriptedModel(*script)
    return builder.with_driver(ToolCallingDriver(model)).build(), model


def child_of(definition: AgentDefinition, *names: str) -> AgentDefinition:
    """The subagent of that name, and recursively the subagent of that one."""
    for name in names:
        tool = definition.tools.get("spawn_subagent")
        assert isinstance(tool, SpawnSubagentTool)
        definition = tool.subagents[name]
    return definition


# The input of a child.


async def test_the_child_gets_its_prompt_and_the_task_and_the_parent_only_its_text() -> None:
    """9.6.2, 9.6.3"""
    agent, model = agent_with_model(
        a_builder(a_spec()).with_system_prompt("You lead."), spawn_call(), LOOKS, " Three. ", "Done"
    )

    state = await agent.arun("Find the exit")

    child = model.requests[1]
    assert [(message.role.value, message.text) for message in child.messages] == [
        ("system", "You are a scout."),
        ("user", "Look around"),
    ]
    assert results(state) == ["[Subagent: scout] Three."]
    parents = [message.text for message in model.requests[3].messages]
    assert parents == ["You lead.", "Find the exit", "", "[Subagent: scout] Three."]


async def test_a_child_begins_with_its_skills_loaded(tmp_path: Path) -> None:
    """9.6.2: pairs of a load_skill call and its result, before the user prompt."""
    for name in ("maps", "birds"):
        (tmp_path / f"{name}.md").write_text(f"---\ndescription: About {name}\n---\nAll about {name}")
    library = SkillLibrary(tmp_path)
    builder = a_builder(a_spec(skills=["maps", "birds"]), skill_library=library)
    agent, model = agent_with_model(builder, spawn_call(), "Three.", "Done")

    await agent.arun("Find the exit")

    system, first, maps, second, birds, task = model.requests[1].messages
    assert (system.text, task.text) == ("You are a scout.", "Look around")
    assert [entry["function"]["name"] for message in (first, second) for entry in message.calls] == [
        "load_skill"
    ] * 2
    assert first.calls[0]["function"]["arguments"] == '{"skill_name":"maps"}'
    assert [message.text for message in (maps, birds)] == [
        '<skill name="maps">\nAll about maps\n</skill>',
        '<skill name="birds">\nAll about birds\n</skill>',
    ]
    assert [message.metadata["tool_call_id"] for message in (maps, birds)] == [
        first.calls[0]["id"],
        second.calls[0]["id"],
    ]


def test_the_limits_of_a_child() -> None:
    """9.6.2: 20 steps, 32768 tokens, 300 s, regardless of the parent's."""
    builder = (
        a_builder(a_spec(max_steps=50)).with_max_steps(2).with_timeout(5).with_driver(ToolCallingDriver())
    )
    plan = child_of(builder.definition(), "scout").plan()
    assert (plan.max_steps, plan.max_tokens, plan.timeout_seconds) == (20, 32768, 300)


@pytest.mark.parametrize(
    "changed",
    [
        AgentSpec("scout", "Is a scout", "You are another scout."),
        a_spec(skills=["maps"]),
        a_spec(approval={"look": "always"}),
        a_spec(model="fast"),
        a_spec(tools=["look"]),
    ],
)
def test_another_subagent_is_another_definition_of_both(changed: AgentSpec, tmp_path: Path) -> None:
    """10.2.4: a subagent's input is neither in its parent's prompt nor in its own."""
    (tmp_path / "maps.md").write_text("All about maps")
    before, after = (
        a_builder(spec, skill_library=SkillLibrary(tmp_path)).definition() for spec in (a_spec(), changed)
    )
    assert before.digest != after.digest
    assert child_of(before, "scout").digest != child_of(after, "scout").digest


def test_the_parents_definition_is_in_the_hash_of_a_subagent() -> None:
    """10.2.4: the subagent has its parent's tools, with their options."""
    before = a_builder(a_spec()).definition()
    after = replace(before, written=frozen_map({"capabilities": {"files": {"base_dir": "work"}}})).equipped()
    assert child_of(before, "scout").digest != child_of(after, "scout").digest
    described = a_builder(a_spec(metadata={"author": "me"}, max_steps=3)).definition()
    assert child_of(before, "scout").digest == child_of(described, "scout").digest
    assert before.digest == described.digest


async def test_a_child_that_never_ends_is_stopped() -> None:
    """9.6.2, 9.6.3: it has no final response, which is not a failure."""
    builder = a_builder(a_spec(model="child"))
    presets = Presets(default=ScriptedModel(spawn_call(), "Done"), child=ScriptedModel(LOOKS))
    state = await builder.build(models=presets).arun("Go")
    assert results(state) == ["[Subagent: scout] (no response)"]
    assert len(presets.models["child"].requests) == 20  # type: ignore[attr-defined]


# The result of a child.


@pytest.mark.parametrize(
    ("args", "text"),
    [
        ({"subagent": "cook", "prompt": "x"}, "Error: No agent named 'cook'. Choose from: scout, guard"),
        ({"subagent": 5, "prompt": "x"}, "Error: No agent named '5'. Choose from: scout, guard"),
        ({"subagent": None, "prompt": "x"}, "Error: No agent named ''. Choose from: scout, guard"),
        (
            {"subagent": "scout", "prompt": " "},
            "Error: Subagent 'scout' failed: Its prompt is blank; write down the whole task",
        ),
        (
            {"subagent": " guard ", "prompt": None},
            "Error: Subagent 'guard' failed: Its prompt is blank; write down the whole task",
        ),
    ],
)
async def test_a_child_that_cannot_be_started_is_a_text_and_not_a_failure(
    args: dict[str, Any], text: str
) -> None:
    """9.6.3"""
    call = calls(("spawn_subagent", args))
    agent, model = agent_with_model(a_builder(a_spec(), a_spec("guard")), call, "Done")
    state = await agent.arun("Go")
    assert results(state) == [text]
    assert (state.status, len(model.requests)) == (AgentStatus.COMPLETED, 2)


async def test_a_task_that_is_not_text_is_passed_on_as_json() -> None:
    """9.6.2: models also send objects."""
    agent, model = agent_with_model(a_builder(a_spec()), spawn_call(prompt={"find": "ä"}), "Three.", "Done")
    await agent.arun("Go")
    assert model.requests[1].messages[-1].text == '{"find":"ä"}'


@pytest.mark.parametrize(
    ("answer", "text"),
    [
        (" \n", "[Subagent: scout] (no response)"),
        ("äbcde f", "[Subagent: scout] äbcde\n..."),
        ("äbcdef", "[Subagent: scout] äbcdef"),
        (ModelError("overloaded"), "Error: Subagent 'scout' failed: overloaded"),
    ],
)
async def test_the_result_that_the_parent_reads(answer: str | Exception, text: str) -> None:
    """9.6.3: the failure of a child is not a failure of its parent."""
    builder = a_builder(a_spec(), policy=SubagentPolicy(summary_max_chars=6))
    agent, _ = agent_with_model(builder, spawn_call(), answer, "Done")
    state = await agent.arun("Go")
    assert results(state) == [text]
    assert state.status is AgentStatus.COMPLETED


async def test_a_missing_argument_is_refused_as_for_any_tool() -> None:
    """5.4.3"""
    agent, _ = agent_with_model(a_builder(a_spec()), calls(("spawn_subagent", {"subagent": "scout"})))
    state = await agent.arun("Go")
    assert results(state) == ["Error: Required arguments are missing: prompt"]


async def test_a_missing_skill_is_named(tmp_path: Path) -> None:
    """9.6.3: with or without a library; other agents can still be started."""
    text = "Error: Subagent 'scout' failed: It needs skills that are not there: maps, birds"
    specs = (a_spec(skills=["maps", "birds"]), a_spec("guard"))
    for library in (None, SkillLibrary(tmp_path)):
        agent, _ = agent_with_model(
            a_builder(*specs, skill_library=library), spawn_call(), spawn_call("guard"), "Fine", "Done"
        )
        assert results(await agent.arun("Go")) == [text, "[Subagent: guard] Fine"]


async def test_an_agent_file_cannot_name_an_address_for_secrets() -> None:
    """9.6.5, 9.6.3: other agents can still be started."""
    specs = (a_spec(model={"base_url": "https://evil.example", "api_key_env": "KEY"}), a_spec("guard"))
    agent, _ = agent_with_model(a_builder(*specs), spawn_call(), spawn_call("guard"), "Fine", "Done")
    text = (
        "Error: Subagent 'scout' failed: Its 'model' must not hold 'base_url': an agent's file could send "
        "any secret anywhere; write a preset into everstep.toml, and its name under 'model'"
    )
    assert results(await agent.arun("Go")) == [text, "[Subagent: guard] Fine"]
    with pytest.raises(KeyError):
        child_of(agent.definition, "scout")


async def test_an_unknown_preset_is_a_text() -> None:
    """9.6.3: the parent continues."""
    agent, _ = agent_with_model(a_builder(a_spec(model="fast")), spawn_call(), "Done")
    state = await agent.arun("Go")
    assert results(state)[0].startswith(
        "Error: Subagent 'scout' failed: No preset named 'fast'. Name a model"
    )
    assert (state.final_response, state.status) == ("Done", AgentStatus.COMPLETED)


# The description.


def test_the_tool_describes_the_agents() -> None:
    """9.6.1"""
    registry = AgentSpecRegistry(
        [a_spec(), a_spec("guard", tools=["look", "burn"]), a_spec("monk", tools=[])]
    )
    tool = (
        AgentBuilder.base()
        .with_capability(UseSubagents.with_depth(2, registry, 9))
        .definition()
        .tools.get("spawn_subagent")
    )
    assert isinstance(tool, SpawnSubagentTool)
    assert tool.policy == SubagentPolicy(2, 9)
    assert tool.description.split("\n")[1:] == [
        "- scout: Is a scout (tools: all parent tools)",
        "- guard: Is a guard (tools: look, burn)",
        "- monk: Is a monk (tools: none)",
    ]
    assert tool.schema["properties"]["subagent"]["enum"] == ["scout", "guard", "monk"]


async def test_a_later_change_of_the_registry_does_not_affect_built_agents() -> None:
    """9.6.1: the enum that a model has seen stays; agents built later get the new one."""
    registry = AgentSpecRegistry([a_spec()])
    builder = AgentBuilder.base().with_tools([LOOK]).with_capability(UseSubagents(registry))
    agent, model = agent_with_model(builder, spawn_call(), "Three.", spawn_call("guard"), "Done")

    registry.register(a_spec("guard"))
    registry.remove("scout")
    state = await agent.arun("Go")

    assert results(state) == [
        "[Subagent: scout] Three.",
        "Error: No agent named 'guard'. Choose from: scout",
    ]
    assert "- guard:" not in str(model.requests[0].tools)
    assert list(
        builder.definition().tools.get("spawn_subagent").schema["properties"]["subagent"]["enum"]
    ) == ["guard"]


def test_a_tool_without_an_agent_cannot_start_one() -> None:
    """9.6.5: there is nothing to inherit from."""
    tool = SpawnSubagentTool(AgentSpecRegistry([a_spec()]), SubagentPolicy())
    with pytest.raises(InvalidInput, match="belongs to no agent yet; build the agent first"):
        _ = tool.subagents
    with pytest.raises(InvalidInput, match="this runner cannot do"):
        tool.call({}, ToolContext(None, "c1", 1))  # type: ignore[arg-type]


# Depth.


@pytest.mark.parametrize("depth", [0, 1, 2, 3])
async def test_subagents_nest_up_to_the_limit(depth: int) -> None:
    """9.6.4: depth is 0 at the top; a call at a depth of max_depth or more is refused."""
    agent, model = agent_with_model(
        a_builder(a_spec(), policy=SubagentPolicy(depth)), *[spawn_call()] * (depth + 1), "End"
    )

    state = await agent.arun("Go")

    refused = f"Error: Subagent 'scout' not started, subagents nest at most {depth} deep"
    assert results(state) == (["[Subagent: scout] End"] if depth else [refused])
    assert any(message.text == refused for request in model.requests for message in request.messages)


@pytest.mark.parametrize(
    ("tools", "names"),
    [
        (None, ("look", "burn", "spawn_subagent")),
        (["spawn_subagent", "look", "nope"], ("look", "spawn_subagent")),
        (["burn"], ("burn",)),
        ([], ()),
    ],
)
def test_a_child_has_the_tools_that_it_inherits_or_lists(
    tools: list[str] | None, names: tuple[str, ...]
) -> None:
    """9.6.4, 9.6.5: unknown names are dropped."""
    definition = a_builder(a_spec(tools=tools)).with_driver(ToolCallingDriver()).definition()
    child = child_of(definition, "scout")
    assert set(child.tools.names) == set(names)
    if "spawn_subagent" in names:
        tool = child.tools.get("spawn_subagent")
        assert isinstance(tool, SpawnSubagentTool)
        assert tool.depth == 1


# Inheritance.


@pytest.mark.parametrize("model", [None, "inherit", "fast", {"preset": "fast", "temperature": 0}])
def test_approvals_are_inherited_at_every_depth(
    model: str | Mapping[str, Any] | None,
) -> None:
    """9.6.5, 8.6.1: a call that needs approval for the parent needs it for every child."""
    builder = a_builder(a_spec(model=model), a_spec("guard"))
    builder = builder.with_approval("burn", "always", approver="owner", expires_after=60)
    definition = builder.with_approval("look", "never").definition()
    for names in (["scout"], ["scout", "guard"], ["guard", "scout", "guard"]):
        child = child_of(definition, *names)
        assert child.approvals == definition.approvals
        assert child.plan().approvals_expire


def test_an_agent_may_add_its_own_approvals() -> None:
    """9.6.5, 8.6.1: where its parent has none; for tools that it has."""
    spec = a_spec(tools=["burn", "look"], approval={"burn": "always", "look": "never", "fly": "always"})
    definition = a_builder(spec).with_approval("look", "always").definition()
    child = child_of(definition, "scout")
    assert child.spec().approvals == {"burn": "always", "look": "always"}
    assert not child.plan().approvals_expire


@pytest.mark.parametrize(
    ("model", "expected"),
    [
        (None, ("house", FrozenDict())),
        ("inherit", ("house", FrozenDict())),
        ("fast", ("fast", FrozenDict())),
        ({"temperature": 0}, (None, FrozenDict(temperature=0))),
    ],
)
def test_the_model_is_the_parents_or_the_named_one(model: Any, expected: Any) -> None:
    """9.6.5: and that of a nested subagent is its parent's."""
    definition = a_builder(a_spec(model=model), a_spec("guard")).with_llm_preset("house").definition()
    for names in (["scout"], ["scout", "guard"]):
        child = child_of(definition, *names)
        assert (child.llm_preset, child.model_settings) == expected


async def test_a_custom_model_is_inherited_by_the_next_level() -> None:
    """9.6.5: inherit means the parent's."""
    fast = ScriptedModel(spawn_call("guard"), "Deep.", "Middle.")
    builder = a_builder(a_spec(model="fast"), a_spec("guard"))
    builder.with_driver(ToolCallingDriver(ScriptedModel(spawn_call(), "Done")))
    state = await builder.build(models=Presets(fast=fast)).arun("Go")
    assert results(state) == ["[Subagent: scout] Middle."]
    assert len(fast.requests) == 3


async def test_error_policy_and_order_of_calls_are_inherited() -> None:
    """9.6.5"""
    builder = (
        a_builder(a_spec()).with_error_policy(ErrorPolicy.retry_tool_errors()).with_parallel_tools(False)
    )
    plan = child_of(builder.with_driver(ToolCallingDriver()).definition(), "scout").plan()
    assert (plan.error_policy, plan.parallel_tools) == (ErrorPolicy.retry_tool_errors(), False)


async def test_toolset_tools_are_inherited_or_filtered() -> None:
    """9.6.5: a list may name them as well."""
    shelf = FakeToolset({"dig": lambda _args, _context: "dug", "fly": lambda _args, _context: "flown"})
    builder = a_builder(a_spec(), a_spec("mole", tools=["dig"])).with_toolset(shelf)
    agent, model = agent_with_model(
        builder, spawn_call(), calls(("fly", {})), "Flew", spawn_call("mole"), calls(("fly", {})), "Done"
    )

    state = await agent.arun("Go")

    told = [[tool["function"]["name"] for tool in request.tools] for request in model.requests]
    assert told[1] == ["dig", "fly", "look", "burn", "spawn_subagent"]
    assert told[4] == ["dig"]
    assert results(state) == [
        "[Subagent: scout] Flew",
        "Error: Subagent 'mole' failed: No tool named 'fly'. Choose from: dig",
    ]
    some = SelectedTools(shelf, ("dig",))
    assert some.name == "shelf"


# Usage and events.


async def test_usage_of_children_is_charged_to_the_tree() -> None:
    """9.6.2, 2.6.2: to the parent's limit, and a child gets at most the remainder."""
    script = (
        spawn_call(usage=Usage(input=100)),
        says("Three.", Usage(input=700)),
        spawn_call(usage=Usage(input=50)),
        calls(("look", {}), usage=Usage(input=200)),
        says("unasked"),
    )
    agent, model = agent_with_model(a_builder(a_spec()).with_max_tokens(1000), *script)

    state = await agent.arun("Go")

    assert (state.usage.total, state.tokens) == (150, 1050)
    assert state.last_outcome is not None
    assert state.last_outcome.stop_reason is StopReason.TOKEN_LIMIT
    assert results(state) == ["[Subagent: scout] Three.", "[Subagent: scout] (no response)"]
    assert len(model.requests) == 4


async def test_the_events_of_a_child_name_its_parent() -> None:
    """4.6.1: parentAgentId; the same listeners get them."""
    agent, _ = agent_with_model(a_builder(a_spec()), spawn_call(), LOOKS, "Three.", "Done")
    heard: list[Event] = []
    agent.wiretap(heard.append)

    state = await agent.arun("Go")

    begun = [event for event in heard if isinstance(event, AgentStepStarted)]
    assert [event.parent_agent_id for event in begun] == [None, state.agent_id, state.agent_id, None]
    assert len({event.agent_id for event in begun}) == 2
    tools = [(event.tool, event.parent_agent_id) for event in heard if isinstance(event, ToolCallStarted)]
    assert tools == [("spawn_subagent", None), ("look", state.agent_id)]
    ends = [event.parent_agent_id for event in heard if isinstance(event, AgentFinished)]
    assert ends == [state.agent_id, None]


async def test_a_listener_that_raises_is_no_failure_of_the_child() -> None:
    """4.6.3: the error is raised to the caller, and the model does not read it."""
    agent, _ = agent_with_model(a_builder(a_spec()), spawn_call(), "Three.", "Done")

    def refuses(event: AgentStepStarted) -> None:
        if event.parent_agent_id:
            raise RuntimeError("no")

    agent.on_event(AgentStepStarted, refuses)
    with pytest.raises(ListenerFailed):
        await agent.arun("Go")


async def test_children_of_one_response_run_concurrently() -> None:
    """5.4.1: their results are in the order of the calls."""
    together = asyncio.Barrier(2)

    async def meet() -> str:
        async with asyncio.timeout(10):
            await together.wait()
        return "met"

    both = calls(*[("spawn_subagent", {"subagent": name, "prompt": name}) for name in ("a", "b")])
    meets = MockTool("meet", "Waits for the other", meet)
    children = {name: ScriptedModel(calls(("meet", {})), f"I am {name}") for name in ("a", "b")}
    builder = a_builder(*(a_spec(name, model=name) for name in children)).with_tools([meets])
    builder.with_driver(ToolCallingDriver(ScriptedModel(both, "Done")))

    state = await builder.build(models=Presets(**children)).arun("Go")

    assert results(state) == ["[Subagent: a] I am a", "[Subagent: b] I am b"]


# Custom tools that start agents.


class HireTool:
    """Starts agents that it defines itself."""

    name = "hire"
    description = "Starts an agent"
    schema = FrozenDict()
    options = ToolOptions(need=CallNeed.SUBAGENT)

    def __init__(
        self,
        definition: AgentDefinition,
        agent: str = "hand",
        report: Exception | None = None,
        preset: str | None = None,
    ) -> None:
        self.preset = preset
        self.subagents = {"hand": definition}
        self.agent = agent
        self.raises = report

    def spawn(self, args: dict[str, Any], context: ToolContext) -> Spawn | str:
        del args, context
        return Spawn(self.agent, (user("Work"),), llm_preset=self.preset, metadata=FrozenDict(a=1))

    def report(self, args: dict[str, Any], end: ChildEnd) -> str:
        del args
        if self.raises:
            raise self.raises
        return f"{end.status}: {end.error or end.response}"

    def call(self, args: dict[str, Any], context: ToolContext) -> Any:
        raise AssertionError("nobody calls it")


class StoppingHook(AgentHook):
    def __init__(self, change: Callable[[AgentState], AgentState]) -> None:
        self.change = change

    def before_step(self, state: AgentState) -> AgentState:
        return self.change(state)


def a_helper(*script: InferenceResponse | str) -> DefinitionBuilder:
    return DefinitionBuilder.base().with_tools([LOOK]).with_driver(ToolCallingDriver(ScriptedModel(*script)))


async def run_hire(hand: DefinitionBuilder, **more: Any) -> AgentState:
    builder = AgentBuilder.base().with_tools([HireTool(hand.definition(), **more)]).with_max_steps(1)
    return await agent_with_model(builder, calls(("hire", {})))[0].arun("Go")


async def test_a_cancelled_child_says_so() -> None:
    """9.6.3, 1.2.1: the stop reason user_requested."""
    stops = StoppingHook(lambda state: state.with_stop_signal(StopSignal(StopReason.USER_REQUESTED)))
    state = await run_hire(a_helper(LOOKS).add_hook(stops))
    assert results(state) == ["cancelled: None"]


async def test_a_child_that_a_hook_pauses_has_failed() -> None:
    """1.1.6: it cannot be resumed."""
    state = await run_hire(a_helper(LOOKS).add_hook(StoppingHook(lambda state: state.paused())))
    assert results(state) == [f"failed: {PAUSED}"]


async def test_a_child_that_fails_without_an_error_has_its_stop_reason() -> None:
    """9.6.3, 3.7.1"""
    stops = StoppingHook(lambda state: state.with_stop_signal(StopSignal(StopReason.ERROR, "enough")))
    state = await run_hire(a_helper(LOOKS).add_hook(stops))
    assert results(state) == ["failed: stopped: error"]


async def test_metadata_of_a_spawn_are_the_childs() -> None:
    """9.6.2"""
    seen: list[FrozenDict] = []

    def look(state: AgentState) -> AgentState:
        seen.append(state.metadata)
        return state

    await run_hire(a_helper("Done").add_hook(StoppingHook(look)))
    assert seen == [{"a": 1}]


async def test_an_undefined_agent_is_unknown_in_this_process() -> None:
    """1.1.6: a worker may know it."""
    state = await run_hire(a_helper("Done"), agent="clerk")
    assert results(state)[0].startswith("Error: there is no agent 'clerk' in-process; let the tool bring it")


async def test_a_child_uses_the_preset_of_its_spawn() -> None:
    """9.6.2: as in a durable execution, instead of its agent's own."""
    hand = DefinitionBuilder.base().with_llm_preset("slow").definition()
    builder = AgentBuilder.base().with_tools([HireTool(hand, preset="fast")]).with_max_steps(1)
    builder.with_driver(ToolCallingDriver(ScriptedModel(calls(("hire", {})))))
    models = Presets(slow=ScriptedModel("slowly"), fast=ScriptedModel("quickly"))

    state = await builder.build(models=models).arun("Go")

    assert results(state) == ["completed: quickly"]


async def test_no_hook_is_called_around_the_call_of_a_subagent() -> None:
    """4.5.7: no tool runs; the hooks of the child are called in it."""
    called: list[str] = []

    class Noting(AgentHook):
        def before_tool(self, state: AgentState, call: ToolCall) -> AgentState:
            called.append(call.name)
            return state

    builder = AgentBuilder.base().with_max_steps(1).add_hook(Noting())
    builder.with_tools([HireTool(a_helper(LOOKS, "Done").add_hook(Noting()).definition())])
    await agent_with_model(builder, calls(("hire", {})))[0].arun("Go")

    assert called == ["look"]


async def test_an_exception_in_a_report_is_the_failure_of_the_call() -> None:
    """5.4.3"""
    state = await run_hire(a_helper("Done"), report=RuntimeError("illegible"))
    assert results(state) == ["Error: illegible"]
