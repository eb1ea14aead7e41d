"""The content of attached files in a bucket of S3, or of a server with its API.

The extra `s3` has the client. It reads the usual variables: `AWS_ACCESS_KEY_ID`, `AWS_SECRET_ACCESS_KEY`,
`AWS_REGION`, and for other servers `AWS_ENDPOINT_URL`.
"""

import hashlib
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from datetime import timedelta

from everstep.agent_domain.errors import InvalidInput, StoreUnavailable
from everstep.agent_domain.storage.attachments import AttachmentKey
from everstep.agent_domain.values import truncate

RETRY_SECONDS = 5
REQUEST_SECONDS = 10


class AttachmentBucket:
    """Stores each file under the tenant's digest and the file's id.

    Args:
        url: The bucket, as `s3://bucket/prefix`.
        allow_http: Whether the server has no TLS.

    Raises:
        InvalidInput: The extra is not installed, or the URL names no bucket.
    """

    def __init__(self, url: str, *, allow_http: bool = False) -> None:
        try:
            import obstore  # noqa: PLC0415 -- an extra
            from obstore.exceptions import BaseError  # noqa: PLC0415
            from obstore.store import S3Store  # noqa: PLC0415
        except ImportError:
            raise InvalidInput(
                'a bucket needs the extra s3: pip install "everstep[s3]", or unset EVERSTEP_ATTACHMENTS'
            ) from None
        self.url = url
        self._client, self._error = obstore, BaseError
        try:
            self._bucket = S3Store.from_url(
                url,
                client_options={"timeout": timedelta(seconds=REQUEST_SECONDS), "allow_http": allow_http},
                retry_config={"max_retries": 2, "retry_timeout": timedelta(seconds=RETRY_SECONDS)},
            )
        except BaseError as error:
            raise InvalidInput(f"{url} is no bucket: {_first_line(error)}") from None

    async def write(self, key: AttachmentKey, data: bytes) -> None:
        """Store the content; that of an earlier attempt is replaced."""
        async with self._outages():
            await self._client.put_async(self._bucket, _path(key), data)

    async def read(self, key: AttachmentKey) -> bytes | None:
        """Return the content; None if there is none."""
        async with self._outages():
            try:
                found = await self._client.get_async(self._bucket, _path(key))
            except FileNotFoundError:
                return None
            return bytes(await found.bytes_async())

    async def delete(self, key: AttachmentKey) -> None:
        """Delete the content."""
        async with self._outages():
            # A missing object counts as deleted; only a missing bucket is an error.
            await self._client.delete_async(self._bucket, _path(key))

    @asynccontextmanager
    async def _outages(self) -> AsyncGenerator[None]:
        try:
            yield
        except (self._error, OSError) as error:
            raise StoreUnavailable(f"the bucket {self.url} cannot be used: {_first_line(error)}") from error


def _path(key: AttachmentKey) -> str:
    # Names of tenants may contain slashes and dots.
    tenant = hashlib.sha256(key.tenant_id.encode()).hexdigest()[:32]
    return f"{tenant}/{key.id}"


def _first_line(error: Exception) -> str:
    return truncate(str(error).partition("\n")[0], 200)
