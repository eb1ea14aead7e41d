"""The reader in Python and the reader for browsers agree in every case."""

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.browsers.reader_cases import (
    TABLE,
    Case,
    anything,
    build_cases,
    forgotten_end,
    read,
    table_text,
    without_outcomes,
)
from tests.browsers.viewer import CLIENT, HERE, LOCK, as_module
from tests.node import installed_modules, node

CASES: list[Case] = json.loads(TABLE.read_text())


def test_the_table_matches_its_sequences() -> None:
    """Written by `python -m tests.browsers.reader_cases`."""
    assert TABLE.read_text() == table_text(build_cases())


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["name"])
def test_the_reader_in_python_agrees_with_the_table(case: Case) -> None:
    """7.8.3, 7.8.4"""
    assert read(without_outcomes(case)) == case


def read_in_node(cases: list[Case], folder: Path) -> Any:
    """The same cases, with the outcomes of the reader for browsers."""
    command = [node(), str(HERE / "reader_cases.mjs"), str(as_module(folder))]
    result = subprocess.run(command, input=json.dumps(cases), capture_output=True, text=True, check=False)  # noqa: S603 -- fixed command
    assert not result.stderr
    return json.loads(result.stdout)


def test_the_reader_for_browsers_agrees_with_the_table(tmp_path: Path) -> None:
    """7.8.3, 7.8.4"""
    for case, seen in zip(
        CASES, read_in_node([without_outcomes(case) for case in CASES], tmp_path), strict=True
    ):
        assert seen == case


def test_both_readers_agree_on_random_cases(tmp_path: Path) -> None:
    """7.8.3, 7.8.4"""
    cases = [forgotten_end(), *anything(2, 1000)]
    for case, seen in zip(cases, read_in_node(cases, tmp_path), strict=True):
        assert seen == read(case)


def test_the_types_of_the_client_are_correct() -> None:
    """TypeScript accepts its JSDoc."""
    options = ("--allowJs", "--checkJs", "--strict", "--noEmit", "--target", "es2022", "--module", "esnext")
    libraries = ("--lib", "es2022,dom,dom.iterable", "--types", "")
    tsc = installed_modules(LOCK) / "typescript" / "bin" / "tsc"
    command = [node(), str(tsc), *options, *libraries, str(CLIENT)]
    result = subprocess.run(command, capture_output=True, text=True, check=False, cwd=HERE)  # noqa: S603 -- fixed command
    assert not result.returncode, result.stdout
