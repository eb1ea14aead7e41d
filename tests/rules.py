"""Lists the rules of docs/rules.md that no test names, and the numbers in tests that are no rule.

A rule is a table row of docs/rules.md that starts with its number. It needs a test if it is below the heading
"Built". A test names a rule in the docstring of its function or class. A number with two dots (2.2.3) is
always taken as a rule. A shorter one (2.5, 11) may be just a number, so it must be a rule only where it, or a
list with it, opens the docstring ("11: ...") or follows the word "rule"; elsewhere 2.5 counts if there is
such a rule, and "11" does not count.

A number with a star (`| 8.3.1* |`) is a rule of a running installation. Tests of hand-assembled parts cannot
show it: it needs a citation by a test that drives real processes, which is a test below `tests/acceptance` or
one with the marker `installation`, on its module, class or function.
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
ROW = re.compile(r"\| *(?P<number>\d+(?:\.\d+){0,2})(?P<star>\*?) *\|")

MARKER = "installation"
RUNNING = "acceptance"
"""The folder whose tests all drive processes of a running installation."""

NUMBER = re.compile(r"(?<![\d.])\d+(?:\.\d+){0,2}(?!\d|\.\d)")
LIST = rf"{NUMBER.pattern}(?:(?:, and |, | and |; ){NUMBER.pattern})*"
# The opening of a docstring ends with punctuation: "3 calls run at once" names no rule.
CITATION = re.compile(rf"(?:^(?={LIST}\s*(?:[:;.,(]|$))|\b[Rr]ules? )(?P<numbers>{LIST})")


Definition = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef


class Rules(NamedTuple):
    all: frozenset[str]
    built: frozenset[str]
    running: frozenset[str] = frozenset()


class Citation(NamedTuple):
    """A number in a test's docstring that is a rule, or should be one."""

    rule: str
    test: str
    is_running: bool = False
    """Whether the test drives processes of a running installation."""


def parse_rules(text: str) -> Rules:
    rules: set[str] = set()
    built: set[str] = set()
    running: set[str] = set()
    heading = ""
    for line in text.splitlines():
        if found := HEADING.fullmatch(line):
            heading = found["name"]
        elif found := ROW.match(line):
            rules.add(found["number"])
            if heading == BUILT:
                built.add(found["number"])
                running |= {found["number"]} if found["star"] else set()
    return Rules(frozenset(rules), frozenset(built), frozenset(running))


def numbers_in(docstring: str, rules: Rules) -> set[str]:
    """The rules that a docstring names, whether they exist or not."""
    plain = {number for number in NUMBER.findall(docstring) if "." in number}
    cited = {number for found in CITATION.finditer(docstring) for number in NUMBER.findall(found["numbers"])}
    return cited | {number for number in plain if number.count(".") == 2 or number in rules.all}


def citations(folder: Path, rules: Rules) -> Iterator[Citation]:
    """The rules named by the tests below a folder."""
    for path in sorted(folder.rglob("test_*.py")):
        module = ast.parse(path.read_text(encoding="utf-8"), str(path))
        is_marked = RUNNING in path.relative_to(folder).parts or any(
            _is_marks(statement) and _names_marker(statement) for statement in module.body
        )
        for node, is_running in _definitions(module, is_marked):
            test = f"{path.relative_to(folder.parent)}:{node.lineno} {node.name}"
            docstring = ast.get_docstring(node) or ""
            yield from (Citation(number, test, is_running) for number in numbers_in(docstring, rules))


def _definitions(parent: ast.AST, is_running: bool) -> Iterator[tuple[Definition, bool]]:
    """Every function and class below a node, and whether it or a parent is marked."""
    for node in ast.iter_child_nodes(parent):
        if isinstance(node, Definition):
            is_marked = is_running or any(map(_names_marker, node.decorator_list))
            yield node, is_marked
            yield from _definitions(node, is_marked)


def _is_marks(statement: ast.stmt) -> bool:
    targets = statement.targets if isinstance(statement, ast.Assign) else []
    return any(isinstance(target, ast.Name) and target.id == "pytestmark" for target in targets)


def _names_marker(node: ast.AST) -> bool:
    return any(isinstance(each, ast.Attribute) and each.attr == MARKER for each in ast.walk(node))


def in_order(numbers: set[str] | frozenset[str]) -> list[str]:
    return sorted(numbers, key=lambda number: [int(part) for part in number.split(".")])


def report(page: Path, folder: Path) -> list[str]:
    """The differences between the rules and the tests, one line each."""
    rules = parse_rules(page.read_text(encoding="utf-8"))
    if not rules.built:
        return [f"{page.name} has no rules under '## {BUILT}'"]
    found = list(citations(folder, rules))
    untested = rules.built - {citation.rule for citation in found}
    unseen = rules.running - untested - {citation.rule for citation in found if citation.is_running}
    return [
        *(f"rule {number} has no test that names it" for number in in_order(untested)),
        *(
            f"rule {number} has a star, and no test against a running installation names it"
            for number in in_order(unseen)
        ),
        *(
            f"{citation.test} names rule {citation.rule}, which is not in {page.name}"
            for citation in sorted(found)
            if citation.rule not in rules.all
        ),
    ]


def main(root: Path = ROOT) -> int:
    """Print the report; the exit status is 0 if it is empty."""
    problems = report(root / "docs" / "rules.md", root / "tests")
    for problem in problems:
        print(problem)
    print(f"rules: {len(problems)} to mend" if problems else "rules: every built one is named by a test")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
