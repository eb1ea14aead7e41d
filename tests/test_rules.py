"""The comparison of rules and tests is not misled by other numbers."""

from pathlib import Path

import pytest

from tests.rules import ROOT, in_order, main, numbers_in, parse_rules, report

PAGE = """
# Rules

| rule | what holds |
|---|---|
| 0.1 | Above the headings: may be named, needs no test. |

## Built

### 2.2 Aggregation

| rule | what holds |
|---|---|
| 2.2.1 | One. |
| 2.2.10 | Ten. |
| 2.5 | A whole table: |

| criterion | forbids |
|---|---|
| `StepsLimit(2.9)` | 2.8.1 |

| rule | what holds |
|---|---|
| 11 | The builder. |

## Not built yet

| rule | what holds |
|---|---|
| 7.7.1 | Later. |
"""


def project(folder: Path, *docstrings: str, page: str = PAGE) -> Path:
    """A project whose tests have these docstrings."""
    (folder / "docs").mkdir()
    (folder / "docs" / "rules.md").write_text(page)
    (folder / "tests" / "agent_domain").mkdir(parents=True)
    for number, docstring in enumerate(docstrings):
        test = f'def test_it() -> None:\n    """{docstring}"""\n'
        (folder / "tests" / "agent_domain" / f"test_{number}.py").write_text(test)
    return folder


def report_for(root: Path) -> list[str]:
    return report(root / "docs" / "rules.md", root / "tests")


def test_rules_are_the_rows_that_start_with_a_number() -> None:
    rules = parse_rules(PAGE)

    assert rules.built == {"2.2.1", "2.2.10", "2.5", "11"}
    assert rules.all == rules.built | {"0.1", "7.7.1"}


def test_nothing_is_reported_when_every_built_rule_is_named(tmp_path: Path) -> None:
    root = project(tmp_path, "2.2.1, 2.2.10: the order names.", "Limits stop (2.5).", "11")

    assert report_for(root) == []


def test_a_built_rule_without_a_test_is_reported_in_order(tmp_path: Path) -> None:
    root = project(tmp_path, "2.2.10")

    assert report_for(root) == [
        "rule 2.2.1 has no test that names it",
        "rule 2.5 has no test that names it",
        "rule 11 has no test that names it",
    ]


def test_a_number_that_is_no_rule_is_reported_with_its_test(tmp_path: Path) -> None:
    root = project(tmp_path, "2.2.1, 2.2.10, 2.5 and 11.", "Something of 2.2.2.")

    assert report_for(root) == [
        "tests/agent_domain/test_1.py:1 test_it names rule 2.2.2, which is not in rules.md"
    ]


def test_a_rule_that_is_not_built_may_be_named(tmp_path: Path) -> None:
    root = project(tmp_path, "2.2.1, 2.2.10, 2.5, 11, 7.7.1, 0.1")

    assert report_for(root) == []


def test_only_docstrings_of_functions_and_classes_name_rules(tmp_path: Path) -> None:
    root = project(tmp_path)
    (root / "tests" / "test_places.py").write_text(
        '"""2.2.1"""\n'
        "# 2.2.10\n"
        'LIMIT = "2.5"\n'
        "class TestBuilder:\n"
        '    """11"""\n'
        "    async def test_it(self) -> None:\n"
        '        """2.5"""\n'
    )
    (root / "tests" / "helpers.py").write_text('def helper() -> None:\n    """2.2.1"""\n')

    assert report_for(root) == [
        "rule 2.2.1 has no test that names it",
        "rule 2.2.10 has no test that names it",
    ]


@pytest.mark.parametrize(
    ("docstring", "numbers"),
    [
        ("2.2.3", {"2.2.3"}),
        ("2.2.2a, the first row", {"2.2.2"}),
        ("The first forbid with an error decides (2.2.3, 2.2.4).", {"2.2.3", "2.2.4"}),
        ("Follows rules 2.2.3 and 2.2.4.", {"2.2.3", "2.2.4"}),
        ("Takes 2.5 as a table", {"2.5"}),
        ("Waits 3.9 seconds, 11 times", set[str]()),
        ("3.9: not written", {"3.9"}),
        ("3 calls run at once", set[str]()),
        ("Follows rule 3.9", {"3.9"}),
        ("11: the builder's defaults", {"11"}),
        ("The builder of rules 11.1 and 11", {"11.1", "11"}),
        ("An address 10.0.0.1 and a date 2026-01-16", set[str]()),
        ("", set[str]()),
    ],
)
def test_a_docstring_names_rules_and_other_numbers(docstring: str, numbers: set[str]) -> None:
    assert numbers_in(docstring, parse_rules(PAGE)) == numbers


def test_a_page_without_built_rules_is_reported_and_does_not_pass(tmp_path: Path) -> None:
    root = project(tmp_path, "2.2.1", page="# Rules\n")

    assert report_for(root) == ["rules.md has no rules under '## Built'"]


def test_rules_are_sorted_as_numbers() -> None:
    assert in_order({"10.1", "2.10", "2.9", "2.9.1"}) == ["2.9", "2.9.1", "2.10", "10.1"]


def test_the_exit_status_shows_whether_a_rule_is_missing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    root = project(tmp_path, "2.2.1, 2.2.10, 2.5, 11")

    assert main(root) == 0
    assert capsys.readouterr().out == "rules: every built one is named by a test\n"

    (root / "docs" / "rules.md").write_text(PAGE.replace("2.2.1 ", "2.2.7 "))

    assert main(root) == 1
    assert "rule 2.2.7 has no test that names it" in capsys.readouterr().out


def test_the_projects_own_page_can_be_read() -> None:
    rules = parse_rules((ROOT / "docs" / "rules.md").read_text())

    assert {"1.2.1", "2.5", "11", "12.4"} <= rules.built
    assert {"0.3", "7.9.1"} <= rules.all - rules.built


STARRED = """
## Built

| rule | what holds |
|---|---|
| 8.3.1* | Busy. |
| 8.3.2 | Quiet. |
"""

MARKS = {
    "plain": "",
    "module": "import pytest\npytestmark = pytest.mark.installation\n",
    "list": "import pytest\npytestmark = [pytest.mark.asyncio, pytest.mark.installation]\n",
    "other": "import pytest\npytestmark = pytest.mark.slow\n",
}


def test_a_star_marks_a_rule_of_a_running_installation() -> None:
    rules = parse_rules(STARRED)
    assert (rules.all, rules.running) == ({"8.3.1", "8.3.2"}, {"8.3.1"})


@pytest.mark.parametrize(("marks", "is_enough"), [("plain", 0), ("module", 1), ("list", 1), ("other", 0)])
def test_a_starred_rule_needs_a_test_of_real_processes(marks: str, is_enough: bool, tmp_path: Path) -> None:
    root = project(tmp_path, page=STARRED)
    test = f'{MARKS[marks]}def test_it() -> None:\n    """8.3.1, 8.3.2"""\n'
    (root / "tests" / "agent_domain" / "test_it.py").write_text(test)
    problem = "rule 8.3.1 has a star, and no test against a running installation names it"
    assert report_for(root) == ([] if is_enough else [problem])


def test_a_decorator_marks_one_test(tmp_path: Path) -> None:
    root = project(tmp_path, page=STARRED)
    text = '@pytest.mark.installation\ndef test_it() -> None:\n    """8.3.1"""\n'
    text += 'class TestIt:\n    def test_it(self) -> None:\n        """8.3.2"""\n'
    (root / "tests" / "agent_domain" / "test_it.py").write_text(text)
    assert report_for(root) == []


def test_every_acceptance_test_drives_real_processes(tmp_path: Path) -> None:
    root = project(tmp_path, page=STARRED)
    (root / "tests" / "acceptance").mkdir()
    (root / "tests" / "acceptance" / "test_it.py").write_text('def test_it():\n    """8.3.1, 8.3.2"""\n')
    assert report_for(root) == []
