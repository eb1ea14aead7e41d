"""The page about the ledger: its table of facts, and its program that verifies a chain."""

import re
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, cast

import pytest

from everstep.agent_domain.storage.ledger import FACTS, canonical_json
from everstep.store.memory import MemoryStore
from tests.everstep.store.test_ledger import a_rich_execution, entries_of

PAGE = (Path(__file__).parents[3] / "docs" / "ledger.md").read_text(encoding="utf-8")


def verifier() -> Callable[[Iterable[str]], str]:
    (program,) = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    assert len([line for line in program.splitlines() if line.strip()]) <= 15
    namespace: dict[str, Any] = {}
    exec(program, namespace)  # noqa: S102 -- the program of the page
    return cast("Callable[[Iterable[str]], str]", namespace["verify"])


def test_the_table_has_the_facts_of_each_kind() -> None:
    """15.7.1"""
    _, _, table = PAGE.partition("| kind | facts |\n|---|---|\n")
    rows = [line.strip("| ").split(" |") for line in table.partition("\n\n")[0].splitlines()]
    documented = {row[0].strip("` "): tuple(re.findall(r"`(\w+)`", "".join(row[1:]))) for row in rows}

    assert documented == {str(kind): facts for kind, facts in FACTS.items()}


async def test_the_program_of_the_page_verifies_a_chain() -> None:
    """15.7.2"""
    store = MemoryStore()
    ref = await a_rich_execution(store)
    entries = await entries_of(store, ref)
    lines = [canonical_json(entry) for entry in entries]
    verify = verifier()

    assert verify(lines) == entries[-1]["hash"]
    lines[4] = lines[4].replace('"step":1', '"step":2')
    with pytest.raises(ValueError, match="entry 5 breaks the chain"):
        verify(lines)
    with pytest.raises(ValueError, match="entry 2 breaks the chain"):
        verify(lines[1:])
