"""How the console is served: addresses, headers, and files that are what they say."""

import base64
import hashlib
import re
import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx2
import pytest
from fastapi import FastAPI

from everstep.console import site
from everstep.console.site import MAX_DEPTH, STATIC
from everstep.http_api.app import create_app
from everstep.http_api.metrics import Metrics

GATEWAY = "wss://watch.example/here"
ORIGIN_OF_GATEWAY = "wss://watch.example"
MOST_BYTES = 150_000


@pytest.fixture(scope="module")
def app() -> FastAPI:
    """An application that has no servers behind it."""
    nothing: Any = SimpleNamespace(
        allowed_origins=(), allowed_hosts=None, metrics=Metrics(), gateway_url=lambda: GATEWAY
    )
    return create_app(nothing)


@pytest.fixture
def http(app: FastAPI) -> httpx2.AsyncClient:
    """A client of it."""
    return httpx2.AsyncClient(transport=httpx2.ASGITransport(app), base_url="http://api.test")


def policy(answer: httpx2.Response) -> dict[str, str]:
    rules = dict[str, str]()
    for part in answer.headers["content-security-policy"].split("; "):
        name, _, value = part.partition(" ")
        rules[name] = value
    return rules


async def test_the_root_leads_to_the_console(http: httpx2.AsyncClient) -> None:
    """16.1.1: by a relative address, as a proxy may serve it below a path."""
    for path in ("/", "/console"):
        answer = await http.get(path)
        assert (answer.status_code, answer.headers["location"]) == (307, "console/")


@pytest.mark.parametrize(
    ("place", "root"),
    [
        ("", "./"),
        ("system", "./"),
        ("executions/31315973", "../"),
        ("compare/a/b", "../../"),
        ("agents/a%2Fb%2Fc", "../"),
    ],
)
async def test_every_place_is_answered_with_the_page(http: httpx2.AsyncClient, place: str, root: str) -> None:
    """16.1.1: all addresses in it are relative, and its modules are found from each place."""
    answer = await http.get(f"/console/{place}")

    assert answer.status_code == 200
    assert answer.headers["cache-control"] == "no-cache"
    addresses = re.findall(r'(?:href|src)="(.*?)"', answer.text)
    assert addresses
    assert all(address.startswith(f"{root}static/") for address in addresses)
    for address in addresses:
        reached = httpx2.URL(f"http://api.test/console/{place}").join(address)
        assert (await http.get(str(reached))).status_code == 200, address


async def test_a_deep_address_is_no_place(http: httpx2.AsyncClient) -> None:
    """16.1.1: the page would be large, as all its addresses lead back."""
    page = await http.get("/console/" + "a/" * MAX_DEPTH)
    assert page.status_code == 200
    assert (await http.get("/console/" + "a/" * (MAX_DEPTH + 1))).status_code == 404


async def test_the_page_may_load_nothing_from_elsewhere(http: httpx2.AsyncClient) -> None:
    """16.1.2: connections to the gateway are the only ones to another origin."""
    answer = await http.get("/console/")
    rules = policy(answer)

    (import_map,) = re.findall(r'<script type="importmap">(.*?)</script>', answer.text)
    digest = base64.b64encode(hashlib.sha256(import_map.encode()).digest()).decode()
    assert rules == {
        "default-src": "'none'",
        "script-src": f"'self' 'sha256-{digest}'",
        "style-src": "'self'",
        "img-src": "'self' blob:",
        "connect-src": f"'self' {ORIGIN_OF_GATEWAY}",
        "base-uri": "'none'",
        "form-action": "'none'",
        "frame-ancestors": "'none'",
        "require-trusted-types-for": "'script'",
        "trusted-types": "'none'",
    }
    assert len(re.findall(r"<script(?! (?:type=\"module\" )?src)", answer.text)) == 1, "one inline script"
    assert "style=" not in answer.text


async def test_files_are_compressed_and_asked_for_again(http: httpx2.AsyncClient) -> None:
    """16.1.1"""
    answer = await http.get("/console/static/app.js", headers={"Accept-Encoding": "gzip"})
    assert answer.headers["content-encoding"] == "gzip"
    assert answer.text == (STATIC / "app.js").read_text()
    assert answer.headers["content-type"].startswith("text/javascript")

    again = await http.get("/console/static/app.js", headers={"If-None-Match": answer.headers["etag"]})
    assert (again.status_code, again.content) == (304, b"")
    plain = await http.get("/console/static/app.js", headers={"Accept-Encoding": "identity"})
    assert "content-encoding" not in plain.headers
    assert plain.text == answer.text


async def test_files_of_the_page_are_kept_until_one_changes(http: httpx2.AsyncClient) -> None:
    """16.1.1: a page of another release, which an upgrade has left open, gets today's files."""
    page = await http.get("/console/inbox")
    (address,) = re.findall(r'src="(.*?/app\.js)"', page.text)
    assert re.fullmatch(r"\./static/[0-9a-f]{16}/app\.js", address)

    kept = await http.get(str(httpx2.URL("http://api.test/console/inbox").join(address)))
    assert kept.headers["cache-control"] == "public, max-age=31536000, immutable"
    imported = re.findall(r'"everstep-client": "(.*?)"', page.text)
    assert imported == ["./../everstep-client.js"], "programs of others ask for it by this name"
    other = await http.get(f"/console/static/{'0' * 16}/app.js")
    assert (other.headers["cache-control"], other.text) == ("no-cache", kept.text)
    assert (await http.get(f"/console/static/{'0' * 16}/%2e%2e/site.py")).status_code == 404


async def test_a_changed_file_changes_its_address(
    http: httpx2.AsyncClient, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """16.1.1"""
    folder = tmp_path.resolve() / "static"
    shutil.copytree(STATIC, folder)
    before = await http.get("/console/")
    monkeypatch.setattr(site, "STATIC", folder)
    assert (await http.get("/console/")).text == before.text, "the same on another host, at another time"
    (folder / "screens" / "usage.js").write_text("// another")
    assert (await http.get("/console/")).text != before.text


@pytest.mark.parametrize(
    "name",
    [
        "nothing.js",
        "%2e%2e/site.py",
        "index.html",
        "%00.js",
        "vendor",
        "vendor/..%2f..%2fsite.py",
    ],
)
async def test_names_outside_are_not_served(http: httpx2.AsyncClient, name: str) -> None:
    """16.1.1"""
    answer = await http.get(f"/console/static/{name}")

    assert answer.status_code == 404


@pytest.mark.parametrize(
    "start", ["%2F", "/", "//", "%2F%2F", "vendor%2F..%2F..%2F..%2F..%2F..%2F..%2F..%2F.."]
)
async def test_absolute_names_are_not_served(http: httpx2.AsyncClient, start: str, tmp_path: Path) -> None:
    """16.1.1"""
    (tmp_path / "secret.json").write_text("{}")
    answer = await http.get(f"/console/static/{start}{str(tmp_path / 'secret.json')[1:]}")

    assert answer.status_code == 404
    assert answer.headers["content-type"] == "application/problem+json"


async def test_all_scripts_together_are_small(http: httpx2.AsyncClient) -> None:
    """16.1.3: as they are sent, compressed."""
    sizes = list[int]()
    for path in STATIC.rglob("*.js"):
        address = f"/console/static/{path.relative_to(STATIC).as_posix()}"
        request = http.build_request("GET", address, headers={"Accept-Encoding": "gzip"})
        answer = await http.send(request, stream=True)
        sizes.append(len(b"".join([chunk async for chunk in answer.aiter_raw()])))
    assert sum(sizes) < MOST_BYTES, sum(sizes)
