"""What `everstep` itself offers, and that it costs next to nothing until it is used."""

import ast
import subprocess
import sys
from dataclasses import is_dataclass
from importlib import import_module
from pathlib import Path
from typing import get_origin

import pytest

import everstep
from everstep.agent_domain.errors import EverstepError
from everstep.agent_domain.state.state import AgentState

STUB = ast.parse(Path(everstep.__file__).with_suffix(".pyi").read_text(encoding="utf-8"))
PUBLIC = {
    str(alias.asname): str(node.module)
    for node in STUB.body
    if isinstance(node, ast.ImportFrom)
    for alias in node.names
}


def run(code: str) -> str:
    """What a fresh interpreter prints."""
    result = subprocess.run(  # noqa: S603 -- our own interpreter and our own code
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60
    )
    return result.stdout.strip()


@pytest.mark.parametrize("name", sorted(PUBLIC))
def test_every_name_can_be_imported_and_is_documented(name: str) -> None:
    value = getattr(everstep, name)
    assert value is getattr(import_module(PUBLIC[name]), name)
    # An alias of a type cannot carry words of its own; they stand below it in its module.
    documentation = value.__doc__ or ("An alias." if get_origin(value) else "")
    assert documentation.strip()
    # What dataclasses write where nobody wrote anything.
    assert not (is_dataclass(value) and documentation.startswith(f"{name}("))


def test_the_stub_is_nothing_but_exports() -> None:
    """Type checkers take a name of a stub as public only where it is imported under itself."""
    aliases = [alias for node in STUB.body if isinstance(node, ast.ImportFrom) for alias in node.names]
    assert [alias.name for alias in aliases] == [alias.asname for alias in aliases]
    assert len(aliases) == len(PUBLIC)
    assert {type(node) for node in STUB.body} == {ast.ImportFrom}


def test_a_name_is_looked_up_once() -> None:
    assert everstep.AgentState is everstep.AgentState is AgentState
    assert vars(everstep)["AgentState"] is AgentState


def test_an_unknown_name_is_no_attribute() -> None:
    with pytest.raises(AttributeError, match="module 'everstep' has no attribute 'AgentBilder'"):
        everstep.AgentBilder  # type: ignore[attr-defined]  # noqa: B018 -- that is the point
    assert not hasattr(everstep, "__nothing__")


def test_a_misspelt_import_says_so() -> None:
    code = "try:\n import everstep\n from everstep import AgentBilder\nexcept ImportError as e: print(e)"
    assert run(code).startswith("cannot import name 'AgentBilder' from 'everstep'")


def test_all_names_are_listed_in_order_before_they_are_used() -> None:
    code = "import everstep; print(*dir(everstep))"
    listed = run(code).split()
    assert set(PUBLIC) <= set(listed)
    assert listed == sorted(listed)


def test_a_star_stands_for_what_the_stub_names() -> None:
    code = (
        "names = set(globals()); from everstep import *; print(*sorted(set(globals()) - names - {'names'}))"
    )
    assert set(run(code).split()) == set(PUBLIC)


MODULES_WHOSE_CLASSES_ALL_MATTER = ["loop.criteria", "errors", "state.events"]


@pytest.mark.parametrize("module", MODULES_WHOSE_CLASSES_ALL_MATTER)
def test_what_users_listen_to_catch_or_add_can_be_imported(module: str) -> None:
    """4.6.1, 2.5: every event, error and criterion."""
    source = import_module(f"everstep.agent_domain.{module}")
    own = {
        name for name, value in vars(source).items() if getattr(value, "__module__", "") == source.__name__
    }
    classes = {name for name in own if isinstance(vars(source)[name], type) and not name.startswith("_")}
    assert classes <= set(PUBLIC)


def test_importing_costs_next_to_nothing() -> None:
    """Whoever needs one name does not pay for the others."""
    code = "import sys, everstep; print([m for m in sys.modules if m.startswith(('everstep.', 'pydantic'))])"
    assert run(code) == "[]"
    assert run("from everstep import StopReason; import sys; print('pydantic' in sys.modules)") == "False"


def test_what_everstep_raises_can_be_caught_as_one() -> None:
    assert everstep.EverstepError is EverstepError
    assert issubclass(everstep.InvalidInput, everstep.EverstepError)
