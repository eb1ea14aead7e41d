"""The paths of an installation that are closed to its agents."""

from collections.abc import Iterator
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path

import pytest

from everstep.capabilities.protection import current, protect
from everstep.runtime.protection import close_to_agents
from everstep.runtime.settings import Settings

COMPILED = ("__pycache__/my_app.cpython-311.pyc", f"my_app{EXTENSION_SUFFIXES[0]}", "my_app.pyc", "rules.py")


@pytest.fixture(autouse=True)
def again() -> Iterator[None]:
    """Other tests have other installations."""
    yield
    protect()


def test_data_and_agents_are_closed_at_every_location(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """9.1.9: the data folder of this project and of others, and the sources of agents."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    (tmp_path / "defined").mkdir()
    close_to_agents(
        Settings(
            agents=("defined", "my_app.agents:agents"),
            context_policy="rules:Policy",
            data_dir=tmp_path / "data",
        )
    )

    closed, roots = current(), [str(tmp_path)]

    for hidden in ("data/api-secret", "state/everstep/other/api-secret"):
        assert closed.forbids(f"{tmp_path}/{hidden}", roots, write=False), hidden
    for kept in (
        "defined/a.md",
        "my_app/agents.py",
        "my_app/__init__.py",
        "my_app.py",
        "my_app.so",
        *COMPILED,
    ):
        assert closed.forbids(f"{tmp_path}/{kept}", roots, write=True), kept
        assert not closed.forbids(f"{tmp_path}/{kept}", roots, write=False), kept
    assert closed.start_folder == str(tmp_path)
