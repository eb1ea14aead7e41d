"""The parts of an installation that settings choose."""

import logging
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest

from everstep.inference.models import Models
from everstep.inference.presets import Presets
from everstep.runtime import installation as installation_module
from everstep.runtime.installation import Installation, locate_services
from everstep.runtime.settings import Settings

MISSING: Any = None


def test_a_preset_for_titles_without_its_key_stops_no_process(caplog: pytest.LogCaptureFixture) -> None:
    """The sessions then get no titles by a model, and the log says why."""
    models = Models(Presets.read({"fast": {"driver": "openai", "model": "small"}}, {}), {})
    installation = Installation(Settings(), MISSING, MISSING, models)
    with caplog.at_level(logging.WARNING):
        assert installation.titles is None
    assert "no model writes titles of sessions" in caplog.text
    assert "OPENAI_API_KEY" in caplog.text


@pytest.mark.parametrize(("address", "are_used"), [(None, True), ("temporal.example:7233", False)])
def test_search_attributes_are_used_on_the_local_server(
    monkeypatch: pytest.MonkeyPatch, address: str | None, are_used: bool
) -> None:
    running = SimpleNamespace(database_url="postgresql://local", temporal_address="local:1", ui_url=None)
    monkeypatch.setattr(installation_module, "find_running", Mock(return_value=running))
    monkeypatch.setattr(installation_module, "find_local_secret", Mock(return_value=None))
    assert locate_services(Settings(temporal_address=address)).search_attributes is are_used
