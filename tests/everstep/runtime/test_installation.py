"""The parts of an installation that settings choose."""

import logging
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import AsyncMock, Mock

import pytest
from temporalio.service import RPCError, RPCStatusCode

from everstep.agent_domain.errors import InvalidInput
from everstep.inference.models import Models
from everstep.inference.presets import Presets
from everstep.runtime import installation as installation_module
from everstep.runtime.data_folder import API_URL_FILE
from everstep.runtime.embedded import search_attributes
from everstep.runtime.installation import Installation, choose_search_attributes, locate_services
from everstep.runtime.settings import Settings

MISSING: Any = None


def test_a_preset_for_titles_without_its_key_stops_no_process(caplog: pytest.LogCaptureFixture) -> None:
    """The sessions then get no titles by a model, and the log says why."""
    models = Models(Presets.read({"fast": {"driver": "openai", "model": "small"}}, {}), {})
    installation = Installation(Settings(), MISSING, MISSING, models, MISSING)
    with caplog.at_level(logging.WARNING):
        assert installation.titles is None
    assert "no model writes titles of sessions" in caplog.text
    assert "OPENAI_API_KEY" in caplog.text


def test_the_pages_of_a_local_installation_are_at_its_api(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """15.6.5: unless the settings name another URL."""
    running = SimpleNamespace(database_url="postgresql://local", temporal_address="local:1", ui_url=None)
    monkeypatch.setattr(installation_module, "find_running", Mock(return_value=running))
    monkeypatch.setattr(installation_module, "find_local_secret", Mock(return_value=None))
    (tmp_path / API_URL_FILE).write_text("http://127.0.0.1:8081\n")

    assert locate_services(Settings(data_dir=tmp_path)).public_url == "http://127.0.0.1:8081"
    named = Settings(data_dir=tmp_path, public_url="https://agents.example")
    assert locate_services(named).public_url == "https://agents.example"


class TestSearchAttributes:
    """15.6.6: a process finds out at its start what the namespace has."""

    @pytest.mark.parametrize(("missing", "are_used"), [((), True), (("EverstepAgent",), False)])
    async def test_executions_get_them_if_the_namespace_has_all(
        self, monkeypatch: pytest.MonkeyPatch, missing: tuple[str, ...], are_used: bool
    ) -> None:
        """15.6.6"""
        monkeypatch.setattr(search_attributes, "find_missing", AsyncMock(return_value=missing))
        chosen = await choose_search_attributes(Settings(), MISSING)
        assert chosen.search_attributes is are_used

    @pytest.mark.parametrize("is_set", [True, False])
    async def test_the_setting_decides_without_a_question(self, is_set: bool) -> None:
        """15.6.6"""
        chosen = await choose_search_attributes(Settings(search_attributes=is_set), MISSING)
        assert chosen.search_attributes is is_set

    async def test_a_server_that_does_not_list_them_prevents_nothing(
        self, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
    ) -> None:
        """15.6.6: the log says why executions get none."""
        refusal = RPCError("not allowed", RPCStatusCode.PERMISSION_DENIED, b"")
        monkeypatch.setattr(search_attributes, "find_missing", AsyncMock(side_effect=refusal))
        with caplog.at_level(logging.WARNING):
            chosen = await choose_search_attributes(Settings(), MISSING)
        assert chosen.search_attributes is False
        assert "Temporal does not list its search attributes: not allowed" in caplog.text


class TestPublicUrl:
    """15.6.5: it has to be usable in a link that everyone sees."""

    @pytest.mark.parametrize(
        ("given", "url"),
        [
            ("https://agents.example", "https://agents.example"),
            ("https://agents.example/", "https://agents.example"),
            ("http://[::1]:8080/here//", "http://[::1]:8080/here"),
            ("https://intra.example:8443/tools/agents/", "https://intra.example:8443/tools/agents"),
        ],
    )
    def test_slashes_at_its_end_are_dropped(self, given: str, url: str) -> None:
        """15.6.5"""
        assert Settings.read(public_url=given).public_url == url

    @pytest.mark.parametrize(
        ("given", "problem"),
        [
            ("agents.example", "it has to be an http or https URL"),
            ("ftp://agents.example", "it has to be an http or https URL"),
            ("https://", "it has to be an http or https URL"),
            ("https://agents.example:port", "it has to be an http or https URL"),
            ("https://agents.example:99999", "it has to be an http or https URL"),
            ("https://agents.example/?a=1", "without a query"),
            ("https://agents.example/#top", "without a query"),
            ("https://agents.example/) [x](javascript:alert", "it has to be an http or https URL"),
            ("https://agents.example/\n- more", "it has to be an http or https URL"),
            ("https://me:secret@agents.example", "must not contain a user or a password"),
        ],
    )
    def test_another_text_is_refused(self, given: str, problem: str) -> None:
        """15.6.5"""
        with pytest.raises(InvalidInput, match=f"public_url.*{problem}") as refused:
            Settings.read(public_url=given)
        assert "secret" not in str(refused.value)
