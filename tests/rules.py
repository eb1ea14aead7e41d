"""Lists the rules of docs/rules.md that no test names, and the rules that tests name and nobody wrote.

A rule is a table row of docs/rules.md that starts with its number, and it needs a test once it stands under
the heading "Built". A test names a rule in the docstring of its function or class. A number with two dots
(2.2.3) is always taken as a rule. A shorter one (2.5, 11) may be just a number, so it has to be a rule only
where it, or a list with it, opens the docstring ("11: ...") or follows the word "rule"; elsewhere 2.5 counts
if there is such a rule, and "11" does not count.
"""

import ast
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parent.parent
BUILT = "Built"

HEADING = re.compile(r"## (?P<name>.+)")
ROW = re.compile(r"\| *(?P<number>\d+(?:\.\d+){0,2}) *\|")

NUMBER = re.compile(r"(?<![\d.])\d+(?:\.\d+){0,2}(?!\d|\.\d)")
LIST = rf"{NUMBER.pattern}(?:(?:, and |, | and |; ){NUMBER.pattern})*"
# What opens a docstring ends like an opening: "3 calls run at once" names no rule.
CITATION = re.compile(rf"(?:^(?={LIST}\s*(?:[:;.,(]|$))|\b[Rr]ules? )(?P<numbers>{LIST})")


class Rules(NamedTuple):
    """The numbers of all rules, and of those that need a test."""

    all: frozenset[str]
    built: frozenset[str]


class Citation(NamedTuple):
    """A number in a test's docstring that is a rule, or should be one."""

    rule: str
    test: str


def written(text: str) -> Rules:
    """Read the rules of a page."""
    rules: set[str] = set()
    built: set[str] = set()
    heading = ""
    for line in text.splitlines():
        if found := HEADING.fullmatch(line):
            heading = found["name"]
        elif found := ROW.match(line):
            rules.add(found["number"])
            if heading == BUILT:
                built.add(found["number"])
    return Rules(frozenset(rules), frozenset(built))


def numbers_in(docstring: str, rules: Rules) -> set[str]:
    """Find the rules that a docstring names, whether they exist or not."""
    plain = {number for number in NUMBER.findall(docstring) if "." in number}
    cited = {number for found in CITATION.finditer(docstring) for number in NUMBER.findall(found["numbers"])}
    return cited | {number for number in plain if number.count(".") == 2 or number in rules.all}


def citations(folder: Path, rules: Rules) -> Iterator[Citation]:
    """Find what the tests below a folder name."""
    for path in sorted(folder.rglob("test_*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"), str(path))):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                test = f"{path.relative_to(folder.parent)}:{node.lineno} {node.name}"
                docstring = ast.get_docstring(node) or ""
                yield from (Citation(number, test) for number in numbers_in(docstring, rules))


def in_order(numbers: set[str] | frozenset[str]) -> list[str]:
    """Sort 2.2.10 after 2.2.9."""
    return sorted(numbers, key=lambda number: [int(part) for part in number.split(".")])


def report(page: Path, folder: Path) -> list[str]:
    """Say, a line each, what keeps the rules and the tests apart."""
    rules = written(page.read_text(encoding="utf-8"))
    if not rules.built:
        return [f"{page.name} has no rules under '## {BUILT}'"]
    found = list(citations(folder, rules))
    untested = rules.built - {citation.rule for citation in found}
    return [
        *(f"rule {number} has no test that names it" for number in in_order(untested)),
        *(
            f"{test} names rule {number}, which is not in {page.name}"
            for number, test in sorted(found)
            if number not in rules.all
        ),
    ]


def main(root: Path = ROOT) -> int:
    """Print the report, and say by the exit status whether it is empty."""
    problems = report(root / "docs" / "rules.md", root / "tests")
    for problem in problems:
        print(problem)
    print(f"rules: {len(problems)} to mend" if problems else "rules: every built one is named by a test")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
