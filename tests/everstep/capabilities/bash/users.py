"""Workers of two kinds: one that runs as root, and one that does not."""

import json
import os
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from tempfile import mkdtemp
from typing import IO, Any

import pytest

from tests.everstep.capabilities.bash import attacker

ROOT = Path(__file__).parents[4]
NOBODY = 65534


@dataclass(frozen=True)
class WorkerUser:
    """A user that runs a worker, and has a folder."""

    folder: Path
    """A folder that all users may read."""
    uid: int
    python: str

    def worker(self, **asked: Any) -> dict[str, Any]:
        """The results that agents of such a worker read."""
        self.take_ownership()
        order = {**asked, "base": str(asked["base"]), "home": str(self.folder / "home")}
        workers = _workers(self.uid, self.python)
        assert workers.stdin
        assert workers.stdout
        workers.stdin.write(json.dumps(order) + "\n")
        workers.stdin.flush()
        answer = json.loads(workers.stdout.readline())
        assert "error" not in answer, answer["error"]
        return answer["result"]

    def bash(self, base: Path, *commands: str, **asked: Any) -> list[str]:
        """The results of commands."""
        return self.worker(base=base, commands=commands, **asked)["bash"]

    def take_ownership(self) -> None:
        """Give all files in the folder to this user."""
        if os.geteuid() == 0:
            for place, folders, names in os.walk(self.folder):
                for name in (*folders, *names):
                    os.chown(f"{place}/{name}", self.uid, self.uid, follow_symlinks=False)

    def git(self, folder: Path, *words: str) -> str:
        """The output of git, outside of a sandbox."""
        self.take_ownership()
        ran = self.run(["git", "-C", str(folder), *words], cwd=folder)
        assert ran.returncode == 0, ran.stderr
        return ran.stdout

    def run(self, command: list[str], cwd: Path) -> "subprocess.CompletedProcess[str]":
        """Run a program as this user."""
        return subprocess.run(  # noqa: S603 -- our own words
            command, cwd=cwd, capture_output=True, text=True, check=False, **self.options
        )

    def start(self, command: list[str], cwd: Path, err: IO[str]) -> "subprocess.Popen[str]":
        """Start a program in the background; its output can be read."""
        return subprocess.Popen(command, cwd=cwd, stdout=-1, stderr=err, text=True, **self.options)  # noqa: S603

    @property
    def options(self) -> dict[str, Any]:
        """How its processes are started."""
        path = os.pathsep.join([str(ROOT), sysconfig.get_path("purelib")])
        who: dict[str, Any] = {"user": self.uid, "group": self.uid, "extra_groups": []}
        env = {"PATH": os.environ["PATH"], "PYTHONPATH": path, "HOME": str(self.folder / "home"), **GIT}
        return {"env": env, **(who if os.geteuid() != self.uid else {})}


@cache
def _python_of_others() -> str | None:
    """An interpreter for ordinary users, who may be unable to reach root's."""
    for python in (sys.executable, f"/usr/bin/python3.{sys.version_info.minor}"):
        user = WorkerUser(Path("/"), NOBODY, python)
        with suppress(OSError):
            if user.run([python, "-c", f"import {attacker.__name__}"], cwd=ROOT).returncode == 0:
                return python
    return None


@cache
def _workers(uid: int, python: str) -> "subprocess.Popen[str]":
    """The process that forks this user's workers. It ends with the test run, as its input ends then."""
    user = WorkerUser(Path("/"), uid, python)
    return subprocess.Popen(  # noqa: S603 -- our own words
        [python, "-m", attacker.__name__], cwd=ROOT, stdin=-1, stdout=-1, text=True, **user.options
    )


GIT = {
    "GIT_AUTHOR_NAME": "a",
    "GIT_AUTHOR_EMAIL": "a@example.com",
    "GIT_COMMITTER_NAME": "a",
    "GIT_COMMITTER_EMAIL": "a@example.com",
}


def open_worker_user(kind: str) -> Iterator[WorkerUser]:
    """The user of the test run, and if that is root, an ordinary user."""
    folder = Path(mkdtemp(dir="/var/tmp", prefix="everstep-user-"))
    folder.chmod(0o755)
    (folder / "home").mkdir()
    try:
        if kind == "own":
            os.chown(folder, os.geteuid(), os.getegid())
            yield WorkerUser(folder, os.geteuid(), sys.executable)
            return
        if os.geteuid() != 0:
            pytest.skip("only root can become another user; under a plain user all other tests are this one")
        os.chown(folder, NOBODY, NOBODY)
        python = _python_of_others()
        if python is None:
            pytest.skip("no other user can reach an interpreter and the packages installed here")
        yield WorkerUser(folder, NOBODY, python)
    finally:
        shutil.rmtree(folder)
