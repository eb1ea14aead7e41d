"""What the README and the examples promise is what happens."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")


def output_of(script: str) -> str:
    command = [sys.executable, str(ROOT / "examples" / script)]
    done = subprocess.run(command, capture_output=True, text=True, check=True, cwd=ROOT)  # noqa: S603 -- ours
    return done.stdout


def without_times(text: str) -> str:
    return re.sub(r"\[\d+ ms\]", "[… ms]", text)


def test_the_smallest_example_answers() -> None:
    assert "Hello!" in output_of("01_hello.py")


def test_the_readme_shows_what_the_tools_example_prints() -> None:
    shown = without_times(README)

    assert without_times(output_of("02_tools.py")).strip() in shown


@pytest.mark.parametrize("block", re.findall(r"```python\n(.*?)```", README, re.DOTALL))
def test_the_code_in_the_readme_runs(block: str) -> None:
    exec(compile(block, "README.md", "exec"), {"__name__": "readme"})  # noqa: S102 -- our own page
