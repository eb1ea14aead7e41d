"""The data of one person: written to an archive, and erased."""

import json
import os
from collections import Counter
from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Final
from zipfile import ZIP_DEFLATED, ZipFile

from everstep.agent_domain.errors import InvalidInput
from everstep.agent_domain.storage.attachments import AttachmentKey
from everstep.client.erasure import Erasure, ErasureReport
from everstep.runtime.file_store import build_attachments
from everstep.runtime.installation import HOW_TO_START, locate_services, open_installation
from everstep.runtime.settings import Settings
from everstep.store.engine import MAINTENANCE_SECONDS, create_engine
from everstep.store.person_rows import PostgresPersonRows
from everstep.store.retention import PostgresRetention

OWNER_ONLY: Final = 0o600
"""The mode of an export, which no other user of the machine reads."""


@dataclass(frozen=True)
class PersonData:
    """The data of one user of a tenant."""

    settings: Settings
    tenant: str
    user: str
    rows: PostgresPersonRows

    async def counts(self) -> Mapping[str, int]:
        """Return the number of rows by table."""
        return await self.rows.counts()

    async def export(self, file: Path) -> Mapping[str, int]:
        """Write all data to a new ZIP file; return the number of rows by table."""
        part = file.with_name(f"{file.name}.part")
        try:
            raw = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL, OWNER_ONLY)
        except FileExistsError:
            raise InvalidInput(
                f"{part} exists: another export writes it, or one was killed; wait for it, or remove the file"
            ) from None
        try:
            with os.fdopen(raw, "wb") as stream, ZipFile(stream, "w", ZIP_DEFLATED) as archive:
                counts = await self._write_rows(archive)
                await self._write_files(archive)
                about = {
                    "tenant": self.tenant,
                    "user": self.user,
                    "exported_at": datetime.now(UTC).isoformat(),
                    "rows": counts,
                }
                archive.writestr("export.json", json.dumps(about, indent=2))
            part.replace(file)
        finally:
            part.unlink(missing_ok=True)
        return counts

    async def erase(self, wait_seconds: float) -> ErasureReport:
        """Erase what can be erased now.

        Args:
            wait_seconds: How long cancelled executions may take to end.
        """
        async with open_installation(self.settings) as installation:
            erasure = Erasure(
                installation.sessions,
                installation.schedules,
                self.rows,
                PostgresRetention(self.rows.engine).remove_execution,
                self.tenant,
                wait_seconds,
            )
            return await erasure.run()

    async def _write_rows(self, archive: ZipFile) -> Mapping[str, int]:
        """Write a member for each table, whose rows arrive one after the other."""
        counts = Counter[str]()
        member = None
        async with aclosing(self.rows.export()) as found:
            async for table, row in found:
                if table not in counts:
                    if member:
                        member.close()
                    member = archive.open(f"tables/{table}.jsonl", "w", force_zip64=True)
                assert member is not None  # noqa: S101 -- the first row opens one
                member.write(f"{row}\n".encode())
                counts[table] += 1
        if member:
            member.close()
        return dict(counts)

    async def _write_files(self, archive: ZipFile) -> None:
        contents = build_attachments(self.settings, self.rows.engine).store
        for each in await self.rows.attachments():
            data = await contents.read(AttachmentKey(self.tenant, each.id))
            if data is not None:
                archive.writestr(f"attachments/{each.id}/{Path(each.name).name or 'file'}", data)


@asynccontextmanager
async def open_person_data(settings: Settings, tenant: str, user: str) -> AsyncGenerator[PersonData]:
    """Open the data of a user; only the database is needed."""
    if not settings.database_url:
        settings = locate_services(settings)
    url = settings.require("database_url", HOW_TO_START)
    engine = create_engine(url, application_name="everstep users", statement_timeout=MAINTENANCE_SECONDS)
    try:
        yield PersonData(settings, tenant, user, PostgresPersonRows(engine, tenant, user))
    finally:
        await engine.dispose()
