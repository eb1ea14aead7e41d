"""The agent, the test and the failure that docs/run-to-test.md shows are those of a recorded run."""

import json
import os
import re
import sys
from pathlib import Path

import pytest

from everstep.client.run_exports import test_files as files_of_test
from everstep.runtime.replay.record_files import read_record
from everstep.testing import RunDiffers, replay
from tests.everstep.runtime.replay.shop import RUN, a_desk

pytest_plugins = ["pytester"]

PAGE = (Path(__file__).parents[3] / "docs" / "run-to-test.md").read_text(encoding="utf-8")
AGENT = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)[0]
CALLS = re.findall(r"```python no-run\n(.*?)```", PAGE, re.DOTALL)[0]
SHOWN = re.findall(r"```text\n(.*?)```", PAGE, re.DOTALL)


@pytest.fixture
def project(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The project of the page, with the run exported."""
    for name in [name for name in os.environ if name.startswith("EVERSTEP_")]:
        monkeypatch.delenv(name)
    (pytester.path / "shop.py").write_text(AGENT)
    (pytester.path / "everstep.toml").write_text('agents = ["shop:agents"]')
    (pytester.path / "tests" / "runs").mkdir(parents=True)
    for name, text in files_of_test(read_record(RUN)).items():
        (pytester.path / "tests" / "runs" / name).write_text(text)
    return pytester.path


def test_the_test_passes_fails_and_is_recorded_again(
    project: Path, pytester: pytest.Pytester, interpreter: Path
) -> None:
    """15.3.1, 15.3.3, 15.3.5: in a process of its own, without a server."""
    # A tool of this repository, whose import takes longer than the runs; other projects do not have it.
    without = ("-p", "no:schemathesis")
    command = (interpreter, "-m", "pytest", "-q", "-p", "no:cacheprovider", *without, "tests/runs")
    pytester.run(*command).assert_outcomes(passed=1)
    (project / "shop.py").write_text(
        AGENT.replace("    .with_approval", "    .with_max_steps(1)\n    .with_approval")
    )
    failed = pytester.run(*command)
    failed.assert_outcomes(failed=1)
    failed.stdout.fnmatch_lines(["*max_steps: 20 -> 1", "*stops: steps_limit, decided by StepsLimit"])
    pytester.run(*command, "--everstep-record").assert_outcomes(passed=1)
    pytester.run(*command).assert_outcomes(passed=1)


def test_the_table_of_the_page_is_that_of_the_command(project: Path, pytester: pytest.Pytester) -> None:
    """15.3.10"""
    del project
    shown = pytester.run(Path(sys.executable).parent / "everstep", "eval", "tests/runs")
    assert f"{shown.stdout}\n" == SHOWN[2]


def test_the_failure_of_the_page_is_what_a_changed_agent_shows() -> None:
    """15.3.3"""
    with pytest.raises(RunDiffers) as raised:
        replay(RUN, agents=[a_desk("You help the customers of a shop. Be brief.").with_max_steps(1)])
    assert f"{raised.value}\n" == SHOWN[1]


def test_the_calls_of_the_page_are_those_of_the_run() -> None:
    """15.3.2"""
    run = replay(RUN, agents=[a_desk()])
    for text in (*run.calls, run.decisions[-1]):
        assert json.dumps(text) in CALLS
