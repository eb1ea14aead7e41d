"""The contracts between the packages are kept, and a broken contract is noticed."""

import ast
import importlib
import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Callable, Container, Iterator, Mapping
from graphlib import CycleError, TopologicalSorter
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from everstep.agent_domain.loop.status import ExecutionStatus

ROOT = Path(__file__).parent.parent
CONFIG: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text())
LINKED = ("activities", "agent_domain", "broadcast_gateway", "workflows")
"""Folders beside `everstep` that are linked into it."""
CONTRACTS: dict[str, dict[str, Any]] = {
    contract["id"]: contract for contract in CONFIG["tool"]["importlinter"]["contracts"]
}


def packages_below(folder: Path) -> set[str]:
    return {path.parent.name for path in folder.glob("*/__init__.py")}


def layers() -> set[str]:
    return {name.strip() for line in CONTRACTS["layers"]["layers"] for name in line.split("|")}


def test_the_layers_name_every_package() -> None:
    assert layers() == {f"everstep.{name}" for name in packages_below(ROOT / "everstep")}


def test_everything_is_imported_as_everstep() -> None:
    """The folders beside it are linked into it, and there is no other package in the wheel."""
    assert packages_below(ROOT) - {"tests", "bench", "examples"} == {"everstep", *LINKED}
    assert [(ROOT / "everstep" / name).readlink() for name in LINKED] == [
        Path("..") / name for name in LINKED
    ]
    assert CONFIG["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"] == ["everstep"]


@pytest.mark.parametrize("name", LINKED)
def test_an_import_by_the_old_name_reports_the_new_one(name: str) -> None:
    with pytest.raises(ImportError, match=rf"Import everstep\.{name}"):
        importlib.import_module(name)
    source = f"from {name}.contracts import anything\n"
    lint = [
        sys.executable,
        "-m",
        "ruff",
        "check",
        "--select",
        "TID251",
        "--stdin-filename",
        "planted.py",
        "-",
    ]
    for folder in (ROOT, ROOT / "agent_domain"):
        found = subprocess.run(  # noqa: S603 -- our own interpreter
            lint, cwd=folder, input=source, capture_output=True, text=True, check=False
        )
        assert found.returncode == 1
        assert f"Import everstep.{name}." in found.stdout


def test_the_type_checker_reads_every_package() -> None:
    assert {f"everstep/{name}" for name in LINKED} <= {*CONFIG["tool"]["pyright"]["include"]}


class Planted(NamedTuple):
    """An import that a contract forbids, and where it is planted."""

    contract: str
    module: str
    line: str


PLANTED = [
    Planted("layers", "agent_domain/planted.py", "import everstep.activities"),
    Planted("layers", "activities/planted.py", "import everstep.workflows"),
    Planted("layers", "activities/planted.py", "import everstep.capabilities"),
    Planted("layers", "workflows/planted.py", "import everstep.http_api"),
    Planted("layers", "everstep/agents/planted.py", "import everstep.local"),
    Planted("layers", "everstep/steps/planted.py", "import everstep.store"),
    Planted("layers", "everstep/http_api/planted.py", "import everstep.broadcast_gateway"),
    Planted("layers", "everstep/runtime/planted.py", "def lazily():\n    import everstep.cli"),
    *(
        Planted("domain", "agent_domain/planted.py", f"import {name}")
        for name in ("temporalio", "yaml", "asyncio", "os.path", "time", "random", "logging", "pathlib")
    ),
    Planted("workflows", "workflows/planted.py", "import everstep.agents"),
    Planted("workflows", "workflows/planted.py", "import httpx"),
    # Workflows import activities, so their imports count as well.
    Planted("workflows", "activities/planted.py", "import sqlalchemy.ext.asyncio"),
    Planted("in-process", "everstep/local/planted.py", "import everstep.activities"),
    Planted("in-process", "everstep/steps/planted.py", "import temporalio.activity"),
    Planted("in-process", "everstep/steps/planted.py", "import sqlalchemy"),
    Planted("gateway", "broadcast_gateway/planted.py", "from everstep.workflows import anything"),
    Planted("in-process", "everstep/local/planted.py", "import everstep.activities"),
    Planted("in-process", "everstep/steps/planted.py", "import temporalio.activity"),
    Planted("in-process", "everstep/steps/planted.py", "import sqlalchemy"),
    Planted("gateway", "broadcast_gateway/planted.py", "import everstep.activities"),
    *(
        Planted("core", "broadcast_gateway/wires/planted.py", f"import {name}")
        for name in ("asyncio", "time", "websockets", "pydantic")
    ),
    Planted("layers", "everstep/wires/planted.py", "import everstep.http_api"),
    *(
        Planted("wires", "everstep/wires/planted.py", f"import {name}")
        for name in ("asyncio", "time", "logging", "fastapi")
    ),
    Planted("adapters", "everstep/cli/planted.py", "import everstep.store"),
    Planted("adapters", "everstep/http_api/planted.py", "import everstep.inference"),
    Planted("rooms", "agent_domain/loop/planted.py", "import everstep.agent_domain.state.state"),
    Planted("facade", "everstep/runtime/planted.py", "import everstep"),
]


@pytest.fixture(scope="module")
def copied(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the packages for planted imports."""
    folder = tmp_path_factory.mktemp("copied")
    for package in ("everstep", *LINKED):
        shutil.copytree(
            ROOT / package, folder / package, symlinks=True, ignore=shutil.ignore_patterns("__pycache__")
        )
    shutil.copy(ROOT / "pyproject.toml", folder)
    return folder


@pytest.fixture
def plant() -> Iterator[Callable[[Path, str], None]]:
    """Appends text to a file; at the end each file is as it was."""
    before: dict[Path, str | None] = {}

    def append(path: Path, text: str) -> None:
        source = path.read_text() if path.exists() else None
        before.setdefault(path, source)
        path.write_text(f"{source or ''}{text}")

    yield append
    for path, source in before.items():
        if source is None:
            path.unlink()
        else:
            path.write_text(source)


def run_linter(folder: Path) -> subprocess.CompletedProcess[str]:
    lint = "from importlinter.cli import lint_imports_command as lint; lint()"
    return subprocess.run(  # noqa: S603 -- our own interpreter
        [sys.executable, "-c", lint, "--no-cache", "--no-logo"],
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
    )


def test_the_packages_keep_every_contract(copied: Path) -> None:
    result = run_linter(copied)

    assert result.returncode == 0, result.stdout
    for contract in CONTRACTS.values():
        assert f"{contract['name']} KEPT" in result.stdout


@pytest.mark.parametrize("planted", PLANTED, ids=lambda planted: f"{planted.module}: {planted.line}")
def test_a_forbidden_import_breaks_its_contract(
    copied: Path, plant: Callable[[Path, str], None], planted: Planted
) -> None:
    module = copied / planted.module
    plant(module, planted.line + "\n")
    # In a module that the rest of its layer imports, so that indirect imports are found too.
    plant(module.parent / "__init__.py", "\nfrom . import planted\n")
    if planted.contract == "workflows" and not planted.module.startswith("workflows"):
        plant(copied / "workflows" / "imports.py", "import everstep.activities\n")

    result = run_linter(copied)

    assert result.returncode == 1
    assert f"{CONTRACTS[planted.contract]['name']} BROKEN" in result.stdout


def test_a_forbidden_import_is_planted_for_every_contract() -> None:
    assert {planted.contract for planted in PLANTED} == set(CONTRACTS)


SAME_NAMES: dict[str, tuple[str, ...]] = {
    # A port, what stands behind it, and the routes, commands and processes that show it.
    "agent_process": ("everstep/cli", "everstep/runtime"),
    "agents": ("activities", "everstep/cli", "everstep/runtime"),
    "because": ("agent_domain/explanation", "everstep/cli", "everstep/client"),
    "executions": ("agent_domain/storage", "everstep/cli", "everstep/http_api/routes"),
    "gateway": ("everstep/cli", "everstep/runtime"),
    "gateways": ("agent_domain/stream", "everstep/store"),
    "journal": ("everstep/runtime", "everstep/store"),
    "keys": ("agent_domain/storage", "everstep/store"),
    "models": ("everstep/cli", "everstep/inference", "everstep/runtime"),
    "overview": ("agent_domain/storage", "everstep/store"),
    "retention": ("everstep/runtime", "everstep/store"),
    "run_exports": ("everstep/cli", "everstep/client"),
    "search_attributes": ("everstep/runtime/embedded", "workflows"),
    "schedules": (
        "agent_domain/storage",
        "everstep/cli",
        "everstep/client",
        "everstep/http_api/routes",
        "everstep/store",
    ),
    "tenants": ("everstep/client", "everstep/http_api/routes"),
    "webhooks": (
        "agent_domain/storage",
        "everstep/cli",
        "everstep/client",
        "everstep/http_api/routes",
        "everstep/store",
    ),
    "sign_ins": ("agent_domain/storage", "everstep/http_api", "everstep/store"),
    "session_charges": ("agent_domain/storage", "everstep/store"),
    "sessions": (
        "agent_domain/storage",
        "everstep/cli",
        "everstep/client",
        "everstep/http_api/routes",
        "everstep/store",
    ),
    "steps": ("agent_domain/state", "agent_domain/storage"),
    "streams": ("broadcast_gateway", "everstep/http_api/routes", "everstep/store"),
    "usage": ("agent_domain/loop", "everstep/http_api/routes"),
    # A rule or an interface of the domain, and the code that carries it out.
    "attachments": (
        "agent_domain",
        "agent_domain/storage",
        "everstep/http_api/routes",
        "everstep/steps",
        "everstep/store",
    ),
    "builder": ("agent_domain/agents", "everstep/runtime"),
    "inquiry": ("agent_domain/tools", "everstep/local"),
    "processors": ("activities", "agent_domain/agents"),
    "snapshots": ("activities", "agent_domain/state"),
    "subagents": ("activities", "agent_domain/capabilities", "everstep/steps"),
    "toolsets": ("agent_domain/tools", "everstep/steps"),
    # The same thing in sibling rooms: the shells, processes with metrics, errors and contracts of each room.
    "children": ("everstep/local", "workflows"),
    "clock": ("everstep/local", "everstep/testing"),
    "contracts": ("activities", "agent_domain/agents", "workflows"),
    "errors": (
        "agent_domain",
        "everstep/capabilities/mcp",
        "everstep/client",
        "everstep/runtime/embedded",
        "everstep/store",
    ),
    "metrics": ("broadcast_gateway", "everstep/http_api", "everstep/telemetry"),
}
"""Names that several modules have, and the folders of these modules.

They are the sides of one thing, or the same thing in sibling rooms. Each other module has a name of its own.
"""


def folders_by_module(root: Path) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for package in (*LINKED, "everstep"):
        for path in (root / package).rglob("*.py"):
            place = path.parent.relative_to(root)
            is_linked = place.parts[:1] == ("everstep",) and place.parts[1:2] and place.parts[1] in LINKED
            if not (path.stem.startswith("__") or "versions" in place.parts or is_linked):
                found.setdefault(path.stem, []).append(str(place))
    return found


def test_modules_of_one_name_are_sides_of_one_thing() -> None:
    found = {name: tuple(sorted(places)) for name, places in folders_by_module(ROOT).items()}
    assert {name: places for name, places in found.items() if len(places) > 1} == SAME_NAMES


def test_a_second_module_of_a_name_is_noticed(copied: Path) -> None:
    (copied / "everstep" / "cli" / "hub.py").touch()
    assert sorted(folders_by_module(copied)["hub"]) == ["broadcast_gateway", "everstep/cli"]


# Clocks and sources of ids that come with a class or a module that the domain does need.
IMPURE_NAMES = {"now", "utcnow", "today", "uuid1", "uuid4"}
# Names that can be called without an import.
IMPURE_BUILTINS = {"open", "input", "print", "exec", "eval", "__import__", "breakpoint"}
# The domain's permitted imports outside the standard library.
# For type checkers only, which find it without an installation: typing_extensions.
DOMAIN_LIBRARIES = {"everstep", "pydantic", "pydantic_core", "typing_extensions"}


def impurities(source: str) -> Iterator[str]:
    for node in ast.walk(ast.parse(source)):
        match node:
            # A mention is enough: a clock can be passed on without being called.
            case ast.Attribute(
                value=ast.Name(id="datetime" | "date" | "uuid") | ast.Attribute(attr="datetime" | "date"),
                attr=name,
            ) if name in IMPURE_NAMES:
                yield f"{name} in line {node.lineno}"
            case ast.ImportFrom(module="uuid", names=names):
                yield from (f"{n.name} in line {node.lineno}" for n in names if n.name in IMPURE_NAMES)
            case ast.Call(func=ast.Name(id=name)) if name in IMPURE_BUILTINS:
                yield f"{name} in line {node.lineno}"
            case _:
                pass


def imported_libraries(source: str) -> Iterator[str]:
    for node in ast.walk(ast.parse(source)):
        match node:
            case ast.Import(names=names):
                yield from (name.name.partition(".")[0] for name in names)
            case ast.ImportFrom(module=str(module), level=0):
                yield module.partition(".")[0]
            case _:
                pass


def test_the_domain_has_no_input_but_its_arguments() -> None:
    """1.1.2: no clock, no ids, no files, and no library but pydantic."""
    sources = {path: path.read_text() for path in (ROOT / "agent_domain").rglob("*.py")}
    allowed = sys.stdlib_module_names | DOMAIN_LIBRARIES
    found = {
        str(path.relative_to(ROOT)): [*impurities(source), *({*imported_libraries(source)} - allowed)]
        for path, source in sources.items()
    }
    assert found
    assert {module: faults for module, faults in found.items() if faults} == {}


@pytest.mark.parametrize(
    "source",
    [
        "from datetime import datetime\ndatetime.now()",
        "import datetime\ndatetime.datetime.utcnow()",
        "from datetime import date\ndate.today()",
        "import uuid\nuuid.uuid4()",
        "import uuid\nuuid.uuid1()",
        "from uuid import uuid4\nfield(default_factory=uuid4)",
        "from datetime import datetime\nfield(default_factory=datetime.now)",
        "open('/etc/passwd')",
    ],
)
def test_an_impurity_is_noticed(source: str) -> None:
    assert list(impurities(source))


def test_a_third_party_library_is_noticed() -> None:
    assert set(imported_libraries("import numpy.linalg\nfrom requests import get")) == {"numpy", "requests"}


SQL_LIST = re.compile(r"\(\s*'\w+'(?:\s*,\s*'\w+')+\s*\)")
"""A list of words in SQL."""
ENDED_STATUSES = frozenset(status for status in ExecutionStatus if status.is_terminal)
STATUS_SETS = (ENDED_STATUSES, frozenset(ExecutionStatus) - ENDED_STATUSES)


def status_lists(source: str) -> Iterator[int]:
    """Yield the lines with a list of the final statuses, or of the others, in SQL or in Python."""
    for node in ast.walk(ast.parse(source)):
        match node:
            case ast.Constant(value=str(text)):
                found = [re.findall(r"\w+", words) for words in SQL_LIST.findall(text)]
            case ast.Set(elts=elts) | ast.List(elts=elts) | ast.Tuple(elts=elts):
                found = [[elt.attr.lower() for elt in elts if isinstance(elt, ast.Attribute)]]
            case _:
                continue
        yield from (node.lineno for words in found if frozenset(words) in STATUS_SETS)


def test_the_final_statuses_are_listed_in_one_place() -> None:
    folders = [ROOT / folder for folder in (*LINKED, "everstep")]
    modules = {path.resolve() for folder in folders for path in folder.rglob("*.py")}
    found = {
        f"{path.relative_to(ROOT)}:{line}"
        for path in modules
        # A migration is never changed, whatever the statuses become.
        if "migrations" not in path.parts
        for line in status_lists(path.read_text())
    }
    assert {place.partition(":")[0] for place in found} == {"agent_domain/loop/status.py"}, found


@pytest.mark.parametrize(
    "source",
    [
        "text(f\"WHERE status IN ('failed', 'completed',\\n'cancelled') AND {more}\")",
        "text(\"WHERE status NOT IN ('pending', 'running', 'paused')\")",
        "ENDED = {ExecutionStatus.COMPLETED, ExecutionStatus.FAILED, ExecutionStatus.CANCELLED}",
        "row.status in (ExecutionStatus.PENDING, ExecutionStatus.RUNNING, ExecutionStatus.PAUSED)",
    ],
)
def test_a_list_of_final_statuses_is_noticed(source: str) -> None:
    assert list(status_lists(source))


def modules() -> dict[str, str]:
    """The source of every module of the product, by the name under which it is imported."""
    files = {
        f"everstep/{path.relative_to(ROOT)}": path for name in LINKED for path in (ROOT / name).rglob("*.py")
    }
    own = (
        path for path in (ROOT / "everstep").rglob("*.py") if path.relative_to(ROOT).parts[1] not in LINKED
    )
    files |= {str(path.relative_to(ROOT)): path for path in own}
    names = {name.removesuffix(".py").removesuffix("/__init__").replace("/", "."): name for name in files}
    return {name: files[file].read_text(encoding="utf-8") for name, file in names.items()}


def imports(source: str, known: Container[str]) -> Iterator[str]:
    """Yield the known modules that a module imports, also within functions, except for types only."""
    tree, for_types = ast.parse(source), set[ast.AST]()
    for node in ast.walk(tree):
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
            for_types.update(ast.walk(node))
    for node in ast.walk(tree):
        match node:
            case ast.Import(names=names) if node not in for_types:
                yield from (name.name for name in names if name.name in known)
            case ast.ImportFrom(module=str(module), names=names) if node not in for_types:
                found = (f"{module}.{name.name}" for name in names)
                yield from (each if each in known else module for each in found)
            case _:
                pass


def import_cycle(sources: Mapping[str, str]) -> list[str]:
    """Return modules that import each other, or an empty list."""
    graph = {name: {*imports(source, sources)} & sources.keys() - {name} for name, source in sources.items()}
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        return list(error.args[1])
    return []


def test_no_module_imports_one_that_imports_it() -> None:
    """So `everstep.cli.command` is below the commands, and no import is deferred to hide a cycle."""
    assert import_cycle(modules()) == []


def test_an_import_cycle_is_noticed() -> None:
    sources = {"a": "from b import c", "b": "", "b.c": "def lazily():\n    import a"}

    assert {*import_cycle(sources)} == {"a", "b.c"}
    assert import_cycle(sources | {"b.c": "if TYPE_CHECKING:\n    import a"}) == []
