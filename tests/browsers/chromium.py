"""Pages in the installed Chromium."""

import asyncio
import shutil
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path

import uvicorn
from fastapi import FastAPI
from playwright.async_api import Browser, Page, async_playwright
from starlette.applications import Starlette
from starlette.responses import FileResponse

from everstep.http_api import pages
from tests.browsers.scripted_gateway import DEADLINE
from tests.browsers.viewer import HERE
from tests.node import do_without

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")


def chromium_path() -> str:
    """The installed Chromium."""
    path = next(filter(None, map(shutil.which, NAMES)), None)
    if path is None:
        do_without("this needs Chromium; install it (Debian: apt-get install chromium)")
    return path


@asynccontextmanager
async def chromium() -> AsyncGenerator[Browser]:
    """A headless browser."""
    path = chromium_path()
    async with async_playwright() as playwright:
        browser = await playwright.chromium.launch(executable_path=path)
        try:
            yield browser
        finally:
            await browser.close()


@asynccontextmanager
async def a_page(browser: Browser, pictures: Path) -> AsyncGenerator[Page]:
    """An empty page; a failing test keeps a screenshot, and its log is reported."""
    page = await browser.new_page()
    page.set_default_timeout(DEADLINE * 1000)
    logged: list[str] = []
    page.on("console", lambda message: logged.append(message.text))
    page.on("pageerror", lambda error: logged.append(str(error)))
    try:
        yield page
    except BaseException as error:
        picture = pictures / "page.png"
        await page.screenshot(path=picture)
        error.add_note(f"The page looks like {picture}, and logged {logged}")
        raise
    finally:
        await page.close()


def our_pages() -> FastAPI:
    """The HTTP API's public files, and `page.html` beside them."""
    app = FastAPI()
    pages.install(app)

    async def page(_: object) -> FileResponse:
        return FileResponse(HERE / "page.html")

    app.add_route("/", page)
    return app


@asynccontextmanager
async def serve_app(app: Starlette) -> AsyncGenerator[str]:
    """Serve an application on a free port and return its address."""
    server = uvicorn.Server(uvicorn.Config(app, "127.0.0.1", 0, log_config=None, lifespan="off"))
    socket = server.config.bind_socket()
    serving = asyncio.create_task(server.serve([socket]))
    try:
        # The socket listens since it was bound, so connections before the first accept wait.
        yield f"http://127.0.0.1:{socket.getsockname()[1]}"
    finally:
        server.should_exit = True
        await serving
        socket.close()
