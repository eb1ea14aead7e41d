"""The pages of docs/ name files and tests that exist, and their Python runs."""

import re
from functools import cache
from pathlib import Path
from typing import Final

import pytest

ROOT: Final = Path(__file__).parent.parent
DOCS: Final = ROOT / "docs"
PAGES: Final = [
    "architecture.md",
    "security.md",
    "performance.md",
    *sorted(str(path.relative_to(DOCS)) for path in (DOCS / "decisions").glob("*.md")),
]
FILE: Final = re.compile(r"`((?:\w[\w.-]*/)+(?:[\w.-]+\.(?:py|mjs|json|toml|md))?)`")
QUOTED: Final = re.compile(r"`(?P<file>[\w./]+\.py)`: (?P<names>\"[^|]+\")")
NAME: Final = re.compile(r"`([A-Za-z_][\w.]*)(?:\([^`]*\))?`")
OF_TEMPORAL: Final = {"history_size_bytes"}
PRODUCT: Final = ("activities", "agent_domain", "broadcast_gateway", "everstep", "workflows")
PLACES: Final = ("", "tests/", "tests/everstep/", "tests/everstep/capabilities/", "tests/agent_domain/")


@cache
def find(name: str) -> Path | None:
    """The file that a page means: by its path from the root, or from a folder of tests."""
    return next((path for place in PLACES if (path := ROOT / place / name).exists()), None)


@cache
def words_of_the_code() -> frozenset[str]:
    code = (path.read_text(encoding="utf-8") for name in PRODUCT for path in (ROOT / name).rglob("*.py"))
    return frozenset(word for text in code for word in re.findall(r"\w+", text))


@pytest.mark.parametrize("page", PAGES)
def test_a_page_names_files_that_exist(page: str) -> None:
    named = set(FILE.findall((DOCS / page).read_text(encoding="utf-8")))
    assert {name for name in named if find(name) is None} == set()


@pytest.mark.parametrize("page", [page for page in PAGES if page.startswith(("architecture", "decisions"))])
def test_a_page_names_code_that_exists(page: str) -> None:
    named = set(NAME.findall((DOCS / page).read_text(encoding="utf-8"))) - OF_TEMPORAL
    assert {name for name in named if name.rpartition(".")[2] not in words_of_the_code()} == set()


def test_the_page_about_security_names_tests_that_exist() -> None:
    missing: list[str] = []
    for found in QUOTED.finditer((DOCS / "security.md").read_text(encoding="utf-8")):
        path = find(found["file"])
        text = path.read_text(encoding="utf-8").replace("_", " ") if path else ""
        missing += [
            f"{found['file']}: {name}"
            for name in re.findall(r'"([^"]+)"', found["names"])
            if name.lower() not in text.lower()
        ]
    assert missing == []


@pytest.mark.parametrize(
    "page", ["capabilities.md", "deployment.md", "http-api.md", "mcp.md", "streaming.md"]
)
def test_the_python_of_a_page_runs(page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The blocks run in order and share their names; ```python no-run marks a fragment."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "work").mkdir()
    names: dict[str, object] = {"__name__": page}
    for block in re.findall(r"```python\n(.*?)```", (DOCS / page).read_text(encoding="utf-8"), re.DOTALL):
        exec(compile(block, page, "exec"), names)  # noqa: S102 -- our own pages
