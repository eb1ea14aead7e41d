"""An invalid written form of a public type is refused with the missing part."""

import inspect
from typing import Any

import pytest

import everstep
from everstep.agent_domain.errors import InvalidInput

READERS = sorted(name for name in dir(everstep) if hasattr(getattr(everstep, name), "from_dict"))


def test_public_types_have_written_forms() -> None:
    """4.1.7"""
    assert {"AgentState", "AgentStep", "StepError", "StopSignal", "ToolCall"} <= set(READERS)


@pytest.mark.parametrize("name", READERS)
@pytest.mark.parametrize("given", [["x"], "text", 7])
def test_a_value_that_is_no_map_is_refused(name: str, given: Any) -> None:
    """4.1.7"""
    read = getattr(everstep, name).from_dict
    assert inspect.ismethod(read)
    with pytest.raises(InvalidInput, match="map, not"):
        read(given)


@pytest.mark.parametrize("name", READERS)
def test_a_missing_key_is_named(name: str) -> None:
    """4.1.7: unless the empty form is valid."""
    try:
        getattr(everstep, name).from_dict({})
    except InvalidInput as error:
        assert "KeyError" not in str(error)  # noqa: PT017 -- many are read
        assert "'" in str(error)  # noqa: PT017 -- many are read


def test_a_missing_key_is_named_at_every_level() -> None:
    """4.1.7"""
    with pytest.raises(
        InvalidInput, match="the agent state cannot be read: 'steps' cannot be read: 'number'"
    ):
        everstep.AgentState.from_dict({"steps": [{}]})
