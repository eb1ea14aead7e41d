"""The store of attached files that the settings name."""

import os

from sqlalchemy.ext.asyncio import AsyncEngine

from everstep.agent_domain.attachments import AttachmentLimits
from everstep.agent_domain.errors import InvalidInput
from everstep.agent_domain.storage.attachments import AttachmentStore
from everstep.runtime.data_folder import attachments_folder
from everstep.runtime.settings import Settings
from everstep.runtime.url_files import UrlFiles
from everstep.steps.attachments import Attachments
from everstep.store.attachment_bucket import AttachmentBucket
from everstep.store.attachment_folder import AttachmentFolder
from everstep.store.attachments import PostgresAttachmentIndex, PostgresAttachmentStore

POSTGRES = "postgres"
DAY_SECONDS = 86_400


def build_attachments(settings: Settings, engine: AsyncEngine) -> Attachments:
    """Return the attached files of an installation.

    Raises:
        InvalidInput: The setting names no store.
    """
    size = settings.attachment_max_bytes
    limits = AttachmentLimits(size, max(size, AttachmentLimits().max_message_bytes))
    return Attachments(
        PostgresAttachmentIndex(engine),
        build_store(settings, engine),
        limits,
        settings.attachment_types,
        settings.keep_uploads_days * DAY_SECONDS,
        UrlFiles() if settings.attachment_urls == "on" else None,
    )


def build_store(settings: Settings, engine: AsyncEngine) -> AttachmentStore:
    """Return the store of the content of files."""
    place = settings.attachments
    if place == POSTGRES:
        return PostgresAttachmentStore(engine)
    if place.startswith("s3://"):
        endpoint = os.environ.get("AWS_ENDPOINT_URL", "")
        return AttachmentBucket(place, allow_http=endpoint.startswith("http://"))
    if folder := attachments_folder(settings):
        return AttachmentFolder(folder)
    raise InvalidInput(
        f"EVERSTEP_ATTACHMENTS is {place!r}; use {POSTGRES}, the absolute path of a folder, such as "
        "/var/lib/files, or s3://bucket/prefix"
    )
