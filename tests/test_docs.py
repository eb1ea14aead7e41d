"""The site builds, its links lead somewhere, and the pages that follow from the code are up to date."""

import re
import runpy
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Final

import pytest

ROOT = Path(__file__).parent.parent
DOCS = ROOT / "docs"
PAGES: Final[dict[str, Callable[[], str]]] = runpy.run_path(str(DOCS / "generate.py"))["PAGES"]
OF_OTHER_HOSTS: Final = re.compile(r"""<(?:script|img|link)[^>]+(?:src|href)=["']?(?:https?:)?//[^>]*""")


@pytest.mark.parametrize("name", PAGES)
def test_a_page_of_the_reference_is_up_to_date(name: str) -> None:
    assert (DOCS / "reference" / name).read_text(encoding="utf-8") == PAGES[name](), "run `make reference`"


def test_every_page_of_the_reference_is_compared() -> None:
    assert {path.name for path in (DOCS / "reference").glob("*.md")} == {*PAGES}


@pytest.mark.timeout(1200)
def test_the_site_builds_without_dead_links_and_loads_nothing_from_other_hosts(tmp_path: Path) -> None:
    """A link that leads nowhere and a page that no other leads to are warnings of Sphinx, and errors here.

    It computes for a minute and waits for nothing; on a busy machine that takes many minutes.
    """
    sphinx = [sys.executable, "-m", "sphinx", "-c", "docs", "-b", "html", "--fail-on-warning", "--keep-going"]
    built = subprocess.run(  # noqa: S603 -- our own interpreter and words
        [*sphinx, "--quiet", ".", str(tmp_path)], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert built.returncode == 0, built.stderr
    pages = [path.relative_to(ROOT).with_suffix(".html") for path in DOCS.rglob("*.md")]
    assert [page for page in pages if not (tmp_path / page).is_file()] == []
    loaded = {
        found for page in tmp_path.rglob("*.html") for found in OF_OTHER_HOSTS.findall(page.read_text())
    }
    assert loaded == set()


def test_what_the_console_shows_names_tests_that_exist() -> None:
    """A cell of docs/consoles.md that says yes, or partly, names the test that shows it."""
    table = (DOCS / "consoles.md").read_text(encoding="utf-8").partition("## Other consoles")[0]
    rows = [
        [cell.strip() for cell in row.split("|")[1:-1]] for row in table.splitlines() if row.startswith("| ")
    ]
    claims = [row for row in rows[1:] if row[1] != "no"]
    assert len(claims) > 20
    for name, _, _, test in claims:
        path, _, function = test.strip("`").partition("::")
        assert f"def {function}(" in (ROOT / path).read_text(encoding="utf-8"), name
