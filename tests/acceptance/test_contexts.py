"""The subjects of messages and sessions, in an installation whose application has a policy."""

import asyncio
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any
from uuid import uuid4

import httpx2
import jwt
import pytest
import pytest_asyncio

from everstep.agent_domain.errors import InvalidInput
from everstep.runtime.context_policy import load_context_policy
from tests.acceptance.contexts import HIDDEN
from tests.acceptance.front import Front
from tests.acceptance.harness import Installation, until

pytestmark = pytest.mark.asyncio(loop_scope="session")

SECRET = "a secret of the tests, which everybody knows"  # noqa: S105 -- no secret
POLICY = "tests.acceptance.contexts:Policy"


class Person:
    def __init__(self, front: Front, tenant: str, **claims: Any) -> None:
        payload = {"sub": "ann", "tenant": tenant, "exp": 4_000_000_000, **claims}
        headers = {"Authorization": f"Bearer {jwt.encode(payload, SECRET, 'HS256')}"}
        self.http = httpx2.AsyncClient(base_url=front.url, headers=headers, timeout=30)

    async def post(self, path: str, status: int = 201, **body: Any) -> Any:
        answer = await self.http.post(path, json=body)
        assert answer.status_code == status, answer.text
        return answer.json()

    async def sessions(self) -> list[Any]:
        return (await self.http.get("/agent/sessions")).json()["items"]


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def shop(installation: Installation, tmp_path_factory: pytest.TempPathFactory) -> AsyncGenerator[Front]:
    """An API whose application knows orders, for all tests of this module."""
    front = Front(installation, tmp_path_factory.mktemp("shop"), "", f"contexts-{uuid4().hex}")
    front.variables = {
        "EVERSTEP_RELATED_TYPES": "order,ticket",
        "EVERSTEP_CONTEXT_POLICY": POLICY,
        "EVERSTEP_AUTH_SECRET": SECRET,
    }
    await front.api()
    yield front
    for process in front.begun:
        await process.kill()


@pytest_asyncio.fixture(loop_scope="session")
async def ann(shop: Front) -> AsyncGenerator[Person]:
    person = Person(shop, f"tenant-{uuid4().hex}")
    yield person
    await person.http.aclose()


def about(related_id: Any, **more: Any) -> dict[str, Any]:
    return {"related_type": "order", "related_id": related_id, **more}


async def test_a_session_keeps_the_page_on_which_it_began(ann: Person) -> None:
    """8.2.6: on both addresses that create a session."""
    first, then = "https://Shop.Example:443/orders/7?x#y", "/orders/./8"
    for path in ("/agent/sessions", "/agent/messages"):
        said = {} if path == "/agent/sessions" else {"content": "hello"}
        made = await ann.post(path, **said, **about(7, initial_context_url=first, context_url=then))
        session_id = made.get("session_id") or made["id"]
        session = (await ann.http.get(f"/agent/sessions/{session_id}")).json()
        assert session["initial_context_url"] == session["context_url"] == "https://shop.example/orders/7?x#y"
        assert session["related_id"] == "7"
        if said:
            assert made["message"]["context_url"] == "/orders/8"
            assert made["message"]["related_id"] == "7"
        made = await ann.post(path, **said, **about(7, context_url=then))
        session_id = made.get("session_id") or made["id"]
        session = (await ann.http.get(f"/agent/sessions/{session_id}")).json()
        assert session["initial_context_url"] == session["context_url"] == "/orders/8"
    found = (await ann.http.get("/agent/sessions", params={"related_type": "order", "related_id": 7})).json()
    assert len(found["items"]) == 4


@pytest.mark.parametrize("related_id", [True, 1.5, [7], {}])
async def test_an_id_is_text_or_a_whole_number(ann: Person, related_id: Any) -> None:
    """8.2.6"""
    refused = (await ann.post("/agent/sessions", 422, **about(related_id)))["detail"]
    assert "body.related_id: " in refused
    assert "send text or a whole number" in refused


@pytest.mark.parametrize("field", ["related_id", "context_url"])
async def test_the_limit_of_a_text_counts_characters(ann: Person, field: str) -> None:
    """8.2.6"""
    refused = await ann.post("/agent/sessions", 422, **(about("7") | {field: "/" * 2001}))
    assert f"body.{field}: it has 2001 characters; send at most 2000" in refused["detail"]


@pytest.mark.parametrize("name", ["context_url", "initial_context_url"])
@pytest.mark.parametrize(
    "url",
    ["javascript:alert(1)", "//evil.example", "/a\u202eb", "https://ann:pw@shop.example/", "\\\\evil", ""],
    ids=["script", "host", "bidi", "user", "backslash", "empty"],
)
async def test_an_invalid_link_is_refused_and_not_stored(ann: Person, name: str, url: str) -> None:
    """8.2.6"""
    for path in ("/agent/sessions", "/agent/messages"):
        said = {} if path == "/agent/sessions" else {"content": "hello"}
        assert name in (await ann.post(path, 422, **said, **{name: url}))["detail"]
    assert await ann.sessions() == []


async def test_the_policy_decides_at_every_address_that_takes_a_context(ann: Person) -> None:
    """8.2.7: and nothing of a refused request is stored."""
    session = (await ann.post("/agent/sessions"))["id"]
    for path in ("/agent/sessions", "/agent/messages", f"/agent/sessions/{session}/messages"):
        said = {} if path == "/agent/sessions" else {"content": "hello"}
        forbidden = await ann.post(path, 403, **said, **about("theirs"))
        assert forbidden["detail"] == "ann may not see this order"
        wordless = await ann.post(path, 422, **said, **about("wordless"))
        assert wordless["detail"] == "The request is invalid; correct it and send it again"
        unusable = await ann.post(path, 422, **said, **about("unknown"))
        assert unusable["detail"] == "there is no such order; check its number"
        # After the built-in check.
        assert (
            "not allowed"
            in (await ann.post(path, 422, **said, related_type="person", related_id="theirs"))["detail"]
        )
    assert [each["id"] for each in await ann.sessions()] == [session]
    assert (await ann.http.get(f"/agent/sessions/{session}/messages")).json()["items"] == []


async def test_the_result_of_the_policy_is_checked_and_stored(ann: Person) -> None:
    """8.2.7"""
    made = await ann.post("/agent/sessions", **about("canonical"))
    assert (made["related_id"], made["context_url"]) == ("7", "https://shop.example/7")
    await ann.post("/agent/sessions", 422, **about("script"))
    assert len(await ann.sessions()) == 1


@pytest.mark.parametrize("related_id", ["broken", "nothing", "ends the process"])
async def test_a_failing_policy_is_reported_without_details(
    shop: Front, ann: Person, related_id: str
) -> None:
    """8.2.7"""
    log = shop.begun[-1].log
    before = len(log.read_text())
    problem = await ann.post("/agent/messages", 500, content="hello", **about(related_id))
    assert HIDDEN not in str(problem)
    assert "Policy" not in str(problem)
    assert await ann.sessions() == []
    await until("the log tells", lambda: "context policy" in log.read_text()[before:])
    if related_id == "broken":
        assert "password=[redacted]" in log.read_text()
        assert HIDDEN not in log.read_text()
    # The process continues.
    await ann.post("/agent/messages", content="hello", **about("1"))


@pytest.mark.parametrize("related_id", ["hangs", "blocks"])
async def test_a_hanging_policy_does_not_block_the_caller(ann: Person, related_id: str) -> None:
    """8.2.7"""
    hanging = asyncio.create_task(ann.http.post("/agent/sessions", json=about(related_id)))
    others = 0
    while not (await asyncio.wait({hanging}, timeout=0.2))[0]:
        assert (await ann.http.get("/agent/agents")).status_code == 200
        others += 1
    answer = await hanging
    assert answer.status_code == 503
    assert answer.headers["retry-after"]
    assert others > 3
    assert await ann.sessions() == []


async def test_the_policy_receives_the_caller(shop: Front) -> None:
    """8.2.7: a service that acts for a person has its own scopes."""
    tenant = f"tenant-{uuid4().hex}"
    service = Person(shop, tenant, sub="desk", scope="sessions:all profile", roles=["clerk", "head of sales"])
    who = f"{{}} {tenant} ['profile', 'sessions:all'] ['clerk', 'head of sales']"
    for user in ("desk", "ann"):
        refusal = await service.post("/agent/messages", 403, content="x", user_id=user, **about("who"))
        assert refusal["detail"] == who.format(user)
    session = (await service.post("/agent/sessions", user_id="bob"))["id"]
    refusal = await service.post(f"/agent/sessions/{session}/messages", 403, content="x", **about("who"))
    assert refusal["detail"] == who.format("bob")
    await service.http.aclose()


@pytest.mark.parametrize(
    ("setting", "words"),
    [
        ("nonsense", "module:attribute"),
        ("no_such_module:policy", "cannot be imported"),
        ("tests.acceptance.contexts:nothing_here", "has no 'nothing_here'"),
        ("tests.acceptance.contexts:Unmakeable", "cannot be created"),
        ("tests.acceptance.contexts:blocking", "async def check"),
        ("tests.acceptance.contexts:short", "async def check"),
        ("tests.acceptance.contexts:number", "async def check"),
    ],
)
async def test_an_object_that_is_no_policy_is_refused(setting: str, words: str) -> None:
    """8.2.7"""
    with pytest.raises(InvalidInput, match=r"^context_policy") as refused:
        load_context_policy(setting)
    assert words in str(refused.value)


async def test_a_refused_policy_keeps_the_api_from_starting(
    installation: Installation, tmp_path: Path
) -> None:
    """8.2.7"""
    log = tmp_path / "log"
    log.touch()
    environment = installation.environment(EVERSTEP_CONTEXT_POLICY="tests.acceptance.contexts:number")
    process = await installation.nursery.start("api", "--port", "0", log=log, environment=environment)

    assert await process.wait() == 1
    assert log.read_text().splitlines()[-1].startswith("Error: context_policy")
