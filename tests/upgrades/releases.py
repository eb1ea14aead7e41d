"""An earlier release beside this one, with an environment of its own.

    python -m tests.upgrades.releases COMMIT

prints the folder of the release, and makes it first if needed: the files of the commit, with what its lock
names.
"""

import subprocess
import sys
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[2]


def prepare_release(commit: str) -> Path:
    """Return the folder of a release, below the environment of this one.

    Raises:
        SystemExit: This clone does not have the commit.
    """
    named = _run("git", "rev-parse", "--verify", "--quiet", f"{commit}^{{commit}}", check=False)
    if named.returncode:
        sys.exit(f"this clone has no commit '{commit}': fetch it, or name another one: make upgrade FROM=...")
    folder = Path(sys.prefix) / "releases" / named.stdout.decode().strip()
    if not (folder / "pyproject.toml").exists():
        folder.mkdir(parents=True, exist_ok=True)
        archive = _run("git", "archive", folder.name).stdout
        subprocess.run(["tar", "-x", "-C", folder], input=archive, check=True)  # noqa: S603, S607 -- our own archive
    _run("make", "--silent", "-C", str(folder), f"PYTHON={sys.executable}", ".venv/.ready")
    return folder


def _run(*command: str, check: bool = True) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, check=check)  # noqa: S603 -- fixed commands


if __name__ == "__main__":
    sys.stdout.write(f"{prepare_release(sys.argv[1])}\n")
