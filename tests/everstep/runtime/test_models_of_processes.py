"""The models that a process has by default."""

import pytest

from everstep.agent_domain.agents.builder import DefinitionBuilder
from everstep.runtime import demo_agent
from everstep.runtime.models import demo_warning
from everstep.runtime.settings import Settings


def test_a_script_that_answers_by_default_is_worth_a_warning(monkeypatch: pytest.MonkeyPatch) -> None:
    """18.5.12"""
    for key in ("OPENAI_API_KEY", "ANTHROPIC_API_KEY"):
        monkeypatch.delenv(key, raising=False)
    built_in = {"assistant": demo_agent.DEMO}
    usual = built_in | {"clerk": DefinitionBuilder.base().definition()}
    named = built_in | {"judge": DefinitionBuilder.base().with_model("demo").definition()}

    warning = demo_warning(Settings(), usual | named)

    assert warning
    assert "answers for clerk: set a key, or EVERSTEP_PRESET=demo" in warning
    assert "answers for assistant: " in (demo_warning(Settings(), built_in) or "")
    assert demo_warning(Settings(), named) is None
    assert demo_warning(Settings(preset="demo"), usual) is None
    monkeypatch.setenv("OPENAI_API_KEY", "sk-test")
    assert demo_warning(Settings(), usual) is None
