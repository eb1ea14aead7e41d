"""`everstep init` writes a project, and never writes over one."""

import re
import sys
import tomllib
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import yaml
from click.testing import CliRunner, Result

from everstep.cli.init import FILES
from everstep.cli.main import commands


def init(*arguments: str) -> Result:
    return CliRunner().invoke(commands, ["init", *arguments], prog_name="everstep")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_a_project_is_written_into_a_new_folder(folder: Path) -> None:
    """13.6.1"""
    result = init("desk/of mine")

    assert result.exit_code == 0, result.output
    project = folder / "desk" / "of mine"
    assert {path.name for path in project.iterdir()} == {*FILES}
    assert "  cd 'desk/of mine'\n" in result.output
    assert all(f"  {name} " in result.output for name in FILES)
    assert all(len(line) <= 100 for line in result.output.splitlines() if str(project) not in line)
    assert not any(re.search("@[A-Z_]+@", (project / name).read_text()) for name in FILES)
    assert ".env" in (project / ".gitignore").read_text().splitlines()
    settings = tomllib.loads((project / "everstep.toml").read_text())
    assert settings == {"agents": ["agents:agents"], "presets": {"demo": {"scenario": "demo.yaml"}}}


def test_a_project_is_written_beside_other_files(folder: Path) -> None:
    """13.6.1"""
    (folder / ".venv").mkdir()
    (folder / "notes.txt").write_text("mine")

    result = init()

    assert result.exit_code == 0, result.output
    assert "\n  cd " not in result.output
    assert {path.name for path in folder.iterdir()} == {*FILES, ".venv", "notes.txt"}


def test_the_agent_asks_the_model_that_is_named_and_its_tests_ask_none(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """13.6.1"""
    result = init("--model", "openai-chat:qwen3@http://127.0.0.1:9/v1")

    assert result.exit_code == 0, result.output
    assert {path.name for path in folder.iterdir()} == {*FILES} - {"demo.yaml"}
    module = ModuleType("agents")
    exec((folder / "agents.py").read_text(), vars(module))  # noqa: S102 -- our own template
    [agent] = vars(module)["agents"]
    assert agent.definition().llm_preset == "openai-chat:qwen3@http://127.0.0.1:9/v1"
    assert "`openai-chat:qwen3@http://127.0.0.1:9/v1`" in (folder / "README.md").read_text()
    assert "demo" not in (folder / "README.md").read_text()
    monkeypatch.setitem(sys.modules, "agents", module)
    tests: dict[str, Any] = {}
    exec((folder / "test_agents.py").read_text(), tests)  # noqa: S102 -- our own template
    for name in [name for name in tests if name.startswith("test_")]:
        tests[name]()


@pytest.mark.parametrize(
    ("model", "problem"),
    [
        ("opnai:gpt-5.5", "No preset or driver named 'opnai'."),
        ("openai:", "'openai:' names no model"),
        ("", "No preset named ''"),
    ],
)
def test_a_model_that_cannot_be_used_is_refused_before_anything_is_written(
    folder: Path, model: str, problem: str
) -> None:
    """13.6.1"""
    result = init("--model", model)

    assert result.exit_code == 1
    assert problem in result.output
    assert list(folder.iterdir()) == []


def test_nothing_is_overwritten(folder: Path) -> None:
    """13.6.1"""
    (folder / "agents.py").write_text("mine")
    # A link that leads nowhere would be written through.
    (folder / "README.md").symlink_to(folder / "nothing")

    result = init()

    assert result.exit_code == 1
    assert f"{folder} has these files already: agents.py, README.md. Move them away, or" in result.output
    assert {path.name for path in folder.iterdir()} == {"agents.py", "README.md"}
    assert (folder / "agents.py").read_text() == "mine"
    assert "agents.py is not a folder; name another one: everstep init PATH" in init("agents.py").output


def test_the_readme_names_each_file_that_a_reader_edits(folder: Path) -> None:
    init()
    readme = (folder / "README.md").read_text()

    assert [name for name in FILES if f"`{name}`" not in readme] == [
        ".env.example",
        ".gitignore",
        "README.md",
    ]
    assert ".env.example" in readme


def test_containers_get_no_secret_by_default(folder: Path) -> None:
    """13.5.2"""
    init()
    compose = yaml.safe_load((folder / "compose.yaml").read_text())
    example = (folder / ".env.example").read_text()

    assert all(line.startswith("#") for line in example.splitlines() if line)
    assert {each["file"].partition("/")[0] for each in compose["secrets"].values()} == {
        "${EVERSTEP_SECRETS:-."
    }
    assert {"secrets/", "everstep.env"} <= {*(folder / ".gitignore").read_text().splitlines()}
    assert compose["services"]["worker"]["build"]["dockerfile_inline"].count("COPY") == 1
