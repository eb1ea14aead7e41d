"""Attached files over HTTP: uploads, messages, downloads, rights, and the files that tools return."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any
from uuid import UUID, uuid4

import pytest
from sqlalchemy import text

from everstep.agent_domain.attachments import Attachment, AttachmentLimits
from everstep.agent_domain.ids import ExecutionRef, Scope
from everstep.client.sessions import UserMessage
from everstep.http_api.app import create_app
from everstep.runtime.retention import open_retention
from everstep.steps.attachments import Attachments
from tests.agent_domain.test_media_types import HTML, PNG, SVG
from tests.everstep.http_api.house import Answer, ApiCaller, ApiSetup, MakeCaller, assert_problem, http_client


async def answer_of(caller: ApiCaller, execution: str) -> str:
    """The answer of an execution, once it is completed."""
    return (await caller.wait_for_status(execution, "completed"))["output"]["response"]


async def test_a_model_reads_the_files_of_a_message(ann: ApiCaller, work: None) -> None:
    """5.6.1"""
    image = await ann.upload(PNG, "photo.png", "image/png")
    notes = await ann.upload(b"# Notes", "notes.md")
    sent = await ann.post(
        "/agent/messages", {"content": "look", "attachments": [image["id"], notes["id"], image["id"]]}
    )

    assert image["media_type"], image["size"] == ("image/png", len(PNG))
    assert sent["message"]["attachments"] == [image, notes]
    said = await answer_of(ann, sent["execution_id"])
    assert said == f"You sent: photo.png {PNG!r}, notes.md b'# Notes'"
    # A later message of the session still shows them; no stored row has their content.
    session = sent["session_id"]
    again = await ann.post_message(session, "look")
    assert await answer_of(ann, again["execution_id"]) == said
    messages = (await ann.get(f"/agent/sessions/{session}/messages"))["items"]
    assert [each["attachments"] for each in messages if each["role"] == "user"] == [[], [image, notes]]
    snapshot = (await ann.get(f"/agent/executions/{again['execution_id']}/snapshots"))["items"][0]["state"]
    assert snapshot["messages"][0]["content"] == [
        {"type": "text", "text": "look"},
        {"type": "attachment", **image},
        {"type": "attachment", **notes},
    ]
    del work


async def test_executions_and_steering_take_files(ann: ApiCaller, work: None) -> None:
    """5.6.1"""
    file = await ann.upload(b"seen", "a.txt")
    started = await ann.post("/agent/executions", {"content": "look", "attachments": [file["id"]]})
    assert await answer_of(ann, started["id"]) == "You sent: a.txt b'seen'"
    listed = (await ann.get(f"/agent/executions/{started['id']}/attachments"))["items"]
    assert [{**each, "created_at": None} for each in listed] == [
        {**file, "tool_call_id": None, "created_at": None}
    ]

    session = await ann.create_session()
    asking = (await ann.post_message(session, "wonder"))["execution_id"]
    await ann.wait_for_request(asking)
    await ann.post(f"/agent/executions/{asking}/steer", {"content": "look", "attachments": [file["id"]]})
    await ann.post(f"/agent/executions/{asking}/input", {"text": "because"})
    assert await answer_of(ann, asking) == "You sent: a.txt b'seen'"
    del work


async def test_an_answer_takes_no_files(ann: ApiCaller, work: None) -> None:
    """5.6.1"""
    file = await ann.upload(b"seen", "a.txt")
    session = await ann.create_session()
    asking = (await ann.post_message(session, "wonder"))["execution_id"]
    await ann.wait_for_request(asking)

    sent = {"content": "because", "attachments": [file["id"]]}
    refused = await ann.http.post(f"/agent/sessions/{session}/messages", json=sent)
    assert_problem(refused, 422, "answer it without attachments, or send them with on_busy=interrupt")
    interrupted = await ann.post_message(session, "look", attachments=[file["id"]], on_busy="interrupt")
    assert await answer_of(ann, interrupted["execution_id"]) == "You sent: a.txt b'seen'"
    del work


async def test_a_message_may_consist_of_files(ann: ApiCaller) -> None:
    file = await ann.upload(b"seen", "holiday plans.txt")

    sent = await ann.post("/agent/messages", {"content": "", "attachments": [file["id"]]})

    assert (await ann.get(f"/agent/sessions/{sent['session_id']}"))["title"] == "holiday plans.txt"
    assert sent["message"]["content"] == ""
    blank = await ann.http.post("/agent/messages", json={"content": " "})
    assert_problem(blank, 422, "content is empty; say something")


async def test_a_download_is_never_shown_by_a_browser(ann: ApiCaller) -> None:
    """5.6.4"""
    for data, name, media_type, shown in [
        (PNG, "photo.png", "image/png", "filename=\"photo.png\"; filename*=UTF-8''photo.png"),
        (HTML, 'a"b;ü.html', "text/html", "filename=\"a_b;_.html\"; filename*=UTF-8''a%22b%3B%C3%BC.html"),
    ]:
        file = await ann.upload(data, name, media_type)
        response = await ann.http.get(f"/agent/attachments/{file['id']}")

        assert (response.status_code, response.content) == (200, data)
        assert response.headers["content-type"].partition(";")[0] == media_type
        assert response.headers["content-disposition"] == f"attachment; {shown}"
        assert response.headers["x-content-type-options"] == "nosniff"
        assert response.headers["content-security-policy"] == "default-src 'none'; sandbox"
        assert response.headers["cache-control"] == "no-store"


BAD_UPLOADS: Sequence[tuple[bytes, str | None, str | None, int, str]] = [
    (b"", "a.txt", "text/plain", 422, "the file 'a.txt' is empty"),
    (HTML, "a.png", "image/png", 422, "the content of the file is text/plain and not image/png"),
    (SVG, "a.svg", "image/svg+xml", 422, "files of the type image/svg+xml are not accepted; send image/png"),
    (b"PK\x03\x04", "a.docx", None, 422, "files of the type application/zip are not accepted"),
    (b"\x00\x01", "a.bin", None, 422, "files of the type application/octet-stream are not accepted"),
    (b"x", "../a.txt", None, 422, "is no file name; send a name without a path"),
    (b"x", "a\x07.txt", None, 422, "has control characters"),
    (b"x", "n" * 300, None, 422, "at most 255"),
    (b"x", "a.txt", "multipart/form-data; boundary=x", 422, "The form cannot be read; send one file alone"),
    (b"", "a.txt", "multipart/form-data; boundary=x", 422, "The form breaks off; send one file alone"),
    (b"x", "a.txt", "multipart/form-data", 422, "type multipart/form-data; send one file alone"),
    (b"x", "a.txt", "multipart/mixed; boundary=x", 422, "type multipart/mixed; send one file alone"),
    (b"x" * 1001, "a.txt", None, 413, "1000 bytes"),
]


async def test_bad_uploads_are_refused_in_one_sentence(
    ann: ApiCaller, api_setup: ApiSetup, sign_in: MakeCaller
) -> None:
    """5.6.2"""
    client = api_setup.sessions.client
    assert client.attachments
    small = replace(client.attachments, limits=AttachmentLimits(max_bytes=1_000))
    sessions = replace(api_setup.sessions, client=replace(client, attachments=small))
    limited = replace(api_setup, sessions=sessions)
    async with http_client(create_app(limited.api, max_upload=1_000), dict(ann.http.headers)) as http:
        caller = replace(ann, http=http)
        for data, name, media_type, status, words in BAD_UPLOADS:
            refused = await caller.send_file(data, name, media_type)
            assert_problem(refused, status, words)
    reader = await sign_in("ann", "read-only")
    assert_problem(await reader.send_file(b"x", "a.txt"), 403, "read-only")
    assert (await ann.upload(b"{}", None))["name"] == "file"
    assert await files_of(api_setup) == 1


async def test_messages_with_bad_files_are_refused(
    ann: ApiCaller, sign_in: MakeCaller, api_setup: ApiSetup
) -> None:
    """5.6.2, 5.6.4"""
    ben, far = await sign_in("ben"), await sign_in("ann", tenant=f"far-{uuid4().hex}")
    robot = await sign_in("robot", "sessions:all")
    files = [(await ann.upload(f"{n}".encode(), "a.txt"))["id"] for n in range(11)]
    for caller, attachments, status, words in [
        (ben, files[:1], 404, f"There is no attachment {files[0]}"),
        (far, files[:1], 404, f"There is no attachment {files[0]}"),
        (ann, [str(uuid4())], 404, "There is no attachment"),
        (ann, files, 422, "a message has at most 10 files, not 11"),
        (ann, ["photo.png"], 422, "attachments"),
    ]:
        for path in ("/agent/messages", "/agent/executions"):
            sent = {"content": "look", "attachments": attachments}
            assert_problem(await caller.http.post(path, json=sent), status, words)
    assert_problem(await ben.http.get(f"/agent/attachments/{files[0]}"), 404, "There is no attachment")
    assert (await robot.http.get(f"/agent/attachments/{files[0]}")).content == b"0"
    for_ben = await robot.http.post("/agent/attachments?name=b.txt&user_id=ben", content=b"for ben")
    assert (await ben.http.get(f"/agent/attachments/{for_ben.json()['id']}")).content == b"for ben"
    denied = await ben.http.post("/agent/attachments?name=b.txt&user_id=ann", content=b"x")
    assert_problem(denied, 403, "Acting for another user needs the scope")
    assert await executions_of(api_setup) == 0


async def test_the_owner_of_a_session_reads_what_others_send_to_it(
    ann: ApiCaller, sign_in: MakeCaller
) -> None:
    """5.6.4"""
    robot, ben = await sign_in("robot", "sessions:all"), await sign_in("ben")
    file = await robot.upload(b"from the robot", "a.txt")
    session = await ann.create_session()
    assert_problem(await ann.http.get(f"/agent/attachments/{file['id']}"), 404)

    await robot.post_message(session, "look", attachments=[file["id"]])

    assert (await ann.http.get(f"/agent/attachments/{file['id']}")).content == b"from the robot"
    assert_problem(await ben.http.get(f"/agent/attachments/{file['id']}"), 404)


async def test_a_repeated_upload_stores_one_file(ann: ApiCaller, api_setup: ApiSetup) -> None:
    """5.6.2"""
    first = await ann.send_file(b"once", "a.txt", key="k-1")
    again = await ann.send_file(b"once", "a.txt", key="k-1")

    assert (again.status_code, again.json()) == (201, first.json())
    assert again.headers["idempotency-replayed"] == "true"
    assert_problem(await ann.send_file(b"other", "a.txt", key="k-1"), 422, "Idempotency-Key")
    assert await files_of(api_setup) == 1


async def test_a_deleted_session_takes_its_files_along(
    ann: ApiCaller, api_setup: ApiSetup, work: None
) -> None:
    """5.6.5"""
    only = await ann.send_file(b"only here", "a.txt", key="k-1")
    shared, unused = await ann.upload(b"also there", "b.txt"), await ann.upload(b"unused", "c.txt")
    begun = [
        await ann.post("/agent/messages", {"content": "look", "attachments": files})
        for files in ([only.json()["id"], shared["id"]], [shared["id"]])
    ]
    for each in begun:
        await ann.wait_for_status(each["execution_id"], "completed")

    assert (await ann.http.delete(f"/agent/sessions/{begun[0]['session_id']}")).status_code == 204

    assert_problem(await ann.http.get(f"/agent/attachments/{only.json()['id']}"), 404)
    for kept in (shared, unused):
        assert (await ann.http.get(f"/agent/attachments/{kept['id']}")).status_code == 200
    assert await files_of(api_setup) == 2
    assert await api_setup.keys.find_response(api_setup.tenant, "ann", "k-1") is None
    await ann.http.delete(f"/agent/sessions/{begun[1]['session_id']}")
    assert await files_of(api_setup) == 1
    del work


async def test_uploads_that_no_message_uses_expire(
    ann: ApiCaller, api_setup: ApiSetup, http_database: str
) -> None:
    """5.6.5"""
    file, used = await ann.upload(b"unused", "a.txt"), await ann.upload(b"used", "b.txt")
    await ann.post("/agent/executions", {"content": "look", "attachments": [used["id"]]})
    await run_sql(
        api_setup,
        "UPDATE agent_attachments SET expires_at = expires_at - interval '2 days' WHERE tenant_id = :tenant",
    )

    assert_problem(await ann.http.get(f"/agent/attachments/{file['id']}"), 404)
    sent = {"content": "look", "attachments": [file["id"]]}
    assert_problem(await ann.http.post("/agent/messages", json=sent), 404)
    settings = api_setup.settings.model_copy(update={"database_url": http_database})
    async with open_retention(settings) as tables:
        (files,) = (table for table in tables if table.table == "agent_attachments")
        assert sum([count async for count in files.remove_old(dry_run=True)]) >= 1
        assert sum([count async for count in files.remove_old(dry_run=False)]) >= 1
    assert await files_of(api_setup) == 1
    assert (await ann.http.get(f"/agent/attachments/{used['id']}")).content == b"used"


async def test_a_user_fetches_what_a_tool_returns(ann: ApiCaller, sign_in: MakeCaller, work: None) -> None:
    """5.6.6"""
    session = await ann.create_session()
    execution = (await ann.post_message(session, "export trips.csv"))["execution_id"]
    await ann.wait_for_status(execution, "completed")

    call = (await ann.get(f"/agent/executions/{execution}/steps"))["items"][0]["calls"][0]
    (file,) = call["attachments"]
    assert (file["name"], file["media_type"], call["text"]) == (
        "trips.csv",
        "text/csv",
        "trips.csv is attached",
    )
    downloaded = await ann.http.get(f"/agent/attachments/{file['id']}")
    assert downloaded.content == b"day;hotel\nFriday;Harbour Inn\n"
    listed = (await ann.get(f"/agent/executions/{execution}/attachments"))["items"]
    assert [(each["id"], each["tool_call_id"]) for each in listed] == [(file["id"], call["id"])]
    messages = (await ann.get(f"/agent/sessions/{session}/messages"))["items"]
    assert [each["attachments"] for each in messages if each["content"].startswith("export: ")] == [[file]]
    envelopes = await ann.api_setup.sessions.client.store.envelopes(ann.api_setup.tenant, UUID(session))
    told: list[Any] = [each.payload["attachments"] for each in envelopes if "attachments" in each.payload]
    assert told == [[file], [file]]
    ben = await sign_in("ben")
    assert_problem(await ben.http.get(f"/agent/attachments/{file['id']}"), 404)
    bad = (await ann.post_message(session, "export ../trips.csv"))["execution_id"]
    await ann.wait_for_status(bad, "failed")
    call = (await ann.get(f"/agent/executions/{bad}/steps"))["items"][0]["calls"][0]
    assert (call["success"], call["attachments"]) == (False, [])
    await ann.http.delete(f"/agent/sessions/{session}")
    assert_problem(await ann.http.get(f"/agent/attachments/{file['id']}"), 404)
    del work


class LostOnce(Attachments):
    """Loses the worker after it has stored a file, and before the result of the call is recorded."""

    lost = 0

    async def keep_artifacts(
        self, ref: ExecutionRef, call_id: str, user_id: str | None, artifacts: Sequence[Attachment]
    ) -> tuple[Attachment, ...]:
        kept = await super().keep_artifacts(ref, call_id, user_id, artifacts)
        if not LostOnce.lost:
            LostOnce.lost = 1
            raise ConnectionError("the worker is lost")
        return kept


async def test_a_repeated_attempt_of_a_call_returns_one_file(ann: ApiCaller, api_setup: ApiSetup) -> None:
    """5.6.6"""
    client = api_setup.sessions.client
    assert client.attachments
    losing = LostOnce(client.attachments.index, client.attachments.store)
    setup = replace(
        api_setup,
        sessions=replace(api_setup.sessions, client=replace(client, attachments=losing)),
    )
    async with setup.open_worker():
        execution = await ann.start_execution("export trips.csv")
        await ann.wait_for_status(execution, "completed")

    assert LostOnce.lost == 1
    (listed,) = (await ann.get(f"/agent/executions/{execution}/attachments"))["items"]
    call = (await ann.get(f"/agent/executions/{execution}/steps"))["items"][0]["calls"][0]
    assert (call["attempts"], call["attachments"][0]["id"]) == (2, listed["id"])
    assert await files_of(api_setup) == 1


async def test_programs_send_and_read_files(api_setup: ApiSetup, work: None, tmp_path: Any) -> None:
    """5.6.1"""
    path = tmp_path / "a.txt"
    path.write_bytes(b"from a program")
    sessions, client = api_setup.sessions, replace(api_setup.sessions.client, tenant_id=api_setup.tenant)
    sent = await replace(sessions, client=client).begin(
        Scope(api_setup.tenant, "ann"), UserMessage("look", "ann", attachments=[path])
    )
    execution = client.execution(sent.execution_id, sent.message.session_id)

    await execution.result()
    row = await execution.get()
    assert row.output
    assert row.output["response"] == "You sent: a.txt b'from a program'"
    (file,) = sent.message.attachments
    assert (await client.read_attachment(file.id, "ann")).data == b"from a program"
    assert client.attachments
    (use,) = await client.attachments.list_uses(ExecutionRef(sent.execution_id, api_setup.tenant))
    assert use.attachment == file
    del work


async def test_urls_are_refused_unless_they_are_allowed(ann: ApiCaller) -> None:
    """5.6.7"""
    sent = {"url": "https://example.com/a.png"}
    refused = await ann.http.post("/agent/attachments/url", json=sent)
    assert_problem(refused, 422, "files from URLs are not allowed here; upload the file")


async def run_sql(api_setup: ApiSetup, statement: str) -> Sequence[Any]:
    async with api_setup.keys.engine.connect() as connection:
        found = await connection.execute(text(statement), {"tenant": api_setup.tenant})
        return found.all() if found.returns_rows else ()


async def files_of(api_setup: ApiSetup) -> int:
    """How many files of the tenant are stored, with their content."""
    counts = await run_sql(
        api_setup,
        "SELECT (SELECT count(*) FROM agent_attachments WHERE tenant_id = :tenant) AS described,"
        " (SELECT count(*) FROM agent_attachment_contents WHERE tenant_id = :tenant) AS stored",
    )
    assert counts[0].described == counts[0].stored
    return counts[0].described


async def executions_of(api_setup: ApiSetup) -> int:
    found = await run_sql(api_setup, "SELECT count(*) FROM agent_executions WHERE tenant_id = :tenant")
    return found[0][0]


pytestmark = pytest.mark.timeout(120)


async def send_form(caller: ApiCaller, key: str | None = None, query: str = "", **form: Any) -> Answer:
    """The response to a form."""
    headers = {"Idempotency-Key": key} if key else {}
    return await caller.http.post(f"/agent/attachments{query}", headers=headers, **form)


async def test_a_form_with_one_file_is_an_upload(ann: ApiCaller, api_setup: ApiSetup) -> None:
    """5.6.8: also repeated with its key, although the boundary is another one."""
    form: dict[str, Any] = {"files": {"file": ("fünf.png", PNG, "image/png")}}
    key = str(uuid4())

    sent, again = [await send_form(ann, key, **form) for _ in range(2)]
    named = await send_form(ann, query="?name=other.png", **form)
    plain = await send_form(ann, files={"upload": ("a.txt", b"hello", "application/octet-stream")})

    assert (sent.status_code, sent.json()) == (201, again.json())
    assert {key: sent.json()[key] for key in ("name", "media_type", "size")} == {
        "name": "fünf.png",
        "media_type": "image/png",
        "size": len(PNG),
    }
    assert named.json()["name"] == "other.png"
    assert (plain.json()["name"], plain.json()["media_type"]) == ("a.txt", "text/plain")
    data = await ann.http.get(f"/agent/attachments/{sent.json()['id']}")
    assert data.content == PNG
    assert await files_of(api_setup) == 3


BAD_FORMS: Sequence[tuple[dict[str, Any], int, str]] = [
    ({"files": {"file": ("a.txt", b"a")}, "data": {"note": "x"}}, 422, "The form has the field 'note'"),
    ({"files": [("file", ("a.txt", b"a")), ("file", ("b.txt", b"b"))]}, 422, "The form has 2 files"),
    ({"files": {"file": ("a.txt", b"")}}, 422, "the file 'a.txt' is empty"),
    ({"files": {"file": ("a.png", b"text", "image/png")}}, 422, "is text/plain and not image/png"),
    ({"files": {"file": ("a.txt", b"x" * 10_000)}}, 413, "bytes"),
    ({"files": {"file": ("a.txt", b"x" * 1_001)}}, 413, "1000 bytes"),
    ({"files": {"file": ("../a.txt", b"x")}}, 422, "is no file name"),
    ({"files": [("file", ("a.txt", b"")) for _ in range(21)]}, 422, "more than 20 parts"),
]


async def test_bad_forms_are_refused_in_one_sentence(ann: ApiCaller, api_setup: ApiSetup) -> None:
    """5.6.8, 5.6.2: with the limits of other uploads, and nothing is stored."""
    client = api_setup.sessions.client
    assert client.attachments
    small = replace(client.attachments, limits=AttachmentLimits(max_bytes=1_000))
    sessions = replace(api_setup.sessions, client=replace(client, attachments=small))
    limited = replace(api_setup, sessions=sessions)
    async with http_client(create_app(limited.api, max_upload=1_000), dict(ann.http.headers)) as http:
        caller = replace(ann, http=http)
        whole = await send_form(caller, files={"file": ("a.txt", b"x" * 1_000)})
        assert whole.status_code == 201
        for form, status, words in BAD_FORMS:
            assert_problem(await send_form(caller, **form), status, words)
    assert await files_of(api_setup) == 1
