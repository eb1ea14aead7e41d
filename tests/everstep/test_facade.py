"""The exports of `everstep`, and the low cost of importing it."""

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
    """The output of a new interpreter."""
    result = subprocess.run(  # noqa: S603 -- our own interpreter and our own code
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60
    )
    return result.stdout.strip()


def test_every_name_can_be_imported_and_is_documented() -> None:
    values = {name: getattr(everstep, name) for name in PUBLIC}
    assert [n for n, value in values.items() if value is not getattr(import_module(PUBLIC[n]), n)] == []
    # A type alias has no docstring; its description is below it in its module.
    texts = {n: value.__doc__ or ("An alias." if get_origin(value) else "") for n, value in values.items()}
    assert [name for name, text in texts.items() if not text.strip()] == []
    # Docstrings that dataclasses generate.
    assert [n for n, text in texts.items() if is_dataclass(values[n]) and text.startswith(f"{n}(")] == []


def test_the_stub_contains_only_exports() -> None:
    """Type checkers treat a name of a stub as public only if it is imported under its own name."""
    aliases = [alias for node in STUB.body if isinstance(node, ast.ImportFrom) for alias in node.names]
    assert [alias.name for alias in aliases] == [alias.asname for alias in aliases]
    assert len(aliases) == len(PUBLIC)
    assert {type(node) for node in STUB.body} == {ast.ImportFrom}


def test_a_name_is_looked_up_once() -> None:
    assert everstep.AgentState is everstep.AgentState is AgentState
    assert vars(everstep)["AgentState"] is AgentState


def test_a_former_name_still_works_with_a_warning() -> None:
    with pytest.warns(DeprecationWarning, match=r"write everstep.ExecutionFacts, not LoopState"):
        former = everstep.LoopState  # type: ignore[attr-defined]
    assert former is everstep.ExecutionFacts


def test_an_unknown_name_raises_attribute_error() -> None:
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


def test_a_star_import_gives_the_names_of_the_stub() -> None:
    code = (
        "names = set(globals()); from everstep import *; print(*sorted(set(globals()) - names - {'names'}))"
    )
    assert set(run(code).split()) == set(PUBLIC)


MODULES_WHOSE_CLASSES_ALL_MATTER = ["loop.criteria", "errors", "state.events"]


@pytest.mark.parametrize("module", MODULES_WHOSE_CLASSES_ALL_MATTER)
def test_events_errors_and_criteria_can_be_imported(module: str) -> None:
    """4.6.1, 2.5: every one of them."""
    source = import_module(f"everstep.agent_domain.{module}")
    own = {
        name for name, value in vars(source).items() if getattr(value, "__module__", "") == source.__name__
    }
    classes = {name for name in own if isinstance(vars(source)[name], type) and not name.startswith("_")}
    assert classes <= set(PUBLIC)


def test_importing_everstep_loads_no_other_modules() -> None:
    """A program that needs one name does not load the others."""
    code = "import sys, everstep; print([m for m in sys.modules if m.startswith(('everstep.', 'pydantic'))])"
    assert run(code) == "[]"
    assert run("from everstep import StopReason; import sys; print('pydantic' in sys.modules)") == "False"


def test_all_errors_have_one_base_class() -> None:
    assert everstep.EverstepError is EverstepError
    assert issubclass(everstep.InvalidInput, everstep.EverstepError)
