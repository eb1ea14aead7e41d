"""The public names, used the way a newcomer does without reading the source."""

import inspect
import typing
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast
from uuid import UUID, uuid4

import pytest
from pydantic import BaseModel

import everstep
from everstep import (
    REGISTERED,
    AgentBuilder,
    AgentContractRegistry,
    AgentEventEnvelopeAdapter,
    AgentFactory,
    AgentSpec,
    AgentState,
    AgentStatus,
    BaseTool,
    BashPolicy,
    BashTool,
    CumulativeExecutionTimeLimit,
    EditFileTool,
    Envelope,
    ErrorContext,
    ErrorPolicy,
    ErrorPolicyCriterion,
    ErrorType,
    Event,
    ExecutionPolicy,
    Failure,
    InvalidInput,
    ListDirTool,
    LoadSkillTool,
    Models,
    Presets,
    ReadFileTool,
    SchemaRegistry,
    Script,
    ScriptedModel,
    SearchFilesTool,
    SkillLibrary,
    Success,
    ToolCallingDriver,
    ToolContext,
    UnknownName,
    UseStructuredOutputs,
    WriteFileTool,
    calls,
)
from everstep.agent_domain.values import freeze

CONTEXT = ToolContext(uuid4(), "call", 1)


class Lead(BaseModel):
    """A customer who may buy."""

    name: str


class Shout(BaseTool):
    """Say something louder."""

    def __call__(self, text: str) -> str:
        """Shout it."""
        return text.upper()


# Schemas.


def test_a_schema_registry_begins_empty_and_schemas_are_added_one_by_one() -> None:
    """9.8.1"""
    registry = SchemaRegistry()
    assert (registry.names, registry.has("lead")) == ((), False)

    assert registry.register("lead", Lead).register("price", float) is registry
    assert registry.names == ("lead", "price")
    assert registry.get("lead").class_ is Lead
    assert repr(registry) == "<SchemaRegistry lead, price>"
    with pytest.raises(UnknownName, match="Choose from: lead, price"):
        registry.get("offer")
    with pytest.raises(InvalidInput, match="blank name"):
        registry.register(" ", Lead)


def test_a_schema_that_is_registered_later_changes_no_existing_agent() -> None:
    registry = SchemaRegistry().register("lead", Lead)
    agent = AgentBuilder.base().with_capability(UseStructuredOutputs(registry)).definition()
    registry.register("price", float)

    schema = agent.tools.get("extract_data").schema
    assert schema["properties"]["schema"]["enum"] == ["lead"]


# Tools.


def test_a_tool_gets_its_name_and_description_when_it_is_created() -> None:
    tool = Shout(name="shout", description="Say it in capitals.")
    assert (tool.name, tool.to_tool_schema()["function"]["description"]) == ("shout", "Say it in capitals.")
    assert tool.call({"text": "hi"}, CONTEXT) == "HI"

    assert Shout().name == "Shout"
    assert Shout().to_tool_schema()["function"]["description"] == "Say something louder."


def test_an_incomplete_tool_raises_with_what_it_lacks() -> None:
    tool = BaseTool(name="shout", description="Say it in capitals.")
    with pytest.raises(InvalidInput, match="BaseTool has no __call__"):
        tool.call({}, CONTEXT)
    with pytest.raises(InvalidInput, match="is not a tool name"):
        Shout(name="shout it")


@pytest.mark.parametrize("kind", [ReadFileTool, WriteFileTool, EditFileTool, SearchFilesTool, ListDirTool])
def test_every_file_tool_is_created_for_a_directory_or_a_policy(kind: Any, tmp_path: Path) -> None:
    """9.2.1"""
    (tmp_path / "base").mkdir()
    (tmp_path / "base" / "a.md").write_text("one\n")
    args = {
        ReadFileTool: {"path": "a.md"},
        WriteFileTool: {"path": "b.md", "content": "two"},
        EditFileTool: {"path": "a.md", "old_string": "one", "new_string": "two"},
        SearchFilesTool: {"pattern": "a.md"},
        ListDirTool: {"path": "."},
    }[kind]

    policy = ExecutionPolicy.in_dir(tmp_path / "base")
    results = [
        tool.call(dict(args), CONTEXT)
        for tool in (kind.in_directory(tmp_path / "base"), kind.with_policy(policy))
    ]
    assert all(isinstance(result, str) for result in results)
    assert not results[0].startswith("Error")


def test_a_policy_extends_the_paths_that_a_file_tool_reads(tmp_path: Path) -> None:
    """9.2.1"""
    for name in ("base", "more"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "a.md").write_text(name)
    policy = ExecutionPolicy.in_dir(tmp_path / "base").with_readable_paths(tmp_path / "more")

    outside = {"path": str(tmp_path / "more" / "a.md")}
    assert "more" in ReadFileTool.with_policy(policy).call(outside, CONTEXT)
    refused = ReadFileTool.in_directory(tmp_path / "base").call(outside, CONTEXT)
    assert refused == "Error: Path is outside the allowed directory"


def test_the_skill_tool_is_created_for_a_library(tmp_path: Path) -> None:
    """9.5.3"""
    (tmp_path / "greet.md").write_text("---\nname: greet\ndescription: Greets\n---\nSay hello.")
    tool = LoadSkillTool.with_library(SkillLibrary(tmp_path))
    assert "Say hello." in tool.call({"skill_name": "greet"}, CONTEXT)


def test_the_bash_tool_has_the_options_of_its_capability(tmp_path: Path) -> None:
    """9.1.1"""
    tool = BashTool(base_dir=tmp_path, timeout=7, output_policy=BashPolicy(10, 4, 6))
    assert (tool.policy.base_dir, tool.policy.timeout) == (str(tmp_path), 7)
    assert tool.output_policy == BashPolicy(10, 4, 6)

    assert BashTool().policy.timeout == 120
    assert BashTool.in_directory(tmp_path).policy.base_dir == str(tmp_path)
    policy = ExecutionPolicy.in_dir(tmp_path)
    assert BashTool.with_policy(policy).policy == policy


# Envelopes and events.


class Inbox:
    """A broadcaster that reads envelopes as dictionaries."""

    def __init__(self) -> None:
        self.types = list[str]()
        self.envelopes = list[Envelope]()
        self.channels = set[str]()

    def broadcast(self, channel: str, envelope: Envelope) -> None:
        """Store the envelope."""
        self.channels.add(channel)
        self.envelopes.append(envelope)
        self.types.append(envelope["type"])


def test_an_adapter_accepts_the_ids_of_an_application() -> None:
    """7.1.2"""
    inbox = Inbox()
    adapter = AgentEventEnvelopeAdapter(inbox, "session-1", "run-7")
    agent = AgentBuilder.base().with_driver(ToolCallingDriver(ScriptedModel("Hello."))).build()
    agent.wiretap(adapter.wiretap()).run("Hi")

    assert inbox.channels == {"agent.session-1"}
    assert inbox.types[0] == "agent.status"
    assert inbox.types[-1] == "agent.status"
    last = inbox.envelopes[-1]
    assert (last["session_id"], last["execution_id"]) == ("session-1", "run-7")
    assert last["payload"]["status"] == "completed"
    assert dict(last) == last.to_dict()
    assert len({envelope.id for envelope in inbox.envelopes}) == len(inbox.envelopes)
    with pytest.raises(KeyError):
        last["colour"]


@pytest.mark.parametrize("bad", ["", "  ", 7, None, "x" * 201])
def test_an_invalid_id_is_refused_by_its_name(bad: Any) -> None:
    with pytest.raises(InvalidInput, match="execution_id is"):
        AgentEventEnvelopeAdapter(Inbox(), None, bad)


def test_an_event_gives_its_payload() -> None:
    """4.6.1"""
    events = list[Event]()
    agent = AgentBuilder.base().with_driver(ToolCallingDriver(ScriptedModel("Hello."))).build()
    agent.wiretap(events.append).run("Hi")

    assert events[0].payload()["stepNumber"] == 1
    assert [event.payload() for event in events] == [event.to_dict() for event in events]


# Criteria and policies.


def test_a_cumulative_limit_takes_a_function_like_the_other_limits() -> None:
    """2.5.2"""
    limit = CumulativeExecutionTimeLimit(10, lambda state: 11.0)
    assert limit.decide(AgentState.empty()) == "forbid"
    assert CumulativeExecutionTimeLimit(10, lambda state: 9.0).decide(AgentState.empty()) == "allow"
    assert CumulativeExecutionTimeLimit(10, "session").scope == "session"
    assert limit.scope == "execution"


class AlwaysBroken:
    """Finds a failed tool in any state."""

    def resolve(self, state: Any) -> ErrorContext:
        """One failure of `pay`."""
        return ErrorContext(ErrorType.TOOL, 1, 1, "no money", "pay", freeze({"status": 402}))


def test_an_error_policy_uses_the_errors_of_a_resolver() -> None:
    """3.4.1"""
    criterion = ErrorPolicyCriterion(ErrorPolicy.stop_on_any_error(), AlwaysBroken())
    vote = criterion.explain(AgentState.empty())
    assert (criterion.decide(AgentState.empty()), vote.decision) == ("forbid", "forbid")
    assert vote.context["toolName"] == "pay"
    assert ErrorPolicyCriterion(ErrorPolicy.stop_on_any_error()).decide(AgentState.empty()) == "allow"

    by_keyword = ErrorPolicyCriterion(policy=ErrorPolicy.retry_all(1), context_resolver=AlwaysBroken())
    assert by_keyword.decide(AgentState.empty()) == "forbid"
    with pytest.raises(InvalidInput, match=r"pass an object with resolve\(state\)"):
        ErrorPolicyCriterion(ErrorPolicy(), "resolver")  # type: ignore[arg-type]
    with pytest.raises(InvalidInput, match="in-process only"):
        REGISTERED.ref(criterion)


def test_an_error_context_can_be_serialised() -> None:
    """3.1.2"""
    assert AlwaysBroken().resolve(None).to_dict() == {
        "type": "tool",
        "consecutiveFailures": 1,
        "totalFailures": 1,
        "message": "no money",
        "toolName": "pay",
        "metadata": {"status": 402},
    }


# State.


def test_a_state_has_its_creation_time() -> None:
    """2.7"""
    assert AgentState.empty().started_at is None
    agent = AgentBuilder.base().with_driver(ToolCallingDriver(ScriptedModel("Hello."))).build()
    state = agent.run("Hi")
    assert state.started_at == state.state_info.started_at
    assert state.started_at is not None


def test_a_state_fails_with_only_an_error() -> None:
    """4.1.3"""
    state = AgentState.empty().fail_with(ValueError("no money"))
    assert (state.status, state.step_count) == (AgentStatus.FAILED, 1)
    assert state.current_step is not None
    assert state.current_step.errors[0].message == "no money"
    assert AgentState.from_dict(state.to_dict()).step_count == 1

    agent = AgentBuilder.base().with_driver(ToolCallingDriver(ScriptedModel("Hello."))).build()
    ended = agent.run("Hi")
    failed = ended.fail_with(ValueError("too late"))
    assert failed.step_count == ended.step_count + 1
    assert failed.steps[-1].created_at >= ended.steps[-1].created_at


def _leaves(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    if path:
        yield path
    if isinstance(value, dict):
        for key, each in cast("dict[str, Any]", value).items():
            yield from _leaves(each, (*path, key))
    elif isinstance(value, list) and value:
        yield from _leaves(value[0], (*path, 0))


def _with_value(value: Any, path: tuple[Any, ...], new: Any) -> Any:
    head, *rest = path
    inner = new if not rest else _with_value(value[head], tuple(rest), new)
    if isinstance(value, list):
        return [inner, *cast("list[Any]", value)[1:]]
    return {**value, head: inner}


@pytest.mark.parametrize("wrong", [None, "no money", ValueError])
def test_a_state_fails_with_an_exception_or_its_stored_form(wrong: Any) -> None:
    kept = everstep.StepError("no money")
    assert AgentState.empty().fail_with(kept).steps[-1].errors == (kept,)
    with pytest.raises(InvalidInput, match=r"fail_with was given .*; pass an exception"):
        AgentState.empty().fail_with(wrong)


class _AsyncBroadcaster:
    async def broadcast(self, channel: str, envelope: Envelope) -> None:
        """Would never be awaited."""


@pytest.mark.parametrize(
    ("wrong", "words"), [(_AsyncBroadcaster(), "cannot be awaited"), (object(), "has none"), (None, "none")]
)
def test_a_broadcaster_that_would_lose_envelopes_is_refused(wrong: Any, words: str) -> None:
    """7.1.2"""
    with pytest.raises(InvalidInput, match=words):
        AgentEventEnvelopeAdapter(wrong, "chat-7", "run-1")


def test_an_unreadable_state_names_the_key() -> None:
    """4.1.7"""
    with pytest.raises(InvalidInput, match="agentId is 'agent-1'; pass a UUID"):
        AgentState.from_dict({"agentId": "agent-1"})

    model = ScriptedModel(calls(("shout", {"text": "hi"})), "Done.")
    builder = AgentBuilder.base().with_tools([Shout(name="shout")]).with_driver(ToolCallingDriver(model))
    written = builder.build().run("Hi").to_dict()
    unnamed = list[str]()
    for path in _leaves(written):
        for bad in ("nonsense", 7, ["x"], {"a": 1}, True, -1.5):
            try:
                AgentState.from_dict(_with_value(written, path, bad))
            except InvalidInput as error:
                names = [str(part) for part in path if isinstance(part, str)]
                if not any(name in str(error) for name in names):
                    unnamed.append(f"{'.'.join(map(str, path))} = {bad!r}: {error}")
    assert not unnamed, "\n".join(unnamed)


# Agents and builders.


def test_agents_and_builders_have_a_repr() -> None:
    builder = AgentBuilder.base().with_name("clerk", "Answers letters").with_tools([Shout(name="shout")])
    assert repr(builder) == "<AgentBuilder 'clerk': tools shout, capabilities none>"
    agent = builder.with_driver(ToolCallingDriver(ScriptedModel("Hi"))).build()
    assert repr(agent) == "<Agent 'clerk': Answers letters; tools shout>"


@pytest.mark.parametrize("method", ["with_max_steps", "with_max_tokens"])
def test_a_negative_limit_is_refused_when_it_is_set(method: str) -> None:
    """2.5.2"""
    with pytest.raises(InvalidInput, match=f"{method} was given -1; pass 0 or more"):
        getattr(AgentBuilder.base(), method)(-1)
    for bad in (1.5, "3", True):
        with pytest.raises(InvalidInput, match="pass a whole number"):
            getattr(AgentBuilder.base(), method)(bad)


def test_zero_steps_execute_nothing() -> None:
    """2.6.1"""
    model = ScriptedModel("Hello.")
    state = AgentBuilder.base().with_max_steps(0).with_driver(ToolCallingDriver(model)).build().run("Hi")
    assert (state.step_count, state.status) == (0, AgentStatus.COMPLETED)


@pytest.mark.parametrize("seconds", [0, -1, 0.0])
def test_a_time_limit_of_zero_is_refused_when_it_is_set(seconds: float) -> None:
    """2.5.2"""
    for method in ("with_timeout", "with_cumulative_timeout"):
        with pytest.raises(ValueError, match="Max seconds must be greater than zero"):
            getattr(AgentBuilder.base(), method)(seconds)


def test_a_model_is_not_a_driver_and_the_error_says_what_is() -> None:
    with pytest.raises(InvalidInput, match="a ScriptedModel is a model; pass it to with_model"):
        AgentBuilder.base().with_driver(ScriptedModel("Hi"))  # type: ignore[arg-type]


class GreeterFactory:
    """An application's factory."""

    def create(self, name: str, config: Any = None) -> Any:
        """One agent, or a failure."""
        return Failure(InvalidInput(f"no {name}")) if name != "greeter" else Success(object())


def test_a_factory_is_any_object_that_creates_agents_by_name() -> None:
    """10.3.2"""

    class Careful(AgentFactory):
        def create(self, name: str, config: Any = None) -> Any:
            return GreeterFactory().create(name, config)

    assert isinstance(GreeterFactory(), AgentFactory)
    assert isinstance(AgentContractRegistry(), AgentFactory)
    assert isinstance(Careful().create("greeter"), Success)
    assert not isinstance(object(), AgentFactory)


def test_an_agent_in_markdown_needs_no_yaml_parser() -> None:
    """10.1.2"""
    spec = AgentSpec.from_markdown("---\nname: a\ndescription: b\ntools: [x, y]\n---\nBe brief.")
    assert (spec.name, list(spec.tools or ()), spec.system_prompt) == ("a", ["x", "y"], "Be brief.")


def test_models_of_an_application_are_built_from_public_names(tmp_path: Path) -> None:
    scripted = tmp_path / "script.yaml"
    scripted.write_text("scenarios:\n- turns: [{text: Hello.}]\n")
    presets = Presets.read({"demo": {"driver": "scripted", "scenario": str(scripted)}}, {})
    assert "demo" in presets.names
    assert Models(presets, {}).model("demo") is not None
    assert Script.of("Hello.") is not None


# Exports.

NAMES: list[str] = vars(everstep)["__all__"]
OURS = ("everstep",)

NOT_FOR_APPLICATIONS = {
    # The base classes of exported classes.
    "everstep.agent_domain.agents.registry.AgentSpecRegistry",
    "everstep.agent_domain.agents.builder.DefinitionBuilder",
    # Structural types of one parameter, which the exported classes satisfy.
    "everstep.capabilities.mcp.TakesToolsets",
    "everstep.capabilities.subagents.SkillSource",
    # Collects what `ToolContext.attach` returns; tests of tools read it from the execution of the call.
    "everstep.agent_domain.tools.artifacts.Artifacts",
    # A what-if reads from the store of its client, and keeps the records that it needs to itself.
    "everstep.agent_domain.storage.recorded_executions.RecordedExecution",
    "everstep.agent_domain.storage.recorded_executions.RecordedExecutions",
    "everstep.agent_domain.what_if.family.Families",
    # Limits that the processes of an installation share.
    "everstep.inference.call_gates.CallGate",
    # A runner makes its own, and an installation finds its own local model.
    "everstep.local.local_budgets.LocalBudgets",
    "everstep.inference.local_endpoint.LocalEndpoint",
    # How a stream waits between connections; our own tests replace it.
    "everstep.streams.backoff.ClientTimings",
    # Sessions, workers and the reconciler start stored executions with a client; applications call `start`.
    "everstep.agent_domain.storage.sessions.ExecutionLaunch",
    "everstep.agent_domain.storage.sessions.Settled",
    "everstep.client.current_limits.CurrentLimits",
    "everstep.client.fair_dispatch.FairDispatch",
    # Our own tests end a client in the middle of a request here.
    "everstep.activities.failpoints.Failpoint",
}


def _types_in(hint: Any) -> Iterator[type]:
    if isinstance(hint, type):
        yield hint
    for argument in (*typing.get_args(hint), typing.get_origin(hint)):
        parts = cast("list[Any]", argument) if isinstance(argument, list) else [argument]
        for part in parts:
            if part is not None:
                yield from _types_in(part)


def _signatures(value: Any) -> Iterator[Any]:
    """Objects with type hints: a function, or the public methods and properties of a class."""
    if not inspect.isclass(value):
        yield from [value] if inspect.isfunction(value) else []
        return
    # The methods of a port are for authors of a store.
    if getattr(value, "_is_protocol", False) and value.__module__.startswith(
        "everstep.agent_domain.storage."
    ):
        return
    yield value.__init__
    for name, member in vars(value).items():
        if not name.startswith("_"):
            function = getattr(member, "fget", None) or getattr(member, "func", None) or member
            function = getattr(function, "__func__", function)
            if inspect.isfunction(function):
                yield function


def test_types_of_exported_functions_are_exported() -> None:
    exported = {name: getattr(everstep, name) for name in NAMES}
    known = set(map(id, exported.values()))
    missing = set[str]()
    for name, value in exported.items():
        for function in _signatures(value):
            hints = typing.get_type_hints(function, localns={"Client": everstep.Client})
            for kind in (kind for hint in hints.values() for kind in _types_in(hint)):
                label = f"{kind.__module__}.{kind.__qualname__}"
                is_ours = kind.__module__.split(".")[0] in OURS and not kind.__name__.startswith("_")
                if is_ours and id(kind) not in known and label not in NOT_FOR_APPLICATIONS:
                    missing.add(f"{label}, from {name}")
    assert not missing, "\n".join(sorted(missing))


EXPECTED = """
ErrorContext StepError StateInfo ExecutionStatus MessageRole Clock SessionStatus
ScenarioModel Script Models Presets
"""


@pytest.mark.parametrize("name", EXPECTED.split())
def test_a_type_that_applications_name_is_exported(name: str) -> None:
    assert name in NAMES
    assert getattr(everstep, name) is not None


def test_ids_of_everstep_stay_uuids() -> None:
    """7.1.1"""
    execution = uuid4()
    inbox = Inbox()
    adapter = AgentEventEnvelopeAdapter(inbox, None, str(execution))
    adapter.on_agent_status_changed("paused")
    assert inbox.envelopes[0].execution_id == execution
    assert isinstance(inbox.envelopes[0].execution_id, UUID)
    assert inbox.channels == {f"agent.execution.{execution}"}
