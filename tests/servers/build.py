"""The Temporal server and its SQL tool, built from their Go module.

They are built once, into the user's cache: the build takes some minutes and a few gigabytes of memory.
"""

import os
from dataclasses import dataclass
from pathlib import Path
from shutil import which
from typing import Final

from tests.servers.postgres import NotInstalled
from tests.servers.programs import run

VERSION: Final = "1.32.0"
MODULE: Final = "go.temporal.io/server"
PACKAGES: Final = {"server": f"{MODULE}/cmd/server", "sql": f"{MODULE}/cmd/tools/sql"}
"""The programs, and the packages that they are built from."""


@dataclass(frozen=True)
class TemporalPrograms:
    """The paths of both programs."""

    server: Path
    sql_tool: Path


def cache_folder() -> Path:
    """Where the programs of this version are."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return cache / "everstep" / f"temporal-{VERSION}"


def find_built() -> TemporalPrograms | None:
    """The programs, if they were built before."""
    folder = cache_folder()
    found = TemporalPrograms(folder / "server", folder / "sql")
    return found if found.server.exists() and found.sql_tool.exists() else None


async def build() -> TemporalPrograms:
    """Return the programs; build them first if there are none.

    Raises:
        NotInstalled: Go is missing, or cannot build them.
    """
    found = find_built()
    if found:
        return found
    if not which("go"):
        raise NotInstalled(
            f"Go is not installed, and the Temporal server {VERSION} is built with it: install Go 1.26.4 "
            "or later from https://go.dev/dl"
        )
    folder = cache_folder()
    folder.mkdir(parents=True, exist_ok=True)
    given = {"GOBIN": str(folder), "CGO_ENABLED": "0"}
    for package in PACKAGES.values():
        try:
            await run("go", "install", "-ldflags=-s -w", f"{package}@v{VERSION}", environment=given)
        except RuntimeError as error:
            raise NotInstalled(f"the Temporal server {VERSION} cannot be built: {error}") from None
    found = find_built()
    assert found, f"{folder} lacks a program"
    return found
