"""The fixtures and limits of every test."""

import gc
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

from everstep.runtime.signals import restore_for_children
from tests.certificates import share_certificates
from tests.engines import close_engines
from tests.interpreters import Interpreters
from tests.services import INTERPRETERS, ServerHost, databases, interpreter, programs, services

# Only here: imported into several conftests, each would start servers of its own.
__all__ = ["databases", "interpreter", "programs", "services"]

# A background job of a script ignores SIGINT. Its children would inherit that and never end when a test sends
# SIGINT.
restore_for_children()

share_certificates()

# An example's duration depends on the machine more than on the code. The other settings stay hypothesis's
# defaults, which differ where the variable CI is set.
# Thirty examples find nearly all that a hundred do, and each run draws others; `make properties` tries more.
settings.register_profile(
    "everstep", settings(), deadline=None, suppress_health_check=[HealthCheck.too_slow], max_examples=30
)
settings.register_profile("thorough", settings.get_profile("everstep"), max_examples=1000)
settings.load_profile("everstep")

SERVERS = pytest.StashKey[ServerHost]()
FORKED = pytest.StashKey[Interpreters]()

CONSOLE = "tests/console/"
TESTS = Path(__file__).parent
FIRST = ("acceptance", "console", "wires", "browsers")
LAST = "agent_domain"
"""Folders of tests."""

GARBAGE = (20_000, 20, 20)
"""New objects, and searches, until the next search for garbage. With the interpreter's thresholds, searches
took a twentieth of the CPU time of the tests.
"""

SLOW_SECONDS = 1800
"""The limit for each test of a run that includes the slow ones."""


def pytest_configure(config: pytest.Config) -> None:
    """Register the marker for tests that are too slow for every run."""
    config.addinivalue_line("markers", "slow: takes too long for every day; run with -m slow")
    config.addinivalue_line(
        "markers", "installation: drives processes of a running installation over their own ports"
    )


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_setupnodes(config: pytest.Config, specs: list[Any]) -> None:
    """Start what the processes of a parallel run share."""
    config.stash[SERVERS] = servers = ServerHost()
    # Coverage counts the lines that an import runs, so its processes import for themselves.
    if config.getoption("cov_source", None):
        return
    ignored = (f"--ignore={path}" for path in config.getoption("ignore") or ())
    interpreters = Interpreters(servers.folder / INTERPRETERS, [*config.args, *ignored])
    config.stash[FORKED] = interpreters
    for spec in specs:
        spec.python = str(interpreters.command)


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: Any) -> None:
    """Let the processes of a parallel run share servers."""
    node.workerinput["servers"] = str(node.config.stash[SERVERS].folder)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Run each file in one process, and those of the console in the same one: they share an installation."""
    # Only for parallel runs.
    from xdist.scheduler import LoadFileScheduling  # noqa: PLC0415 # pyright: ignore[reportMissingTypeStubs]

    class Scheduling(LoadFileScheduling):
        def _split_scope(self, nodeid: str) -> str:
            file = super()._split_scope(nodeid)
            return CONSOLE if file.startswith(CONSOLE) else file

    return Scheduling(config, log) if config.getoption("dist") == "loadfile" else None


def pytest_sessionfinish() -> None:
    """Close what tests used one after the other."""
    close_engines()


def pytest_unconfigure(config: pytest.Config) -> None:
    """Stop what the processes of a parallel run shared."""
    if interpreters := config.stash.get(FORKED, None):
        interpreters.close()
    if servers := config.stash.get(SERVERS, None):
        servers.close()


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Look for no garbage among modules and tests, which stay; it took half of the collection's time."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.set_threshold(*GARBAGE)
        gc.enable()


def _turn(item: pytest.Item) -> int:
    folder = item.path.relative_to(TESTS).parts[0] if item.path.is_relative_to(TESTS) else ""
    return FIRST.index(folder) if folder in FIRST else len(FIRST) + (folder == LAST)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Deselect the slow tests unless they are requested; those that wait the longest come first.

    Tests of the domain come last: those files are short and wait for no server, so that all processes of a
    run end at about the same time.
    """
    items.sort(key=_turn)
    if "slow" in str(config.getoption("markexpr")):
        for item in items:
            item.add_marker(pytest.mark.timeout(SLOW_SECONDS))
        return
    left_out = [item for item in items if item.get_closest_marker("slow")]
    items[:] = [item for item in items if item not in left_out]
    config.hook.pytest_deselected(items=left_out)
