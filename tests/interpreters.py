"""The interpreters of a parallel run: forks of one that has imported everything that the tests import.

Each of the processes would import for five seconds before it collects its first test, and after a checkout
each would compile all files of tests, whose assertions pytest rewrites.
"""

import gc
import os
import pkgutil
import sys
import threading
from collections.abc import Iterable
from importlib import import_module
from pathlib import Path
from typing import Final, NoReturn

import pytest

import everstep
from tests.certificates import share_certificates
from tests.programs import serve, start_programs, wait_for_programs

NAME: Final = "python"

PACKAGES: Final = (
    "anthropic",
    "fastapi.testclient",
    "hypothesis",
    "mcp.client.client",
    "openai",
    "playwright.async_api",
    "playwright.sync_api",
    "schemathesis",
    "sqlalchemy.ext.asyncio",
    "temporalio.worker",
)

OTHER_PROGRAMS: Final = ("__main__", "migrations", "guard", "launcher")
"""Modules that are programs of their own, or that only their framework imports."""


class Interpreters:
    """The process that forks interpreters. It ends with this one."""

    def __init__(self, folder: Path, arguments: Iterable[str]) -> None:
        """Start it.

        Args:
            folder: The folder of the command.
            arguments: Those of pytest that say which tests are collected.
        """
        self._folder = folder
        self._process = start_programs(folder, __name__, *arguments)

    @property
    def command(self) -> Path:
        """A command that is called like `python -c TEXT` or `python -m pytest`, once it can be."""
        return wait_for_programs(self._folder, NAME) / NAME

    def close(self) -> None:
        """End it; what was forked goes on."""
        self._process.communicate()


def run_code(arguments: list[str]) -> NoReturn:
    """Run the text of `-c`, or `-m pytest`, as an interpreter does."""
    if arguments[:2] == ["-m", "pytest"]:
        # Another project has modules of the same names.
        for name in [name for name in sys.modules if name.split(".")[0] == "tests"]:
            del sys.modules[name]
        sys.path.insert(0, str(Path.cwd()))
        sys.exit(pytest.main(arguments[2:]))
    exec(arguments[arguments.index("-c") + 1], {"__name__": "__main__"})  # noqa: S102 -- of execnet
    sys.stdout.flush()
    os._exit(0)


def import_tests(arguments: Iterable[str]) -> None:
    """Import the files of these tests as pytest does. The run itself reports what cannot be imported."""
    own, silent = os.dup(1), os.open(os.devnull, os.O_WRONLY)
    os.dup2(silent, 1)
    try:
        pytest.main(["--collect-only", "-qq", "-n0", "-p", "no:cacheprovider", *arguments])
    finally:
        os.dup2(own, 1)
        os.close(own)
        os.close(silent)
    assert threading.active_count() == 1, "a fork would have half of the threads"


def import_most(package: str = everstep.__name__) -> None:
    """Import the packages above and all modules of Everstep."""
    for name in PACKAGES:
        import_module(name)
    paths = import_module(package).__path__
    for module in pkgutil.walk_packages(paths, f"{package}.", onerror=print):
        if not set(module.name.split(".")) & set(OTHER_PROGRAMS):
            import_module(module.name)


if __name__ == "__main__":
    # None of what is imported becomes garbage.
    gc.disable()
    share_certificates()
    import_most()
    import_tests(sys.argv[2:])
    serve(Path(sys.argv[1]), NAME, run_code)
