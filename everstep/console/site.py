"""Serves the console at `/console/`: the page, its modules and its styles.

All addresses in the page are relative, so that it also works below a path that a proxy strips. Every address
below `/console/` that is not a file is a place inside the program: the server answers it with the page.

The page names its files below a digest of all files, so that browsers keep them until a release changes one.
"""

import base64
import gzip
import hashlib
import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

STATIC: Final = Path(__file__).resolve().parent / "static"
"""The folder of all files; those in `vendor` are of others, as `vendor/vendor.json` says."""

_MEDIA_TYPES: Final = {
    ".js": "text/javascript",
    ".css": "text/css",
    ".svg": "image/svg+xml",
    ".json": "application/json",
    ".txt": "text/plain",
}
_COMPRESSED_FROM: Final = 1024
"""Bytes from which a file is compressed."""

_DIGEST: Final = re.compile(r"([0-9a-f]{16})/")
"""The folder in the addresses of the page; in `static` there is none."""

MAX_DEPTH: Final = 10
"""Folders below `/console/`; each adds to every address in the page, so a long path would make it large."""

_PAGE_HEADERS: Final = {
    "Cache-Control": "no-cache",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Permissions-Policy": "camera=(), geolocation=(), microphone=(), payment=(), usb=()",
}

GatewayUrl = Callable[[], str | None]


def install(app: Starlette, gateway_url: GatewayUrl) -> None:
    """Add the console to an application.

    Args:
        app: The application.
        gateway_url: Returns the URL of the gateway, to which the page may connect.
    """

    async def to_console(request: Request) -> Response:
        # Relative: the path before it may belong to a proxy.
        del request
        return RedirectResponse("console/", 307)

    async def page(request: Request) -> Response:
        return _page(_depth(request), gateway_url())

    app.add_route("/", to_console, include_in_schema=False)
    app.add_route("/console", to_console, include_in_schema=False)
    app.add_route("/console/static/{name:path}", asset, include_in_schema=False)
    app.add_route("/console/{place:path}", page, include_in_schema=False)


async def asset(request: Request) -> Response:
    """Answer a request for a file of `static`."""
    return _file_response(request, request.path_params["name"])


def _file_response(request: Request, name: str) -> Response:
    digest = _DIGEST.match(name)
    name = name[digest.end() :] if digest else name
    # A name with a NUL is no path; one that is absolute, has `..` or names a link can lead out of the folder.
    path = STATIC if "\0" in name else (STATIC / name).resolve()
    if not path.is_relative_to(STATIC) or path.suffix not in _MEDIA_TYPES:
        raise HTTPException(404)
    try:
        file = _read(path, path.stat().st_mtime_ns)
    except OSError:
        raise HTTPException(404) from None
    # During an upgrade, a page of another release may ask for its files here, or an open page for later ones.
    # They are answered with those of this release, and not kept.
    is_kept = digest is not None and digest[1] == _digest()
    kept = "public, max-age=31536000, immutable" if is_kept else "no-cache"
    headers = {"Cache-Control": kept, "ETag": file.tag, "Vary": "Accept-Encoding"}
    known = {each.strip().removeprefix("W/") for each in request.headers.get("if-none-match", "").split(",")}
    if known & {file.tag, "*"}:
        return Response(status_code=304, headers=headers)
    media_type = _MEDIA_TYPES[path.suffix]
    if file.compressed and "gzip" in request.headers.get("accept-encoding", ""):
        return Response(
            file.compressed, headers={**headers, "Content-Encoding": "gzip"}, media_type=media_type
        )
    return Response(file.content, headers=headers, media_type=media_type)


@dataclass(frozen=True, slots=True)
class _File:
    content: bytes
    compressed: bytes | None
    tag: str


@lru_cache(maxsize=256)
def _read(path: Path, changed: int) -> _File:
    """Read a file; `changed` is part of the cache's key, so that an edited file is read again."""
    del changed
    content = path.read_bytes()
    compressed = gzip.compress(content, mtime=0) if len(content) >= _COMPRESSED_FROM else None
    return _File(content, compressed, f'"{hashlib.sha256(content).hexdigest()[:32]}"')


def _digest() -> str:
    """A digest of all files: the same on every host that has the same release."""
    paths = sorted(path for path in STATIC.rglob("*") if path.suffix in _MEDIA_TYPES)
    return _digest_of(tuple((path, path.stat().st_mtime_ns) for path in paths))


@lru_cache(maxsize=1)
def _digest_of(files: tuple[tuple[Path, int], ...]) -> str:
    tags = (f"{path.relative_to(STATIC).as_posix()} {_read(path, changed).tag}\n" for path, changed in files)
    return hashlib.sha256("".join(tags).encode()).hexdigest()[:16]


def _depth(request: Request) -> int:
    """How many folders the page's address is below `/console/`, as the browser counts them."""
    # An encoded slash, as in the name of an agent, separates no folders, and is decoded in `path`.
    path: bytes = request.scope.get("raw_path") or request.url.path.encode()
    depth = path.partition(b"?")[0].partition(b"/console/")[2].count(b"/")
    if depth > MAX_DEPTH:
        raise HTTPException(404)
    return depth


def _page(depth: int, gateway_url: str | None) -> Response:
    # The way back to `/console/` from `/console/executions/{id}` is `../`.
    root = "../" * depth or "./"
    static = f"{root}static/{_digest()}"
    modules = json.dumps({"imports": {**_imports(static), "everstep-client": f"{root}../everstep-client.js"}})
    preloads = "".join(
        f'    <link rel="modulepreload" href="{static}/{name}" />\n' for name in _first_modules()
    )
    text = (STATIC / "index.html").read_text(encoding="utf-8")
    for mark, value in (
        ("{static}", static),
        ("{imports}", modules),
        ("    {preloads}\n", preloads),
    ):
        text = text.replace(mark, value)
    policy = content_security_policy(modules, gateway_url)
    return Response(
        text, headers={**_PAGE_HEADERS, "Content-Security-Policy": policy}, media_type="text/html"
    )


def content_security_policy(import_map: str, gateway_url: str | None) -> str:
    """The policy of the page: scripts, styles and connections of this origin only, and the gateway's.

    Args:
        import_map: The text of the one inline script, which has no program in it.
        gateway_url: The URL of the gateway, if there is one.
    """
    digest = base64.b64encode(hashlib.sha256(import_map.encode()).digest()).decode()
    connections = "'self'" if gateway_url is None else f"'self' {_origin(gateway_url)}"
    return "; ".join(
        (
            "default-src 'none'",
            f"script-src 'self' 'sha256-{digest}'",
            "style-src 'self'",
            "img-src 'self' blob:",
            f"connect-src {connections}",
            "base-uri 'none'",
            "form-action 'none'",
            "frame-ancestors 'none'",
            "require-trusted-types-for 'script'",
            "trusted-types 'none'",
        )
    )


def _origin(url: str) -> str:
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.netloc}"


def _imports(static: str) -> dict[str, str]:
    """The addresses of the modules of others, which the program imports by name."""
    packages = json.loads((STATIC / "vendor" / "vendor.json").read_text(encoding="utf-8"))
    return {
        file["module"]: f"{static}/vendor/{file['file']}" for package in packages for file in package["files"]
    }


def _first_modules() -> list[str]:
    """The modules that every screen needs, which browsers load at once instead of one after the other."""
    ours = sorted(path.relative_to(STATIC).as_posix() for path in STATIC.glob("*.js"))
    return [
        *ours,
        *(f"vendor/{name}.js" for name in ("preact", "preact-hooks", "htm", "signals-core", "signals")),
    ]
