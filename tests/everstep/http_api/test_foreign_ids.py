"""Ids of another user's objects in queries and bodies open nothing, at any address of the API.

`test_crossing.py` does the same with the ids in addresses. The names come from the API's own description: one
that is new needs an entry here.
"""

from collections.abc import Iterator, Mapping
from typing import Any

from everstep.http_api.pages import PUBLIC_ROUTES
from tests.everstep.http_api.house import ApiCaller, MakeCaller
from tests.everstep.http_api.test_crossing import BODIES, OwnObjects, create_objects, stored_objects

OWN: Mapping[str, Any] = {
    **BODIES,
    "NewSessionSent": {},
    "FirstMessageSent": {"content": "Look"},
    "NewExecutionSent": {"content": "Look"},
    "NewScheduleSent": {"agent": "clerk", "content": "Look", "interval_seconds": 3600, "paused": True},
    "FileUrlSent": {"url": "https://files.example/a.txt"},
}
"""A valid body by the name of its schema."""

NO_OBJECTS = {"related_id", "initial_context_url", "context_url", "id"}
"""Names that look like ids and belong to the caller's application, or name an own object."""

WIRES = ("/agui/", "/ai/", "/v1/", "/broadcasting/")
"""Their bodies are protocols of others: `test_crossing.py` and tests/wires send ids of others in them."""


def foreign(theirs: OwnObjects) -> Mapping[str, Any]:
    """The objects of the other user, by the names under which requests refer to them."""
    return {
        "session_id": theirs.ids["session_id"],
        "execution_id": theirs.ids["execution_id"],
        "parent_execution_id": theirs.ids["execution_id"],
        "request_id": theirs.ids["request_id"],
        "attachments": [theirs.ids["attachment_id"]],
        "user_id": "ann",
    }


def is_reference(name: str) -> bool:
    return (name.endswith("_id") or name in {"attachments", "id"}) and name not in NO_OBJECTS


def requests(
    document: Mapping[str, Any], own: OwnObjects, theirs: OwnObjects
) -> Iterator[tuple[str, str, dict[str, Any], Any]]:
    """Requests about own objects that name one of the other user's: method, address, query, body."""
    named = foreign(theirs)
    for path, operations in document["paths"].items():
        if path in PUBLIC_ROUTES or path.startswith(WIRES):
            continue
        address = path.format(**own.ids, name="clerk")
        for method, operation in operations.items():
            content = operation.get("requestBody", {}).get("content", {}).get("application/json")
            schema = content["schema"].get("$ref", "").rpartition("/")[2] if content else ""
            fields = document["components"]["schemas"].get(schema, {}).get("properties", {})
            for name in filter(is_reference, fields):
                yield method, address, {}, own_body(own, schema) | {name: named[name]}
            queries = [each for each in operation.get("parameters", ()) if each["in"] == "query"]
            required = {each["name"]: "treasure" for each in queries if each.get("required")}
            for name in filter(is_reference, [each["name"] for each in queries]):
                body = own_body(own, schema) if schema else None
                yield method, address, {**required, name: named[name]}, body
        if "{other_id}" in path:
            for one, other in ((own, theirs), (theirs, own)):
                yield (
                    "get",
                    path.format(execution_id=one.ids["execution_id"], other_id=other.ids["other_id"]),
                    {},
                    None,
                )


def own_body(own: OwnObjects, schema: str) -> dict[str, Any]:
    body = {**OWN[schema]}
    if "args_digest" in body:
        body["args_digest"] = own.ids["digest"]
    return body


async def test_an_id_of_another_user_opens_nothing(sign_in: MakeCaller, work: None) -> None:
    """8.9.7"""
    ann, ben = await sign_in("ann"), await sign_in("ben")
    theirs, own = await create_objects(ann), await create_objects(ben)
    before = await stored_objects(ann, theirs)
    words = {"My treasure", *(value for name, value in theirs.ids.items() if name not in {"agent", "number"})}
    count = 0
    for method, address, query, body in requests(await ben.get("/openapi.json"), own, theirs):
        count += 1
        answer = await send(ben, method, address, query, body)
        sent = f"{address} {query} {body}"
        if answer.status_code not in (403, 404):
            # Lists and reports: of nothing.
            assert answer.status_code == 200, (method, sent, answer.status_code, answer.text)
            lists: list[Any] = [each for each in answer.json().values() if isinstance(each, list)]
            assert lists, (method, sent, answer.text)
            assert not any(lists), (method, sent, answer.text)
        for word in words:
            assert word in sent or word not in answer.text, (method, sent, answer.text)
    assert count > 20
    assert await stored_objects(ann, theirs) == before
    del work


async def send(caller: ApiCaller, method: str, address: str, query: dict[str, Any], body: Any) -> Any:
    return await caller.http.request(method.upper(), address, params=query, json=body)
