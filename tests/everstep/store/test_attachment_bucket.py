"""The content of files in a bucket, behind a local server that speaks the protocol of S3."""

import asyncio
import hashlib
import re
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from uuid import UUID

import pytest

from everstep.agent_domain.errors import InvalidInput, StoreUnavailable
from everstep.agent_domain.storage.attachments import AttachmentKey
from everstep.store.attachment_bucket import AttachmentBucket

KEY = AttachmentKey("../shop", UUID(int=1))
_MISSING = b"<Error><Code>NoSuchKey</Code><Message>The key does not exist</Message></Error>"


class S3Server:
    """Objects of one bucket: PUT, GET and the deletion of several, with signed requests only."""

    def __init__(self) -> None:
        self.objects: dict[str, bytes] = {}
        self.refuses = False
        self.url = ""

    async def on_connection(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while await self._serve(reader, writer):
                pass
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        head = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
        method, target, _ = head[0].split()
        headers = {name.lower(): value for name, _, value in (line.partition(": ") for line in head[1:])}
        body = await reader.readexactly(int(headers.get("content-length", "0")))
        status, content = self._answer(method, target, headers, body)
        lines = [f"HTTP/1.1 {status} X", f"Content-Length: {len(content)}", 'ETag: "1"']
        lines += ["Last-Modified: Fri, 16 Jan 2026 10:05:00 GMT", "", ""]
        writer.write("\r\n".join(lines).encode() + content)
        await writer.drain()
        return True

    def _answer(self, method: str, target: str, headers: dict[str, str], body: bytes) -> tuple[int, bytes]:
        credential = r"AWS4-HMAC-SHA256 Credential=me/\d+/eu-1/s3/aws4_request"
        signed = re.match(credential, headers["authorization"])
        digest = headers["x-amz-content-sha256"]
        if self.refuses or not signed or digest not in ("UNSIGNED-PAYLOAD", hashlib.sha256(body).hexdigest()):
            return 403, b"<Error><Code>AccessDenied</Code><Message>No</Message></Error>"
        match method:
            case "PUT":
                self.objects[target] = body
                return 200, b""
            case "GET" if target in self.objects:
                return 200, self.objects[target]
            case "POST" if target == "/files?delete":
                return 200, self._delete(re.findall(r"<Key>(.*?)</Key>", body.decode()))
            case _:
                return 404, _MISSING

    def _delete(self, keys: list[str]) -> bytes:
        for key in keys:
            self.objects.pop(f"/files/{key}", None)
        deleted = "".join(f"<Deleted><Key>{key}</Key></Deleted>" for key in keys)
        return f"<DeleteResult>{deleted}</DeleteResult>".encode()


@asynccontextmanager
async def s3_server() -> AsyncGenerator[S3Server]:
    server, serving = S3Server(), set[asyncio.Task[None]]()

    def on_connection(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        serving.add(asyncio.create_task(server.on_connection(reader, writer)))

    listening = await asyncio.start_server(on_connection, "127.0.0.1", 0)
    server.url = f"http://127.0.0.1:{listening.sockets[0].getsockname()[1]}"
    async with listening:
        yield server
    for task in serving:
        task.cancel()
    await asyncio.gather(*serving, return_exceptions=True)


@pytest.fixture
def credentials(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    for name, value in {
        "AWS_ACCESS_KEY_ID": "me",
        "AWS_SECRET_ACCESS_KEY": "hush",
        "AWS_REGION": "eu-1",
    }.items():
        monkeypatch.setenv(name, value)
    return monkeypatch


async def test_files_are_objects_of_a_bucket(credentials: pytest.MonkeyPatch) -> None:
    """5.6.1, 5.6.5"""
    async with s3_server() as server:
        credentials.setenv("AWS_ENDPOINT_URL", server.url)
        bucket = AttachmentBucket("s3://files/everstep", allow_http=True)

        assert await bucket.read(KEY) is None
        await bucket.write(KEY, b"first")
        await bucket.write(KEY, b"content")
        assert await bucket.read(KEY) == b"content"
        assert await bucket.read(AttachmentKey("shop", KEY.id)) is None
        (path,) = server.objects
        assert re.fullmatch(rf"/files/everstep/[0-9a-f]{{32}}/{KEY.id}", path)
        await bucket.delete(KEY)
        await bucket.delete(KEY)
        assert server.objects == {}


async def test_a_bucket_that_refuses_is_an_outage(credentials: pytest.MonkeyPatch) -> None:
    async with s3_server() as server:
        credentials.setenv("AWS_ENDPOINT_URL", server.url)
        server.refuses = True
        bucket = AttachmentBucket("s3://files", allow_http=True)

        for work in (bucket.write(KEY, b"x"), bucket.read(KEY), bucket.delete(KEY)):
            with pytest.raises(StoreUnavailable, match="the bucket s3://files cannot be used: "):
                await work


def test_a_url_without_a_bucket_is_refused() -> None:
    with pytest.raises(InvalidInput, match="is no bucket"):
        AttachmentBucket("s3://")
