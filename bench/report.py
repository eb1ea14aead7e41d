"""Puts the tables that the benches have written into `docs/performance.md`.

The tables of a bench stand between `<!-- figures: engine -->` and `<!-- end -->`; the text around them is
written by hand. With `--check` it only compares the page with `bench/figures`.

    python bench/report.py [--check]
"""

import argparse
import json
import re
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from figures import MISSED

ROOT: Final = Path(__file__).resolve().parent.parent
FIGURES: Final = ROOT / "bench" / "figures"
PAGE: Final = ROOT / "docs" / "performance.md"
_BLOCK: Final = re.compile(r"(<!-- figures: (\w+) -->\n).*?(<!-- end -->)", re.DOTALL)


def render_page(text: str, folder: Path = FIGURES) -> str:
    """Return the page with the current tables."""

    def block(found: re.Match[str]) -> str:
        path = folder / f"{found[2]}.json"
        if not path.exists():
            sys.exit(f"{folder.name} has no tables of bench/{found[2]}.py: run `make bench`")
        return f"{found[1]}{render_report(json.loads(path.read_text(encoding='utf-8')))}{found[3]}"

    return _BLOCK.sub(block, text)


def render_report(report: Mapping[str, Any]) -> str:
    """Return the tables of one bench in Markdown, below a line that says where they were measured."""
    machine = report["machine"]
    where = (
        f"`{report['command']}`, {report['date']}: {machine['cores']} cores ({machine['processor']}), "
        f"{machine['memory_gb']} GB, {machine['system']}, Python {machine['python']}, "
        f"load {report['load']} at the start."
    )
    tables = (line for table in report["tables"] for line in [*render_table(table), ""])
    return "\n".join([where, "", *tables])


def render_table(table: Sequence[Sequence[str]]) -> list[str]:
    """Return a table in Markdown; the first row has the names of the columns."""
    columns = table[0]
    targets = columns.index("target") if "target" in columns else None
    lines = [[*columns, *([] if targets is None else [""])], ["---"] * (len(columns) + (targets is not None))]
    for row in table[1:]:
        values = [*row, *[""] * len(columns)][: len(columns)]
        if targets is not None:
            values.append(("missed" if MISSED in row else "met") if values[targets] else "")
        lines.append(values)
    return [f"| {' | '.join(each)} |" for each in lines]


def main() -> None:
    """Write the page, or compare it."""
    parser = argparse.ArgumentParser(description="Put the figures of the benches into docs/performance.md.")
    parser.add_argument("--check", action="store_true", help="exit with 1 if the page is out of date")
    is_check = parser.parse_args().check
    text = PAGE.read_text(encoding="utf-8")
    page = render_page(text)
    if is_check:
        sys.exit(page != text and f"{PAGE.name} is out of date: run `python bench/report.py`")
    PAGE.write_text(page, encoding="utf-8")


if __name__ == "__main__":
    main()
