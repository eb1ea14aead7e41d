"""`docker-compose.yml` and the file of new projects, as compose itself loads them: `make deployment`."""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import pytest
from click.testing import CliRunner

from everstep.cli.main import commands
from tests.deployment.chart import ROOT

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

LIBRARY: Final = "github.com/compose-spec/compose-go/v2/cli@v2.16.2"
"""The part of compose that reads files, for which no container engine is needed. Its own command leaves the
variables of the environment out.
"""


@pytest.fixture(scope="module")
def loader() -> Path:
    """The program, built by Go, which keeps what it has built."""
    go = shutil.which("go")
    if go is None:
        pytest.fail("install Go (https://go.dev): it builds compose's own loader")
    folder = Path(sys.prefix) / "compose_loader"
    folder.mkdir(exist_ok=True)
    shutil.copy(Path(__file__).parent / "compose_loader" / "main.go", folder)
    (folder / "go.mod").write_text("module everstep.test/compose_loader\n")
    for arguments in (("get", LIBRARY), ("build", "-buildvcs=false", "-o", "loader")):
        subprocess.run([go, *arguments], cwd=folder, check=True)  # noqa: S603 -- fixed
    return folder / "loader"


def load(loader: Path, file: Path, **variables: str) -> dict[str, Any]:
    """What compose makes of a file."""
    environment = {"PATH": os.environ["PATH"], "HOME": str(file.parent), **variables}
    loaded = subprocess.run(  # noqa: S603 -- fixed
        [loader, file], cwd=file.parent, env=environment, capture_output=True, check=False
    )
    assert loaded.returncode == 0, loaded.stderr.decode()
    return json.loads(loaded.stdout)


def values(project: Mapping[str, Any], service: str) -> dict[str, str]:
    """The environment of a service."""
    return project["services"][service]["environment"]


def test_compose_loads_the_file_of_the_repository(loader: Path) -> None:
    """18.5.2: references, dependencies and variables resolve."""
    project = load(loader, ROOT / "docker-compose.yml", COMPOSE_PROFILES="monitoring")
    assert {"prometheus", "grafana", "worker", "proxy"} <= project["services"].keys()
    assert values(project, "api")["EVERSTEP_ALLOWED_ORIGINS"] == "http://localhost:8000"
    command = project["services"]["temporal"]["command"][0]
    assert 'POSTGRES_PWD="$(cat /run/secrets/postgres-password)"' in command
    public = load(
        loader,
        ROOT / "docker-compose.yml",
        EVERSTEP_PUBLIC_URL="https://agents.example.com",
        EVERSTEP_ALLOWED_HOSTS="agents.example.com",
        EVERSTEP_IMAGE="registry.example.com/agents:1",
    )
    assert values(public, "gateway")["EVERSTEP_ALLOWED_ORIGINS"] == "https://agents.example.com"
    assert values(public, "api")["EVERSTEP_ALLOWED_HOSTS"].startswith("agents.example.com,10.0.0.0/8")
    assert public["services"]["worker"]["image"] == "registry.example.com/agents:1"


def test_compose_loads_the_file_of_a_new_project(loader: Path, tmp_path: Path) -> None:
    """18.5.2"""
    written = CliRunner().invoke(commands, ["init", str(tmp_path / "desk")])
    assert written.exit_code == 0, written.output
    project = load(loader, tmp_path / "desk" / "compose.yaml")
    assert project["services"]["worker"]["deploy"]["replicas"] == 2
