"""Two pages that show an agent at work, with everything they need: servers, a worker, the API, a gateway.

The gateway is a separate process. If you kill it, another one is started on the same port, and the pages
reconnect. Needs no keys.

    python examples/04_browser/serve.py [--data DIR] [--port PORT]
"""

import argparse
import asyncio
import os
import signal
import sys
from asyncio.subprocess import DEVNULL
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import FileResponse, JSONResponse, RedirectResponse, Response
from starlette.routing import Route

from everstep.agent_domain.errors import EverstepError
from everstep.runtime.api import open_local_api
from everstep.runtime.data_folder import data_folder
from everstep.runtime.installation import Installation, open_local_installation
from everstep.runtime.serving import bind_socket, serve_app
from everstep.runtime.settings import Settings

HERE = Path(__file__).parent
HOST = "127.0.0.1"


@dataclass
class Pages:
    """The files for browsers."""

    modules: Path
    config: Mapping[str, str | None] = field(default_factory=dict[str, str | None])
    """The configuration of the pages: the URLs of the API and the gateway, and a token for both.

    Your page gets its token from the server that knows its user.
    """

    @property
    def app(self) -> Starlette:
        """The application that serves them."""
        files = ("index.html", "pusher.html", "view.js", "style.css")
        pages = {f"/{name}": HERE / name for name in files}
        pages["/"] = pages["/index.html"]
        pages["/pusher.js"] = self.pusher

        async def file(request: Request) -> Response:
            path = pages[request.url.path]
            return (
                FileResponse(path, headers={"Cache-Control": "no-cache"})
                if path.exists()
                else Response("", 404)
            )

        async def config(request: Request) -> Response:
            del request
            return JSONResponse(self.config, headers={"Cache-Control": "no-store"})

        async def client(request: Request) -> Response:
            # The client comes from the API that it talks to, so that both have the same version.
            return RedirectResponse(f"{self.config['api']}{request.url.path}")

        routes = [*(Route(path, file) for path in pages), Route("/config.json", config)]
        return Starlette(routes=[*routes, Route("/everstep-client.js", client)])

    @property
    def pusher(self) -> Path:
        """The build of pusher-js for browsers."""
        return self.modules / "pusher-js" / "dist" / "web" / "pusher.min.js"


async def keep_gateway_running(settings: Settings, port: int, origins: Sequence[str]) -> None:
    """Run `everstep gateway`, and start another one whenever it is killed."""
    arguments = ("--data", str(settings.data_dir), "gateway", "--port", str(port))
    environment = {**os.environ, "EVERSTEP_ALLOWED_ORIGINS": ",".join(origins)}
    code = -1
    while code < 0:
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "everstep.cli", *arguments, env=environment, stdout=DEVNULL
        )
        print(f"gateway      ws://{HOST}:{port}, try this: kill -9 {process.pid}", flush=True)
        try:
            code = await process.wait()
        finally:
            if process.returncode is None:
                process.terminate()
                await process.wait()


@asynccontextmanager
async def working(installation: Installation) -> AsyncGenerator[None]:
    """Run a worker."""
    stop = asyncio.Event()
    worker = asyncio.create_task(installation.work(stop))
    try:
        yield
    finally:
        stop.set()
        await worker


async def main(data: Path, port: int, modules: Path) -> None:
    """Run everything until it is stopped."""
    pages = Pages(modules)
    async with serve_app(pages.app, HOST, port, or_any=True) as url:
        # Pages on another port have another origin, for the API and for the gateway.
        origins = (url, url.replace(HOST, "localhost"))
        settings = Settings.read(
            data_dir=data, agents="agents:agents", default_agent="guide", allowed_origins=origins
        )
        print("Starting PostgreSQL and Temporal ...", flush=True)
        async with (
            open_local_installation(settings, temporal_port=0, ui_port=0) as (installation, services),
            working(installation),
            open_local_api(installation) as api,
        ):
            with bind_socket(HOST, settings.gateway_port, or_any=True) as free:
                gateway_port: int = free.getsockname()[1]
            pages.config = {"api": api.url, "gateway": f"ws://{HOST}:{gateway_port}", "token": api.token}
            gateway = asyncio.create_task(keep_gateway_running(installation.settings, gateway_port, origins))
            print(f"HTTP API     {api.url}")
            print(f"pages        {url}/ and {url}/pusher.html; Ctrl-C stops everything", flush=True)
            if not pages.pusher.exists():
                print(f"             pusher.html needs pusher-js: run `npm ci` in {HERE}", flush=True)
            ends = [gateway, *map(asyncio.ensure_future, (wait_for_signal(), services.death))]
            try:
                await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
            finally:
                for end in ends:
                    end.cancel()
                await asyncio.gather(*ends, return_exceptions=True)


async def wait_for_signal() -> None:
    """Wait for Ctrl-C."""
    stop = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    await stop.wait()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Serve two pages that show an agent at work.")
    parser.add_argument(
        "--data", type=Path, help="where the servers keep their data; else outside of this folder"
    )
    parser.add_argument(
        "--port", type=int, default=8090, help="port of the pages; a free one if it is 0 or in use"
    )
    parser.add_argument("--modules", type=Path, default=HERE / "node_modules", help="where pusher-js is")
    given = parser.parse_args()
    try:
        asyncio.run(main(data_folder(Settings.read(data_dir=given.data)), given.port, given.modules))
    except EverstepError as error:
        raise SystemExit(f"Error: {error}") from None
