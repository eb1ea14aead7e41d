"""Builders for files: a directory with secrets around it, and the tools that work in it."""

import ctypes
import os
import tempfile
import threading
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from uuid import UUID

from everstep.agent_domain.capabilities.bash import ExecutionPolicy
from everstep.agent_domain.tools.tools import ToolContext
from everstep.capabilities.files import FileTool, ListDirTool, SearchFilesTool, UseFileTools

CONTEXT = ToolContext(UUID(int=1), "c1", 1)
SECRET = "the secret"  # noqa: S105 -- must not be read
OUTSIDE = "Error: Path is outside the allowed directory"


class FileTree:
    """A base directory; next to it one with a secret, and one whose name has the base's name as a prefix."""

    def __init__(self, root: Path) -> None:
        self.base, self.outside, self.beside = root / "base", root / "outside", root / "base-too"
        for directory in (self.base, self.outside / "sub", self.beside):
            directory.mkdir(parents=True)
        for file in (self.outside / "secret.txt", self.outside / "sub" / "b.txt", self.beside / "secret.txt"):
            file.write_text(SECRET)
        (self.base / "sub").mkdir()
        (self.base / "a.txt").write_text("one\ntwo\n")
        (self.base / "sub" / "b.txt").write_text("inside\n")

    def tools(self, policy: ExecutionPolicy | None = None) -> dict[str, FileTool]:
        """All file tools, by name."""
        more = (SearchFilesTool(self.base), ListDirTool(self.base, policy=policy))
        return {tool.name: tool for tool in (*UseFileTools(self.base, policy).tools, *more)}

    def call(self, tool: str, policy: ExecutionPolicy | None = None, /, **args: Any) -> str:
        """The result that the model reads."""
        return self.tools(policy)[tool].call(args, CONTEXT)

    def read(self, path: str, **args: Any) -> str:
        return self.call("read_file", path=path, **args)

    def write(self, path: str, content: str = "new") -> str:
        return self.call("write_file", path=path, content=content)

    def edit(self, path: str, old: str, new: str, **args: Any) -> str:
        return self.call("edit_file", path=path, old_string=old, new_string=new, **args)

    def link(self, path: str, target: Path | str) -> None:
        (self.base / path).symlink_to(target)

    def files_outside(self) -> dict[str, str]:
        """All files outside, with their contents."""
        files = [path for place in (self.outside, self.beside) for path in place.rglob("*")]
        return {str(path): path.read_text() if path.is_file() else "" for path in files}

    def names(self) -> list[str]:
        """All files inside, without directories."""
        found = (Path(folder) / name for folder, _, names in os.walk(self.base) for name in names)
        return sorted(str(path.relative_to(self.base)) for path in found)


NOBODY = 65534


@contextmanager
def drop_privileges(ground: FileTree) -> Generator[None]:
    """Without root's rights, which bypass file permissions."""
    if os.geteuid() != 0:
        yield
        return
    for folder, _, names in os.walk(ground.base):
        for path in (folder, *(os.path.join(folder, name) for name in names)):
            os.lchown(path, NOBODY, NOBODY)
    os.setegid(NOBODY)
    os.seteuid(NOBODY)
    try:
        yield
    finally:
        os.seteuid(0)
        os.setegid(0)


@contextmanager
def open_public_directory() -> Generator[Path]:
    """A directory that all users may enter, unlike pytest's."""
    with tempfile.TemporaryDirectory() as directory:
        Path(directory).chmod(0o755)
        yield Path(directory)


EXCHANGE = 2
AT_CWD = -100


def swap_names(first: Path, second: Path) -> None:
    """Exchange two names, atomically."""
    if ctypes.CDLL(None, use_errno=True).renameat2(AT_CWD, bytes(first), AT_CWD, bytes(second), EXCHANGE):
        raise OSError(ctypes.get_errno(), "the names could not be exchanged")


@contextmanager
def swap_names_in_loop(first: Path, second: Path) -> Generator[None]:
    """Exchange two names in a loop."""
    over = threading.Event()

    def swap() -> None:
        while not over.is_set():
            swap_names(first, second)

    thread = threading.Thread(target=swap)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()
