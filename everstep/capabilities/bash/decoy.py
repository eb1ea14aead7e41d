"""A fake project for the self-test to attack: with data of an installation, secrets, and git."""

import os
import shutil
import socket
from collections.abc import Generator, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from tempfile import mkdtemp
from typing import Any, Final
from uuid import UUID

from everstep.agent_domain.capabilities.files import OUTSIDE
from everstep.agent_domain.tools.tools import ToolContext
from everstep.capabilities.bash import mounts
from everstep.capabilities.files import FileTool, UseFileTools

_FILES: Final = {
    ".everstep/api-secret": "secret",
    ".everstep/postgres/PG_VERSION": "18",
    ".everstep/postgres/postgresql.auto.conf": "",
    ".env": "secret",
    "sub/.env.local": "secret",
    "everstep.toml": "",
    ".claude/agents/a.md": "",
    ".git/HEAD": "ref: refs/heads/main\n",
    ".git/config": "",
    ".git/hooks/a.sample": "",
    ".git/info/exclude": "",
    ".git/objects/info/packs": "",
    ".git/refs/heads/main": "",
}
_UNREADABLE: Final = (".everstep/api-secret", ".env", "sub/.env.local")
_UNWRITABLE: Final = (
    *(".everstep/postgres/postgresql.auto.conf", ".everstep/agents/x.md", ".claude/agents/x.md", ".env"),
    *("everstep.toml", ".git/config", ".git/hooks/x", ".git/commondir", "sub/.git/config"),
)
_CONTEXT: Final = ToolContext(UUID(int=0), "check", 1)


@contextmanager
def decoy(owner: os.stat_result) -> Generator[Path]:
    """A folder with `project` and `empty`, owned by the owner of the base directory."""
    folder = Path(os.path.realpath(mkdtemp(prefix="everstep-decoy-")))
    try:
        folder.chmod(0o755)
        (folder / "empty").mkdir()
        for name, text in _FILES.items():
            path = folder / "project" / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, "utf-8")
        with socket.socket(socket.AF_UNIX) as database:
            _listen(database, folder / "project/.everstep/run")
            if os.geteuid() == 0:
                for place, folders, names in os.walk(folder):
                    for name in (*folders, *names):
                        os.chown(f"{place}/{name}", owner.st_uid, owner.st_gid, follow_symlinks=False)
            yield folder
    finally:
        mounts.forget(str(folder))
        shutil.rmtree(folder, ignore_errors=True)


def _listen(database: socket.socket, folder: Path) -> None:
    """Listen where PostgreSQL would; by a short path, because the paths of sockets have a length limit."""
    folder.mkdir()
    here = os.open(folder, os.O_PATH | os.O_CLOEXEC)
    try:
        database.bind(f"/proc/self/fd/{here}/.s.PGSQL.5432")
    finally:
        os.close(here)
    database.listen()


def paths_open_to_file_tools(project: Path, empty: Path) -> list[str]:
    """The paths that file tools can read or write there, and must not."""
    return [*_open_paths(project, _UNREADABLE, _UNWRITABLE), *_open_paths(empty, (), _UNWRITABLE)]


def _open_paths(base: Path, unreadable: tuple[str, ...], unwritable: tuple[str, ...]) -> Iterator[str]:
    tools = {tool.name: tool for tool in UseFileTools(base).tools}
    for path in unreadable:
        if _call_tool(tools, "read_file", {"path": path}) != OUTSIDE:
            yield f"reading {path}"
    for path in unwritable:
        if _call_tool(tools, "write_file", {"path": path, "content": "x"}) != OUTSIDE:
            yield f"writing {path}"


def _call_tool(tools: Mapping[str, FileTool], name: str, args: dict[str, Any]) -> str:
    return str(tools[name].call(args, _CONTEXT))
