"""A real nginx with the configuration of `docs/deployment.md`."""

import asyncio
import os
import re
import shutil
import ssl
import subprocess
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import pytest

from tests.acceptance.front import a_free_port
from tests.acceptance.harness import ROOT

PAGE: Final = ROOT / "docs" / "deployment.md"
DEADLINE: Final = 20.0
API_NAME, GATEWAY_NAME = "agents.example.com", "watch.example.com"
"""The names of the page."""

_BLOCK: Final = re.compile(r"```\n(upstream api .*?)```", re.DOTALL)
_MAIN: Final = """
daemon off;
pid {folder}/pid;
error_log stderr;
{user}
events {{ worker_connections 4096; }}
http {{
    access_log off;
    client_body_temp_path {folder}/body;
    proxy_temp_path {folder}/proxy;
    ssl_certificate {folder}/certificate.pem;
    ssl_certificate_key {folder}/key.pem;
    {documented}
}}
"""


@dataclass
class Nginx:
    """A proxy that runs."""

    port: int
    tls: ssl.SSLContext
    """Trusts its certificate."""


def _documented(port: int, apis: Sequence[str], gateways: Sequence[str]) -> str:
    """The configuration of the page, for this port and these servers."""
    found = _BLOCK.search(PAGE.read_text(encoding="utf-8"))
    assert found, f"{PAGE.name} has no configuration of nginx"
    text = found[1].replace("listen 443 ssl;", f"listen 127.0.0.1:{port} ssl;")
    for name, addresses in (("api", apis), ("gateway", gateways)):
        for number, address in enumerate(addresses, 1):
            text, count = re.subn(rf"server {name}-{number}:\d+;", f"server {address};", text)
            assert count == 1, f"{PAGE.name} names {name}-{number} {count} times"
    return text


def _create_certificate(folder: Path) -> None:
    names = ",".join(f"DNS:{name}" for name in (API_NAME, GATEWAY_NAME))
    command = (
        *("openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes"),
        *("-keyout", folder / "key.pem", "-out", folder / "certificate.pem"),
        *("-days", "2", "-subj", "/CN=everstep test", "-addext", f"subjectAltName={names}"),
    )
    subprocess.run(command, check=True, capture_output=True)  # noqa: S603 -- fixed


@asynccontextmanager
async def open_nginx(folder: Path, apis: Sequence[str], gateways: Sequence[str]) -> AsyncGenerator[Nginx]:
    """A proxy in front of two APIs and two gateways, which runs within the block."""
    program = shutil.which("nginx", path=f"{os.environ['PATH']}{os.pathsep}/usr/sbin")
    if program is None:
        pytest.fail("install nginx (Debian: apt-get install nginx-light)")
    folder.mkdir()
    _create_certificate(folder)
    port, file = a_free_port(), folder / "nginx.conf"
    # The user of the package cannot enter the folders of tests.
    user = "" if os.geteuid() else "user root;"
    documented = _documented(port, apis, gateways)
    file.write_text(_MAIN.format(folder=folder, user=user, documented=documented))
    log = folder / "log"
    with log.open("wb") as output:
        process = await asyncio.create_subprocess_exec(
            program, "-p", str(folder), "-e", "stderr", "-c", str(file), stdout=output, stderr=output
        )
    try:
        async with asyncio.timeout(DEADLINE):
            while True:
                assert process.returncode is None, log.read_text()
                try:
                    _, writer = await asyncio.open_connection("127.0.0.1", port)
                except OSError:
                    await asyncio.sleep(0.02)
                else:
                    writer.close()
                    break
        yield Nginx(port, ssl.create_default_context(cafile=folder / "certificate.pem"))
        # An upstream that was killed is expected; a configuration that does not fit is not.
        assert "[emerg]" not in log.read_text()
    finally:
        if process.returncode is None:
            process.terminate()
            await process.wait()
