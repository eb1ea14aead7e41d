"""The limits of every test: a time limit, and signals that its children receive."""

import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from everstep.runtime.embedded.child import LAUNCHER
from tests.acceptance.harness import ROOT, environment

# The state in which a script starts a background job, and `nohup` a process.
IN_BACKGROUND = ("sh", "-c", "trap '' HUP INT QUIT; exec \"$@\"", "sh")
INTERRUPTED = ("sh", "-c", "kill -INT $$; exit 7")
"""Ends with the signal, or with 7 if it is ignored."""


def code_of(command: Sequence[str | Path]) -> int:
    return subprocess.run(command, check=False, cwd=ROOT, env=environment(), timeout=60).returncode  # noqa: S603 -- fixed command


def pytest_run(interpreter: Path, *arguments: str | Path) -> subprocess.CompletedProcess[str]:
    without = ("-p", "no:cacheprovider", "-p", "no:schemathesis")
    command = (*IN_BACKGROUND, interpreter, "-m", "pytest", *without, *map(str, arguments))
    return subprocess.run(  # noqa: S603 -- fixed command
        command, capture_output=True, text=True, check=False, cwd=ROOT, env=environment(), timeout=120
    )


def test_a_child_of_a_test_is_ended_by_an_interrupt() -> None:
    assert code_of(INTERRUPTED) == -signal.SIGINT


def test_it_is_so_where_the_run_ignores_interrupts(interpreter: Path) -> None:
    assert code_of((*IN_BACKGROUND, *INTERRUPTED)) == 7
    run = pytest_run(interpreter, f"{__file__}::{test_a_child_of_a_test_is_ended_by_an_interrupt.__name__}")
    assert run.returncode == 0, run.stdout


@pytest.mark.parametrize("how", ["exec", "supervise"])
def test_a_server_of_an_installation_in_the_background_is_ended_by_an_interrupt(how: str) -> None:
    script = (
        "import os, subprocess, sys\n"
        "launcher, how, *command = sys.argv[1:]\n"
        "words = [sys.executable, launcher, str(os.getpid()), '9', '-', how, '/bin/sh', *command[1:]]\n"
        "sys.exit(-subprocess.call(words))"
    )
    command = (*IN_BACKGROUND, sys.executable, "-c", script, LAUNCHER, how, *INTERRUPTED)
    assert code_of(command) == signal.SIGINT


def test_a_test_that_hangs_fails(tmp_path: Path, pytestconfig: pytest.Config, interpreter: Path) -> None:
    assert float(pytestconfig.getini("timeout")) > 0
    hanging = tmp_path / "test_hanging.py"
    hanging.write_text("import asyncio\n\nasync def test_hangs():\n    await asyncio.Event().wait()\n")
    run = pytest_run(interpreter, "-c", ROOT / "pyproject.toml", "-o", "timeout=1", hanging)
    assert run.returncode == 1, run.stdout
    assert "Timeout (>1.0s) from pytest-timeout" in run.stdout
    assert "1 failed" in run.stdout
