"""The client of the HTTP API that the commands use."""

import asyncio
from collections.abc import AsyncGenerator, Callable, Iterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from http import HTTPStatus
from itertools import chain, repeat
from pathlib import Path
from time import monotonic
from typing import Any, TypeVar
from uuid import uuid4

import click
import httpx2
from pydantic import BaseModel, ValidationError

from everstep.agent_domain.attachments import Attachment
from everstep.agent_domain.errors import EverstepError, InvalidInput
from everstep.agent_domain.ids import DEFAULT_TENANT
from everstep.cli.printing import echo
from everstep.runtime.data_folder import known_data_folder, local_url
from everstep.runtime.local_secret import find_local_secret
from everstep.runtime.settings import Settings

ModelT = TypeVar("ModelT", bound=BaseModel)
F = TypeVar("F", bound=Callable[..., Any])

PATIENCE_SECONDS = 120.0
"""Seconds for which requests are retried while an API is unavailable that has answered before."""
LIMIT_PATIENCE_SECONDS = 10.0
"""Seconds for which any request waits while a limit refuses it."""
TIMEOUT = httpx2.Timeout(30, connect=5)
"""The API answers every request within 15 seconds."""
MAX_WAIT = 5.0

TRANSIENT = frozenset({408, 429, 502, 503, 504})
"""The statuses of requests that may be sent again."""
_DENIED = frozenset({401, 403})
_LOCAL_HOSTS = frozenset({"localhost", "127.0.0.1", "::1"})
_HOW_TO_CONNECT = (
    "start a local installation with `everstep up`, or name another API (--url, EVERSTEP_API_URL)"
)
_WHERE_TO_RUN = (
    "A local installation is found by the current folder, HOME and XDG_STATE_HOME, which programs that start "
    "others may set differently: name the data folder that `everstep up` prints with --data"
)

_TRY_AGAIN = "try again; `everstep doctor` checks the installation"


class Declined(EverstepError):
    """The API refused a request.

    Attributes:
        status: The HTTP status.
    """

    def __init__(self, status: int, text: str) -> None:
        self.status = status
        super().__init__(text)


class ApiUnavailable(EverstepError):
    """The API does not answer, or is unavailable."""


def api_options_for(default_url: str) -> Callable[[F], F]:
    """Return a decorator that adds the options `--url` and `--token` to a command.

    Args:
        default_url: Says what is used without `--url`.
    """
    token = click.option(
        "--token",
        envvar="EVERSTEP_API_TOKEN",
        help="A token or key; default: EVERSTEP_API_TOKEN, or that of the local installation.",
    )
    url = click.option(
        "--url",
        envvar="EVERSTEP_API_URL",
        help=f"The API's URL; {default_url}.",
    )
    return lambda command: url(token(command))


_TENANT = f"{__name__}.tenant"


def _store_tenant(context: click.Context, _option: click.Parameter, tenant: str | None) -> None:
    context.meta[_TENANT] = tenant


def api_options(command: F) -> F:
    """Add the options `--url`, `--token` and `--tenant` to a command that uses an API."""
    tenant = click.option(
        "--tenant",
        expose_value=False,
        callback=_store_tenant,
        help=f"A tenant of the local installation; default: {DEFAULT_TENANT}, elsewhere that of the token.",
    )
    return api_options_for("default: EVERSTEP_API_URL, or the local installation")(tenant(command))


@dataclass
class Remote:
    """Sends requests, and retries while the API is unavailable.

    Each POST has an idempotency key, so a retried one takes effect once.
    """

    http: httpx2.AsyncClient
    find_url: Callable[[], str]
    report: Callable[[str], object] = field(default=lambda text: echo(text, err=True))
    """Reports outages to the user."""
    has_answered: bool = False
    token: str | None = None
    """The bearer token; the gateway accepts the same one."""

    async def get(self, kind: type[ModelT], path: str, **query: object) -> ModelT:
        """Send a GET request; parameters that are None are left out.

        Raises:
            Declined: The API refused.
            Silent: The API does not answer.
        """
        return _parse_response(kind, await self._request("GET", path, params=_given(query)))

    async def post(self, kind: type[ModelT], path: str, body: Mapping[str, Any]) -> ModelT:
        """Send a POST request; raises like `get`."""
        headers = {"Idempotency-Key": str(uuid4())}
        return _parse_response(kind, await self._request("POST", path, json=body, headers=headers))

    async def patch(self, kind: type[ModelT], path: str, body: Mapping[str, Any]) -> ModelT:
        """Send a PATCH request; raises like `get`."""
        return _parse_response(kind, await self._request("PATCH", path, json=body))

    async def put(self, kind: type[ModelT], path: str, body: Mapping[str, Any], **query: object) -> ModelT:
        """Send a PUT request; raises like `get`."""
        params = _given(query)
        return _parse_response(kind, await self._request("PUT", path, json=body, params=params))

    async def delete(self, path: str, **query: object) -> None:
        """Send a DELETE request; raises like `get`."""
        response = await self._request("DELETE", path, params=_given(query))
        if not response.is_success:
            _parse_response(BaseModel, response)

    async def upload(self, kind: type[ModelT], path: str, file: Attachment) -> ModelT:
        """Send a file as the body of a POST request; raises like `get`."""
        headers = {"Idempotency-Key": str(uuid4()), "Content-Type": file.media_type}
        response = await self._request(
            "POST", path, content=file.data, params={"name": file.name}, headers=headers
        )
        return _parse_response(kind, response)

    async def _request(self, method: str, path: str, **given: Any) -> httpx2.Response:
        began, in_trouble = monotonic(), False
        for usual_wait in retry_waits():
            url, wait = self.find_url(), usual_wait
            patience = PATIENCE_SECONDS if self.has_answered else 0.0
            try:
                response = await self.http.request(method, url + path, **given)
            except httpx2.RequestError as error:
                trouble = f"no answer from {url} ({str(error) or type(error).__name__})"
                refusal = f"{trouble}; {_HOW_TO_CONNECT}"
            else:
                if response.status_code not in TRANSIENT:
                    if in_trouble:
                        self.report("the API answers again")
                    self.has_answered = True
                    return response
                trouble = f"{url} is unavailable ({response.status_code})"
                refusal = f"{trouble}; {_TRY_AGAIN}"
                if limit := find_limit(response):
                    # It was refused before it was read, so any request may be repeated.
                    refusal, wait = limit
                    trouble = f"{url} allows no more requests for {wait:g} s"
                    patience = max(patience, LIMIT_PATIENCE_SECONDS)
            if monotonic() + wait > began + patience:
                raise ApiUnavailable(refusal)
            if not in_trouble:
                self.report(f"{trouble}; trying again")
            in_trouble = True
            await asyncio.sleep(wait)
        raise AssertionError("the waits do not end")


def find_limit(response: httpx2.Response) -> tuple[str, float] | None:
    """Return the API's sentence and the seconds to wait, if a limit has refused the request."""
    seconds = response.headers.get("Retry-After", "")
    if response.status_code != HTTPStatus.TOO_MANY_REQUESTS or not seconds.isdecimal():
        return None
    # Only a refusal needs the API's modules, whose import takes longer than all others.
    from everstep.http_api.problems import ProblemDocument  # noqa: PLC0415

    try:
        return ProblemDocument.model_validate_json(response.content).detail, float(seconds)
    except ValidationError:
        # A proxy has refused it.
        return None


def _given(query: Mapping[str, object]) -> dict[str, str]:
    """Return the parameters without those that are None."""
    return {name: str(value) for name, value in query.items() if value is not None}


def retry_waits() -> Iterator[float]:
    """Seconds to wait before each further attempt."""
    return chain((0.1, 0.2, 0.5, 1.0, 2.0), repeat(MAX_WAIT))


def _parse_response(kind: type[ModelT], response: httpx2.Response) -> ModelT:
    unexpected = f"{response.url} is not an Everstep API ({response.status_code}); check the URL"
    try:
        if response.is_success:
            return kind.model_validate_json(response.content)
        # Only a refusal needs the API's modules, whose import takes longer than all others.
        from everstep.http_api.problems import ProblemDocument  # noqa: PLC0415

        problem = ProblemDocument.model_validate_json(response.content)
    except ValidationError:
        raise InvalidInput(unexpected) from None
    is_denied = response.status_code in _DENIED
    how = "; set the token with --token or EVERSTEP_API_TOKEN; `everstep up` prints one" if is_denied else ""
    raise Declined(response.status_code, f"{problem.detail}{how}")


@asynccontextmanager
async def open_remote(settings: Settings, url: str | None, token: str | None) -> AsyncGenerator[Remote]:
    """Open a client of the given API, or of the local installation."""
    data = known_data_folder(settings)
    local = data and local_url(data)
    # A local token is sent only to the local API.
    is_local = not url or url.rstrip("/") == local
    first = _validate_url(url or local, data)
    tenant: str | None = click.get_current_context().meta.get(_TENANT)
    if tenant is not None and (token or not is_local):
        raise InvalidInput("the token names the tenant: omit --tenant, or use the local installation's token")
    if is_local and not token:
        secret = settings.auth_secret or (data and find_local_secret(data))
        # The same: a caller with a token of its own needs no module of the API.
        from everstep.runtime.authorization import local_token  # noqa: PLC0415

        token = local_token(settings.model_copy(update={"auth_secret": secret}), tenant or DEFAULT_TENANT)
    # A proxy cannot reach this machine.
    http = httpx2.AsyncClient(
        headers=_auth_headers(token), timeout=TIMEOUT, trust_env=httpx2.URL(first).host not in _LOCAL_HOSTS
    )

    def find_url() -> str:
        # A local installation may listen on another port after a restart.
        return (is_local and data and local_url(data)) or first

    async with http:
        yield Remote(http, find_url, token=token)


def _validate_url(url: str | None, data: Path | None) -> str:
    if not url:
        looked = f"; {data} has none" if data else ""
        raise InvalidInput(f"no API is configured: {_HOW_TO_CONNECT}. {_WHERE_TO_RUN}{looked}")
    try:
        parsed = httpx2.URL(url)
    except httpx2.InvalidURL:
        parsed = None
    if parsed is None or parsed.scheme not in ("http", "https") or not parsed.host:
        raise InvalidInput(f"'{url}' is not the URL of an API; write it like http://127.0.0.1:8080")
    return url.rstrip("/")


def _auth_headers(token: str | None) -> dict[str, str]:
    if not token:
        return {}
    token = token.strip()
    if not token.isascii() or not token.isprintable():
        raise InvalidInput("the token has invalid characters; copy it again")
    return {"Authorization": f"Bearer {token}"}
