"""Routes about attached files.

A file is served so that a browser never shows it: pages of other users could attack this origin with HTML or
SVG otherwise.
"""

from typing import Annotated, Any
from urllib.parse import quote
from uuid import UUID

from fastapi import Path, Query, Request, Response

from everstep.http_api.auth import CallerDep, acting_user
from everstep.http_api.idempotency import KeyDep
from everstep.http_api.multipart_forms import FORM, form_file, is_form
from everstep.http_api.problems import too_large
from everstep.http_api.routes.router import ApiDep, ExecutionId, load_execution, router
from everstep.http_api.schemas.attachment_responses import AttachmentResponse, ExecutionFile
from everstep.http_api.schemas.request_bodies import FileUrlSent, UserName
from everstep.http_api.schemas.responses import PageResponse
from everstep.http_api.schemas.text import Text

routes = router("attachments")

UPLOAD_PATH = "/agent/attachments"

_FILE: dict[str, Any] = {"schema": {"type": "string", "format": "binary"}}
_FORM: dict[str, Any] = {
    "schema": {
        "type": "object",
        "properties": {"file": {"type": "string", "format": "binary"}},
        "required": ["file"],
    }
}
_UPLOAD: dict[str, Any] = {
    "requestBody": {
        "description": "The content of the file.",
        "required": True,
        "content": {"*/*": _FILE, FORM: _FORM},
    }
}
_DOWNLOAD: dict[int | str, dict[str, Any]] = {
    200: {"description": "The content of the file.", "content": {"*/*": _FILE}}
}


@routes.post(UPLOAD_PATH, status_code=201, openapi_extra=_UPLOAD)
async def upload_attachment(
    request: Request,
    api: ApiDep,
    caller: CallerDep,
    key: KeyDep,
    name: Annotated[
        Text | None, Query(max_length=1000, description="The file's name, without a path.")
    ] = None,
    user_id: Annotated[UserName, Query()] = None,
) -> AttachmentResponse:
    """Upload a file: its content is the body, its type the header `Content-Type`; or a form with one file.

    Send its id in `attachments` of a message. A file that no message uses expires after a day.
    """
    claimed, data = request.headers.get("content-type"), await request.body()
    if claimed and is_form(claimed):
        file = form_file(claimed, data)
        name, claimed, data = name or file.name, file.media_type, file.data
    owner, attachments = acting_user(caller, user_id), api.sessions.client.require_attachments()
    if len(data) > attachments.limits.max_bytes:
        raise too_large(attachments.limits.max_bytes)
    new = attachments.new_file(name, data, claimed, key.id("attachment"))
    return AttachmentResponse.of(await attachments.upload(caller.tenant_id, owner, new))


@routes.post(UPLOAD_PATH + "/url", status_code=201)
async def fetch_attachment(
    body: FileUrlSent, api: ApiDep, caller: CallerDep, key: KeyDep
) -> AttachmentResponse:
    """Upload the file at a URL, if the installation allows it: only public hosts, and the same limits."""
    owner, attachments = acting_user(caller, body.user_id), api.sessions.client.require_attachments()
    fetched = await attachments.fetch(
        caller.tenant_id, owner, body.url, body.name, new_id=key.id("attachment")
    )
    return AttachmentResponse.of(fetched)


@routes.get(UPLOAD_PATH + "/{attachment_id}", response_class=Response, responses=_DOWNLOAD)
async def download_attachment(
    attachment_id: Annotated[UUID, Path(description="The id of the file.")], api: ApiDep, caller: CallerDep
) -> Response:
    """Download a file: an own upload, or a file of a conversation that the caller reads."""
    attachments = api.sessions.client.require_attachments()
    attachment, data = await attachments.open(caller.scope, attachment_id)
    return Response(data, media_type=attachment.media_type, headers=_download_headers(attachment.name))


@routes.get("/agent/executions/{execution_id}/attachments")
async def list_execution_files(
    execution_id: ExecutionId, api: ApiDep, caller: CallerDep
) -> PageResponse[ExecutionFile]:
    """List the files of an execution: those of its messages, and those that its tools returned."""
    row, _ = await load_execution(api, caller, execution_id)
    uses = await api.sessions.client.require_attachments().list_uses(row.ref)
    return PageResponse(items=[ExecutionFile.from_use(use) for use in uses])


def _download_headers(name: str) -> dict[str, str]:
    plain = "".join(
        char if char.isascii() and char.isprintable() and char not in '"\\' else "_" for char in name
    )
    return {
        "Content-Disposition": f"attachment; filename=\"{plain}\"; filename*=UTF-8''{quote(name, safe='')}",
        "Content-Security-Policy": "default-src 'none'; sandbox",
        "Cross-Origin-Resource-Policy": "same-origin",
    }
