"""The stores of attached files: PostgreSQL, a folder, and memory."""

from collections.abc import AsyncGenerator
from pathlib import Path
from uuid import UUID, uuid4

import pytest
import pytest_asyncio

from everstep.agent_domain.attachments import Attachment
from everstep.agent_domain.errors import NotFound, StoreUnavailable
from everstep.agent_domain.ids import Scope
from everstep.agent_domain.storage.attachments import AttachmentKey, AttachmentStore
from everstep.steps.attachments import Attachments
from everstep.store.attachment_folder import AttachmentFolder
from everstep.store.attachments import PostgresAttachmentIndex, PostgresAttachmentStore
from everstep.store.memory_attachments import MemoryAttachments
from tests.engines import open_engine


@pytest.fixture(params=["postgres", "folder", "memory"])
def place(request: pytest.FixtureRequest) -> tuple[str, str]:
    """Where files are, and the URL of the database."""
    url = "" if request.param == "memory" else request.getfixturevalue("database")
    return request.param, url


@pytest_asyncio.fixture
async def attachments(place: tuple[str, str], tmp_path: Path) -> AsyncGenerator[Attachments]:
    """The files of an installation."""
    kind, url = place
    if kind == "memory":
        memory = MemoryAttachments()
        yield Attachments(memory, memory)
        return
    async with open_engine(url) as engine:
        store: AttachmentStore = PostgresAttachmentStore(engine)
        if kind == "folder":
            store = AttachmentFolder(tmp_path / "files")
        yield Attachments(PostgresAttachmentIndex(engine), store)


async def test_a_file_is_stored_and_read(attachments: Attachments) -> None:
    """5.6.1, 5.6.4"""
    new = Attachment.from_bytes("a.txt", b"hello", new_id=uuid4())

    stored = await attachments.upload("shop", "ann", new)

    assert (stored, stored.data) == (new, None)
    for scope in (Scope("shop", "ann"), Scope("shop")):
        assert await attachments.open(scope, new.id) == (new, b"hello")
    for scope in (Scope("shop", "ben"), Scope("far", "ann"), Scope("far")):
        with pytest.raises(NotFound):
            await attachments.open(scope, new.id)


async def test_a_repeated_upload_replaces_the_file(attachments: Attachments) -> None:
    chosen = uuid4()
    for text in (b"first", b"second"):
        await attachments.upload("shop", "ann", Attachment.from_bytes("a.txt", text, new_id=chosen))

    assert (await attachments.open(Scope("shop", "ann"), chosen))[1] == b"second"
    with pytest.raises(NotFound):
        await attachments.upload("far", "ann", Attachment.from_bytes("a.txt", b"x", new_id=chosen))
    assert (await attachments.open(Scope("shop", "ann"), chosen))[1] == b"second"


async def test_content_that_was_changed_or_removed_is_not_used(
    attachments: Attachments, caplog: pytest.LogCaptureFixture
) -> None:
    """5.6.3"""
    files = [Attachment.from_bytes(f"{n}.txt", b"hello", new_id=uuid4()) for n in range(3)]
    for file in files:
        await attachments.upload("shop", "ann", file)
    await attachments.store.write(AttachmentKey("shop", files[0].id), b"other")
    await attachments.store.delete(AttachmentKey("shop", files[1].id))
    await attachments.store.delete(AttachmentKey("shop", files[1].id))

    for file in files[:2]:
        with pytest.raises(NotFound):
            await attachments.open(Scope("shop"), file.id)
    assert f"the content of the attachment {files[0].id} has changed" in caplog.text
    assert (await attachments.open(Scope("shop"), files[2].id))[1] == b"hello"


async def test_tenants_with_odd_names_have_places_of_their_own(tmp_path: Path) -> None:
    folder, same = AttachmentFolder(tmp_path / "files"), UUID(int=1)
    keys = [AttachmentKey(tenant, same) for tenant in ("shop", "../shop", "shop/../..", "/", "ü")]
    for n, key in enumerate(keys):
        await folder.write(key, str(n).encode())

    assert [await folder.read(key) for key in keys] == [b"0", b"1", b"2", b"3", b"4"]
    written = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert all(path.stat().st_mode & 0o077 == 0 for path in written)
    assert all((tmp_path / "files") in path.parents for path in written)
    assert len(written) == len(keys)


async def test_a_folder_that_cannot_be_used_is_an_outage(tmp_path: Path) -> None:
    (tmp_path / "files").write_text("not a folder")
    folder = AttachmentFolder(tmp_path / "files")

    with pytest.raises(StoreUnavailable, match="cannot be used: "):
        await folder.write(AttachmentKey("shop", UUID(int=1)), b"x")
