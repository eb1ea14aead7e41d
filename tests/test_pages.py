"""The pages of docs/ name files and tests that exist, and their Python runs."""

import ast
import re
from functools import cache
from pathlib import Path
from typing import Final

import pytest

from tests.everstep.http_api.test_waits import WAITS

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


def defines(path: Path, name: str) -> bool:
    """Whether a module has this function, or its class this method."""
    owner, _, own = name.rpartition(".")
    text = path.read_text(encoding="utf-8")
    if path.suffix == ".js":
        method = rf"^class {owner} {{(?:(?!^class ).)*?^  {own}\("
        return bool(re.search(method, text, re.DOTALL | re.MULTILINE))
    body = ast.parse(text).body
    classes = {node.name: node.body for node in body if isinstance(node, ast.ClassDef)}
    functions = classes.get(owner, []) if owner else body
    return own in {
        each.name for each in functions if isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef)
    }


def test_the_way_of_a_message_names_functions_that_exist() -> None:
    """And its waits add up to those that the test of waits counts."""
    (section,) = re.findall(r"## One message.*?\n## ", (DOCS / "architecture.md").read_text(), re.DOTALL)
    rows = re.findall(r"^\| (\d+) \| \*?`([^`]+)`: `([^`]+)`\*? \|[^|]*\| (\d*) ?\|$", section, re.MULTILINE)

    numbered = re.findall(r"^\| (\d+) \|", section, re.MULTILINE)
    assert [number for number, *_ in rows] == numbered == [str(place + 1) for place in range(len(rows))]
    assert [f"{path}: {name}" for _, path, name, _ in rows if not defines(ROOT / path, name)] == []
    operations = ("a message to an idle session", "the begin of a first step", "the last reply, and the end")
    waits = sum(int(count or 0) for *_, count in rows)
    assert waits == sum(WAITS[operation] for operation in operations)
    assert f"In all {waits} waits" in section


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
