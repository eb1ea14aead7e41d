"""The interpreters of a parallel run: forks of one that has imported what most tests import.

Each of the processes would import for five seconds before it collects its first test.

The packages of tests are not imported here: pytest rewrites the assertions of their files.
"""

import gc
import os
import pkgutil
import sys
from importlib import import_module
from pathlib import Path
from typing import Final, NoReturn

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

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._process = start_programs(folder, __name__)

    @property
    def command(self) -> Path:
        """A command that is called like `python -c TEXT`, once it can be."""
        return wait_for_programs(self._folder, NAME) / NAME

    def close(self) -> None:
        """End it; what was forked goes on."""
        self._process.communicate()


def run_code(arguments: list[str]) -> NoReturn:
    """Run the text of `-c`, as an interpreter does."""
    exec(arguments[arguments.index("-c") + 1], {"__name__": "__main__"})  # noqa: S102 -- of execnet
    sys.stdout.flush()
    os._exit(0)


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
    serve(Path(sys.argv[1]), NAME, run_code)
