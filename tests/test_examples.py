"""The README and the examples work as they promise."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from tests.everstep.capabilities.bash.surroundings import need_a_sandbox

ROOT = Path(__file__).parent.parent
TUTORIALS = ROOT / "docs" / "tutorials"
PAGES = (ROOT / "README.md", *sorted(TUTORIALS.glob("*.md")))


def output_of(script: str, *arguments: str) -> str:
    command = [sys.executable, str(ROOT / "examples" / script), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=True, cwd=ROOT)  # noqa: S603 -- our own code
    return done.stdout


def without_times(text: str) -> str:
    return re.sub(r"\[\d+ ms\]", "[… ms]", text)


def test_the_smallest_example_answers() -> None:
    assert "Hello!" in output_of("01_hello.py")


def test_the_first_tutorial_shows_what_the_tools_example_prints() -> None:
    page = (TUTORIALS / "first-agent.md").read_text(encoding="utf-8")
    assert without_times(output_of("02_tools.py")).strip() in without_times(page)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_the_python_of_a_page_runs(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The blocks run in order and share their names; ```python no-run marks a fragment."""
    monkeypatch.chdir(tmp_path)
    names: dict[str, object] = {"__name__": page.stem}
    for block in re.findall(r"```python\n(.*?)```", page.read_text(encoding="utf-8"), re.DOTALL):
        exec(compile(block, str(page), "exec"), names)  # noqa: S102 -- our own pages


def test_a_service_gets_its_result(tmp_path: Path) -> None:
    """8.4.1, 8.5.3: the agent waits for a person, and continues."""
    output = output_of("03_service.py", "--data", str(tmp_path / "data"))

    assert "It is paused, and holds no worker" in output
    assert "It completed after 2 steps: The meeting is arranged." in output


CODING = ROOT / "examples" / "05_coding_agent"


def without_keys() -> dict[str, str]:
    """Remove the provider keys, so that the model is the script."""
    return {name: value for name, value in os.environ.items() if not name.endswith("_API_KEY")}


def test_the_coding_agent_makes_the_tests_pass(tmp_path: Path) -> None:
    """9.1.1, 9.2.4, 9.3.2, 9.5.3, 9.6.1, 10.1.3: its commands, files, subagent and servers are real."""
    need_a_sandbox()
    folder = shutil.copytree(
        CODING, tmp_path / "coding", ignore=shutil.ignore_patterns("workspace", ".everstep")
    )
    done = subprocess.run(  # noqa: S603 -- our own code
        [sys.executable, str(folder / "run.py"), "--data", str(tmp_path / "data")],
        capture_output=True,
        text=True,
        check=False,
        env=without_keys(),
        stdin=subprocess.DEVNULL,
    )
    output = done.stdout
    assert done.returncode == 0, output + done.stderr
    assert done.stderr == ""

    failed, passed = output.index("FAIL: test_units_add_up"), output.index("Ran 3 tests")
    assert failed < passed < output.index("Ran 4 tests")
    assert '-> <skill name="fixing-tests">' in output
    assert "-> [Subagent: reviewer] The sum is right now" in output
    assert "status     completed" in output
    assert "+        total += int(number) * SECONDS[unit]\n" in output
    assert "After 9 steps the tests pass." in output
    assert "total = int(number)" in (folder / "project" / "durations" / "text.py").read_text()


def test_the_script_of_the_coding_agent_fixes_nothing_twice() -> None:
    """9.2.4: on a copy that it has already fixed, its edits find nothing to change."""
    script = yaml.safe_load((CODING / "scenario.yaml").read_text(encoding="utf-8"))
    edits = [
        call["args"]
        for scenario in script["scenarios"]
        for turn in scenario["turns"]
        for call in turn.get("calls", ())
        if call["name"] == "edit_file"
    ]
    files = {edit["path"]: (CODING / "project" / edit["path"]).read_text(encoding="utf-8") for edit in edits}
    for edit in edits:
        assert files[edit["path"]].count(edit["old_string"]) == 1
        files[edit["path"]] = files[edit["path"]].replace(edit["old_string"], edit["new_string"])
    assert len(edits) == 3
    assert not any(edit["old_string"] in files[edit["path"]] for edit in edits)


def test_the_coding_agents_page_shows_its_output(tmp_path: Path, programs: Path) -> None:
    page = (CODING / "README.md").read_text(encoding="utf-8")
    named = set(re.findall(r"^\| `([a-z_./]+)`", page, re.MULTILINE))
    ignored = {"README.md", ".gitignore"}
    assert named == {entry.name + "/" * entry.is_dir() for entry in CODING.iterdir()} - ignored - {
        "workspace/",
        ".everstep/",
    }
    listed = subprocess.run(  # noqa: S603 -- our own code
        [programs / "everstep", "agents"],
        cwd=shutil.copytree(CODING, tmp_path / "coding"),
        env=without_keys(),
        capture_output=True,
        text=True,
        check=True,
    )
    assert listed.stderr == ""
    (shown,) = re.findall(r"```\n\$ everstep agents\n(.*?)```", page, re.DOTALL)
    assert listed.stdout == shown
