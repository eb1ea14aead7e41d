"""What a process of agents reports."""

from types import SimpleNamespace
from typing import Any, cast

import pytest

from everstep import AgentBuilder, ScriptedModel, ToolCallingDriver
from everstep.inference.models import Models
from everstep.inference.presets import Presets
from everstep.runtime.agent_process import AgentReport
from everstep.runtime.agents import AgentBook
from everstep.runtime.settings import Settings

SMALL = "local (a small model on this machine, which makes mistakes)"


def desk(name: str) -> AgentBuilder:
    return AgentBuilder.base().with_name(name)


@pytest.mark.parametrize(
    ("agents", "line"),
    [
        ([desk("a"), desk("b").with_model("local")], SMALL),
        (
            [
                desk("a"),
                desk("b").with_driver(ToolCallingDriver(ScriptedModel("Hello."))),
                desk("c").with_model("openai"),
                desk("d").with_model("local", temperature=0.5),
            ],
            f"{SMALL}; other models: b, c, d",
        ),
    ],
)
def test_the_agents_that_do_not_use_the_default_model_are_named(
    agents: list[AgentBuilder], line: str
) -> None:
    """13.7.6"""
    models = Models(Presets.read({}, {}, default="local"), {})
    book = AgentBook([each.definition() for each in agents], models)
    installation = cast("Any", SimpleNamespace(book=book, models=models, settings=Settings()))
    assert AgentReport.of(installation).model == line
