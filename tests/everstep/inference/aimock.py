"""aimock: the providers' APIs as implemented by the npm package `@copilotkit/aimock`."""

import subprocess
import tempfile
import threading
from collections import deque
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx2

from tests.node import installed_modules, node

LOCK = Path(__file__).parent / "node"


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
        """Delete all configured responses and recorded requests."""
        await self._control("POST", "/reset")

    async def add_responses(self, *fixtures: dict[str, Any]) -> None:
        """Add responses; the first one that matches a request is returned."""
        await self._control("POST", "/fixtures", {"fixtures": fixtures})

    async def requests(self) -> list[dict[str, Any]]:
        """The requests that it received, in its own representation."""
        entries = await self._control("GET", "/journal")
        return [entry["body"] for entry in entries]


@contextmanager
def open_aimock() -> Generator[Aimock]:
    """A server on a free port."""
    package = installed_modules(LOCK) / "@copilotkit" / "aimock"
    with tempfile.TemporaryDirectory() as folder:
        fixtures = Path(folder) / "none.json"
        fixtures.write_text('{"fixtures": []}')
        command = [node(), str(package / "dist" / "cli.js"), "--port", "0", "--chunk-size", "5"]
        with subprocess.Popen(  # noqa: S603 -- our own words
            [*command, "--fixtures", str(fixtures)],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        ) as process:
            try:
                url = _address(process)
                # Its output has to be read, or it blocks when the pipe is full.
                reading = threading.Thread(target=deque, args=(process.stdout, 0), daemon=True)
                reading.start()
                yield Aimock(url)
                # The reader ends with the server, before the pipe is closed.
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
