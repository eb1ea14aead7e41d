"""Requests to an identity provider: with a time limit for all of it, a limit of size, and no redirects.

Callers who are not authenticated cause them, so an answer that drips or never ends must not hold a task.
"""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, Final

import httpx2

SECONDS: Final = 10.0
"""The time limit of a request, from the connection to the last byte."""
MAX_BYTES: Final = 512 * 1024
"""The limit of an answer. Documents of providers have some kilobytes."""


class ProviderFault(Exception):
    """The provider cannot be reached, or its answer is unusable."""


@dataclass(frozen=True, slots=True)
class ProviderDocument:
    """An answer of the provider."""

    status: int
    content: bytes


@asynccontextmanager
async def open_http() -> AsyncGenerator[httpx2.AsyncClient]:
    """A client for one request."""
    async with httpx2.AsyncClient(follow_redirects=False) as http:
        yield http


async def request_document(
    http: httpx2.AsyncClient, method: str, url: str, *, seconds: float = SECONDS, **sent: Any
) -> ProviderDocument:
    """Send a request and read the answer.

    Raises:
        ProviderFault: There is none within the time limit, or it is too large.
    """
    try:
        async with asyncio.timeout(seconds), http.stream(method, url, **sent) as response:
            content = bytearray()
            async for part in response.aiter_bytes():
                content += part
                if len(content) > MAX_BYTES:
                    raise ProviderFault(f"{url} answered with more than {MAX_BYTES} bytes")
            return ProviderDocument(response.status_code, bytes(content))
    except TimeoutError:
        raise ProviderFault(f"{url} did not answer within {seconds:g} seconds") from None
    except (httpx2.HTTPError, httpx2.InvalidURL, httpx2.StreamError, OSError) as error:
        raise ProviderFault(f"{url}: {str(error) or type(error).__name__}") from None
