"""The tests that docs/testing.md shows pass as a reader would run them, with the plugin."""

import re
from pathlib import Path

import pytest

pytest_plugins = ["pytester"]

PAGE = (Path(__file__).parents[3] / "docs" / "testing.md").read_text(encoding="utf-8")


def test_the_tests_of_the_page_pass(pytester: pytest.Pytester, interpreter: Path) -> None:
    blocks = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    count = sum(block.count("def test_") for block in blocks)
    (settings,) = re.findall(r"```toml\n(.*?)```", PAGE, re.DOTALL)
    pytester.makepyprojecttoml(settings)
    pytester.makepyfile("\n\n".join(blocks))
    result = pytester.run(interpreter, "-m", "pytest", "-q", "-p", "no:cacheprovider")
    result.assert_outcomes(passed=count)
    assert count >= 4
