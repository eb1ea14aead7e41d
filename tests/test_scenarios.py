"""Every shell of the loop comes to the same decisions."""

from dataclasses import replace

import pytest

from everstep.agent_domain.agents.drivers import Model, ToolCallingDriver
from everstep.agent_domain.agents.plan import REGISTERED
from everstep.agent_domain.errors import ToolFailed
from everstep.agent_domain.explanation.states import explain_state
from everstep.agent_domain.loop.explanations import explain_end
from everstep.agent_domain.loop.loop import Decision
from everstep.agent_domain.loop.usage import Usage
from everstep.agent_domain.state.events import ContinuationEvaluated, Event, EventBus
from everstep.agent_domain.state.state import AgentState
from everstep.agent_domain.state.steps import InferenceResponse
from everstep.agent_domain.testing import MockTool, ScriptedModel, calls
from everstep.agent_domain.tools.inquiry import ModelChoice
from everstep.agent_domain.tools.tools import ToolCall
from everstep.agent_domain.values import EMPTY, FrozenDict
from everstep.local.runner import LocalRunner
from everstep.runtime.agents import AgentBook
from everstep.runtime.builder import AgentBuilder
from tests.scenarios import SCENARIOS, Scenario, Turn, describe, drive


def fails(**_args: object) -> None:
    raise ToolFailed("it does not work")


def response(turn: Turn) -> InferenceResponse | Exception:
    calls = tuple(ToolCall(f"call-{index}", name) for index, name in enumerate(turn.calls))
    usage = Usage(output=turn.tokens)
    return turn.raises or InferenceResponse("" if calls else "Done", calls, turn.finish_reason, usage)


async def run_locally(scenario: Scenario) -> tuple[AgentState, list[str]]:
    """The scenario with real tools, a real driver and a scripted model.

    The model is called once for each step, as in the workflow's shell: the table has no attempts below the
    loop.
    """
    decisions: list[Decision] = []
    builder = AgentBuilder.new().with_driver(ToolCallingDriver(ScriptedModel(*map(response, scenario.turns))))
    builder.with_tools([MockTool("look"), MockTool("listen"), MockTool("bad", handler=fails)])
    builder.add_continuation_criteria(*map(REGISTERED.build, scenario.plan.criteria))
    plan = scenario.plan.model_copy(update={"model_attempts": 1})
    definition = replace(builder.definition(), base_plan=plan)
    state = await LocalRunner(definition, on_decision=decisions.append).run(
        AgentState.empty().with_messages("Go")
    )
    return state, [describe(decision) for decision in decisions]


@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: scenario.name)
async def test_the_in_process_runner_decides_as_the_table_says(scenario: Scenario) -> None:
    """1.1.6: the loop runs in-process under the same rules."""
    state, decisions = await run_locally(scenario)

    assert decisions == list(scenario.decisions)
    assert (state.status, state.last_outcome and state.last_outcome.stop_reason) == (
        scenario.status,
        scenario.reason,
    )


@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: scenario.name)
def test_bare_facts_decide_as_the_table_says(scenario: Scenario) -> None:
    """1.1.2: every decision is a function of recorded facts alone."""
    decisions: list[Decision] = []

    facts = drive(scenario, decisions.append)

    assert [describe(decision) for decision in decisions] == list(scenario.decisions)
    assert (facts.status, facts.last_outcome and facts.last_outcome.stop_reason) == (
        scenario.status,
        scenario.reason,
    )


@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: scenario.name)
async def test_full_state_and_bare_facts_count_the_same(scenario: Scenario) -> None:
    """1.1.2: the bodies beside the facts do not change them."""
    state, _ = await run_locally(scenario)
    facts = drive(scenario, lambda _decision: None)

    assert state.step_count == facts.step_count
    assert state.usage == facts.usage
    assert state.trailing_failures == facts.trailing_failures
    assert state.facts.total_failures == facts.total_failures


@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: scenario.name)
async def test_a_run_in_this_process_says_why_it_ended(scenario: Scenario) -> None:
    """15.1.1: the sentence of the table, from the state alone."""
    state, _ = await run_locally(scenario)

    assert explain_state(state).sentence == scenario.because
    assert explain_state(AgentState.from_dict(state.to_dict())).sentence == scenario.because


async def test_each_evaluation_of_a_run_says_why_another_step_follows_or_none() -> None:
    """15.1.1: listeners in this process receive the sentence with the votes."""
    heard = list[Event]()
    builder = AgentBuilder.new().with_driver(ToolCallingDriver(ScriptedModel(calls(("look", {})), "Done")))
    definition = builder.with_tools([MockTool("look")]).definition()

    await LocalRunner(definition, events=EventBus([heard.append])).run(AgentState.empty().with_messages("Go"))

    evaluations = [event for event in heard if isinstance(event, ContinuationEvaluated)]
    assert [event.to_dict()["because"] for event in evaluations] == [
        "went on: the model called 1 tool: look",
        "completed: the model answered without calling tools",
    ]


@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: scenario.name)
def test_facts_alone_say_why_an_execution_ended(scenario: Scenario) -> None:
    """15.1.2: without the texts of errors, which facts do not have."""
    facts = drive(scenario, lambda _decision: None)

    assert facts.last_outcome
    assert explain_end(facts.last_outcome, facts) == (scenario.because_of_facts or scenario.because)


class NamedModels:
    """Models that answer with the choice by which they were found."""

    def __init__(self) -> None:
        self.choices: list[ModelChoice] = []

    def model(self, choice: ModelChoice = None, /) -> Model:
        self.choices.append(choice)
        return ScriptedModel("Done")


MODEL_CHOICES: list[tuple[str | None, FrozenDict, ModelChoice]] = [
    (None, EMPTY, None),
    ("fast", EMPTY, "fast"),
    (None, FrozenDict({"temperature": 0}), {"temperature": 0}),
    ("fast", FrozenDict({"temperature": 0}), {"temperature": 0}),
]
"""The preset and the settings of an agent, and what each shell asks."""


@pytest.mark.parametrize(("preset", "settings", "chosen"), MODEL_CHOICES)
async def test_every_shell_asks_the_same_model(
    preset: str | None, settings: FrozenDict, chosen: ModelChoice
) -> None:
    """11.7, 1.1.6: settings come before a preset, and the choice of an execution before both."""
    definition = AgentBuilder.base().with_name("agent").definition()
    definition = replace(definition, llm_preset=preset, model_settings=settings)
    here, worker = NamedModels(), NamedModels()
    book = AgentBook([definition], worker)

    await LocalRunner(definition, models=here.model).run(AgentState.empty().with_messages("Go"))
    book.driver("agent", definition.spec().llm_preset)
    book.model("agent")

    assert {*map(str, here.choices), *map(str, worker.choices)} == {str(chosen or None)}
    assert definition.spec("slow").llm_preset == "slow"
    book.driver("agent", "slow")
    assert worker.choices[-1] == "slow"
