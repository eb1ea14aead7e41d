"""What the README and the examples promise is what happens."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")
QUICKSTART = (ROOT / "docs" / "quickstart.md").read_text(encoding="utf-8")


def output_of(script: str, *arguments: str) -> str:
    command = [sys.executable, str(ROOT / "examples" / script), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=True, cwd=ROOT)  # noqa: S603 -- ours
    return done.stdout


def without_times(text: str) -> str:
    return re.sub(r"\[\d+ ms\]", "[… ms]", text)


def test_the_smallest_example_answers() -> None:
    assert "Hello!" in output_of("01_hello.py")


def test_the_quickstart_shows_what_the_tools_example_prints() -> None:
    assert without_times(output_of("02_tools.py")).strip() in without_times(QUICKSTART)


@pytest.mark.parametrize("block", re.findall(r"```python\n(.*?)```", README + QUICKSTART, re.DOTALL))
def test_the_code_on_our_pages_runs(block: str) -> None:
    exec(compile(block, "a page", "exec"), {"__name__": "page"})  # noqa: S102 -- our own pages


def test_a_service_gets_its_result(tmp_path: Path) -> None:
    """8.4.1, 8.5.3: the agent waits for a person, and goes on."""
    told = output_of("03_service.py", "--data", str(tmp_path / "data"))

    assert "It is paused meanwhile" in told
    assert "It completed after 2 steps: The meeting is arranged." in told
