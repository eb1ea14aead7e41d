"""The Responses API over a socket: the unmodified SDKs of OpenAI."""

import asyncio
from collections.abc import AsyncGenerator, Mapping
from typing import Any
from uuid import UUID

import pytest
import pytest_asyncio
from openai import (
    APIStatusError,
    AsyncOpenAI,
    AuthenticationError,
    BadRequestError,
    ConflictError,
    NotFoundError,
    PermissionDeniedError,
)

from everstep.agent_domain.ids import ExecutionRef
from tests.everstep.http_api.house import ApiCaller, ApiSetup, MakeCaller
from tests.wires.clients import OpenAiClient, exhaust_budget, openai_viewer

pytestmark = pytest.mark.usefixtures("work")


def key_of(caller: ApiCaller) -> str:
    return caller.http.headers["authorization"].removeprefix("Bearer ")


@pytest_asyncio.fixture
async def openai(url: str, ann: ApiCaller) -> AsyncGenerator[AsyncOpenAI]:
    """The SDK as ann."""
    async with AsyncOpenAI(base_url=f"{url}/v1", api_key=key_of(ann), max_retries=0) as client:
        yield client


def approval_of(response: Any) -> Any:
    """The request for approval in a response."""
    (item,) = (item for item in response.output if item.type == "mcp_approval_request")
    return item


def decision(response: Any, *, approve: bool, **more: Any) -> list[Any]:
    """The input that decides about the call of a response."""
    item = {"type": "mcp_approval_response", "approval_request_id": approval_of(response).id}
    return [{**item, "approve": approve, **more}]


async def test_a_response_answers_and_the_next_one_continues_its_session(
    openai: AsyncOpenAI, ann: ApiCaller
) -> None:
    """17.5.1, 17.5.2"""
    assert [model.id async for model in openai.models.list()] == ["clerk", "other", "chief"]
    assert (await openai.models.retrieve("clerk")).owned_by == "everstep"
    first = await openai.responses.create(model="clerk", input="hello", metadata={"trip": "7"})
    assert (first.output_text, first.status, first.model) == ("You said: hello", "completed", "clerk")
    assert (first.metadata, first.background) == ({"trip": "7"}, False)
    extension: Any = first.to_dict()["everstep"]
    assert extension["because"] == "completed: the model answered without calling tools"
    second = await openai.responses.create(model="clerk", input="again", previous_response_id=first.id)
    assert (second.output_text, second.previous_response_id) == ("You said: again", first.id)
    assert await openai.responses.retrieve(second.id) == second
    (item,) = (await openai.responses.input_items.list(second.id)).data
    assert item.to_dict()["content"] == [{"type": "input_text", "text": "again"}]
    (session,) = (await ann.get("/agent/sessions"))["items"]
    assert len((await ann.get("/agent/executions", session_id=session["id"]))["items"]) == 2


async def test_a_conversation_is_a_session(openai: AsyncOpenAI, ann: ApiCaller) -> None:
    """17.5.2"""
    for text in ("one", "two"):
        response = await openai.responses.create(model="clerk", input=text, conversation="my trip")
        assert response.conversation
        assert response.conversation.id == "my trip"
    (session,) = (await ann.get("/agent/sessions"))["items"]
    await openai.responses.create(model="clerk", input="three", conversation=session["id"])
    assert len((await ann.get("/agent/executions", session_id=session["id"]))["items"]) == 3
    asked = await openai.responses.create(model="clerk", input="ask", conversation="my trip")
    assert asked.output_text == "Which day?\n- Monday\n- Friday"
    answered = await openai.responses.create(model="clerk", input="Friday", conversation="my trip")
    assert (answered.id, answered.output_text) == (f"{asked.id}_1", "So be it: Friday")


async def test_a_client_that_sends_the_whole_conversation_continues_its_session(
    openai: AsyncOpenAI, ann: ApiCaller
) -> None:
    """17.5.2: the items of a response name it. What others have written begins a session."""
    first = await openai.responses.create(model="clerk", input="hello")
    said: list[Any] = [{"role": "user", "content": "hello"}, *(item.to_dict() for item in first.output)]
    again = await openai.responses.create(model="clerk", input=[*said, {"role": "user", "content": "again"}])
    assert (again.output_text, again.previous_response_id) == ("You said: again", first.id)
    assert len((await ann.get("/agent/sessions"))["items"]) == 1

    other: list[Any] = [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Good day"}]
    begun = await openai.responses.create(model="clerk", input=[*other, {"role": "user", "content": "hello"}])
    assert begun.output_text == "You said: hello"
    execution: Any = begun.to_dict()["everstep"]
    assert await heard_by(ann, execution["execution_id"]) == ["Hi", "Good day", "hello", "You said: hello"]


async def heard_by(caller: ApiCaller, execution_id: str) -> list[str]:
    """The texts of an execution's conversation."""
    ref = ExecutionRef(UUID(execution_id), caller.api_setup.tenant)
    return [message.text for message in await caller.api_setup.sessions.client.store.transcript(ref)]


@pytest.mark.parametrize("approve", [True, False])
async def test_an_approval_is_an_item_and_its_decision_is_input(openai: AsyncOpenAI, approve: bool) -> None:
    """17.5.5"""
    async with openai.responses.stream(model="clerk", input="book") as stream:
        kinds = [event.type async for event in stream]
        asked = await stream.get_final_response()
    assert kinds[-1] == "response.completed"
    call, request = asked.output
    assert (call.type, call.to_dict()["status"]) == ("mcp_call", "incomplete")
    assert request.to_dict()["arguments"] == '{"hotel":"Harbour Inn"}'

    for _ in range(2):
        # A repeated decision has the same response.
        done = await openai.responses.create(
            model="clerk",
            previous_response_id=asked.id,
            input=decision(asked, approve=approve, reason="too far"),
        )
        assert done.id == f"{asked.id}_1"
        result: Any = done.output[0].to_dict()
        if approve:
            assert (result["status"], result["output"]) == ("completed", "a room at Harbour Inn")
            assert done.output_text == "So be it: a room at Harbour Inn"
        else:
            assert result["error"]["content"] == "Denied by user: too far"
    with pytest.raises(ConflictError, match="already decided"):
        await openai.responses.create(
            model="clerk", previous_response_id=asked.id, input=decision(asked, approve=not approve)
        )


async def test_another_person_decides_and_the_client_waits(
    openai: AsyncOpenAI, sign_in: MakeCaller, url: str
) -> None:
    """17.5.5"""
    asked = await openai.responses.create(model="clerk", input="refund")
    with pytest.raises(APIStatusError, match="Only callers with the scope 'approve' may decide"):
        await openai.responses.create(
            model="clerk", previous_response_id=asked.id, input=decision(asked, approve=True)
        )
    with pytest.raises(ConflictError, match="refund waits for a decision"):
        await openai.responses.create(model="clerk", previous_response_id=asked.id, input="Hurry")
    following = await openai.responses.create(model="clerk", previous_response_id=asked.id, background=True)
    assert (following.id, following.status) == (f"{asked.id}_1", "queued")
    waiting = asyncio.create_task(openai.responses.create(model="clerk", previous_response_id=asked.id))
    boss = key_of(await sign_in("ann", "approve"))
    async with AsyncOpenAI(base_url=f"{url}/v1", api_key=boss) as client:
        await client.responses.create(
            model="clerk", previous_response_id=asked.id, input=decision(asked, approve=True)
        )
    assert (await waiting).output_text == "So be it: 80 euros are paid back"
    assert (await openai.responses.retrieve(following.id)).status == "completed"


async def test_an_exhausted_budget_is_said_and_waited_for(openai: AsyncOpenAI, ann: ApiCaller) -> None:
    """17.5.5, 17.5.11"""
    await exhaust_budget(ann)
    waits: Any = await openai.responses.create(model="clerk", input="hello")
    (request,) = waits.to_dict()["everstep"]["requests"]
    assert (request["kind"], request["text"]) == ("budget", waits.output_text)
    with pytest.raises(ConflictError, match="a budget waits"):
        await openai.responses.create(model="clerk", input="hurry", previous_response_id=waits.id)
    following = await openai.responses.create(model="clerk", previous_response_id=waits.id, background=True)
    assert following.status == "queued"
    messages: list[Any] = [{"role": "user", "content": "hello"}]
    said = await openai.chat.completions.create(model="clerk", messages=messages)
    answer = said.choices[0].message.content or ""
    assert "budget" in answer
    messages += [{"role": "assistant", "content": answer}, {"role": "user", "content": "hurry"}]
    with pytest.raises(ConflictError, match="budget is exhausted"):
        await openai.chat.completions.create(model="clerk", messages=messages)


async def test_a_background_response_outlives_its_request(openai: AsyncOpenAI) -> None:
    """17.5.4"""
    begun = await openai.responses.create(model="clerk", input="hello", background=True)
    whole = [event async for event in await openai.responses.retrieve(begun.id, stream=True)]
    assert [event.type for event in whole] == [
        *("response.created", "response.in_progress"),
        *("response.output_item.added", "response.content_part.added"),
        *("response.output_text.delta", "response.output_text.delta", "response.output_text.delta"),
        *("response.output_text.done", "response.content_part.done", "response.output_item.done"),
        "response.completed",
    ]
    for at, event in enumerate(whole):
        after = event.sequence_number
        rest = await openai.responses.retrieve(begun.id, stream=True, starting_after=after)
        assert [each async for each in rest] == whole[at + 1 :]
    async with openai.responses.stream(
        response_id=begun.id, starting_after=whole[4].sequence_number
    ) as stream:
        seen = [event.sequence_number async for event in stream]
    assert seen == [event.sequence_number for event in whole[5:]]
    ended = await openai.responses.retrieve(begun.id)
    assert (ended.status, ended.background, ended.output_text) == ("completed", True, "You said: hello")


async def test_a_response_is_cancelled_and_deleted(openai: AsyncOpenAI, api_setup: ApiSetup) -> None:
    """17.5.6"""
    failed = await openai.responses.create(model="clerk", input="fail")
    assert failed.status == "failed"
    assert failed.error
    asked = await openai.responses.create(model="clerk", input="wonder")
    follow = await openai.responses.create(model="clerk", previous_response_id=asked.id, background=True)
    for _ in range(2):
        assert (await openai.responses.cancel(follow.id)).status == "cancelled"
    with pytest.raises(ConflictError, match=f"has ended and cannot .* GET /v1/responses/{failed.id}") as late:
        await openai.responses.cancel(failed.id)
    assert late.value.code == "response_ended"
    await openai.responses.delete(asked.id)
    with pytest.raises(NotFoundError, match="no response"):
        await openai.responses.retrieve(asked.id)
    first = await openai.responses.create(model="clerk", input="one")
    await openai.responses.create(model="clerk", input="two", previous_response_id=first.id)
    with pytest.raises(ConflictError, match="has other responses"):
        await openai.responses.delete(first.id)


async def test_of_two_requests_that_continue_a_response_one_is_carried_out(
    openai: AsyncOpenAI, ann: ApiCaller
) -> None:
    """17.5.7"""
    first = await openai.responses.create(model="clerk", input="one")

    async def send(text: str) -> Any:
        return await openai.responses.create(model="clerk", input=text, previous_response_id=first.id)

    done = await asyncio.gather(send("two"), send("three"), return_exceptions=True)
    (refused,) = (each for each in done if isinstance(each, ConflictError))
    assert refused.code == "previous_response_stale"
    second: Any = next(each for each in done if not isinstance(each, BaseException))
    assert await send(second.output_text.removeprefix("You said: ")) == second
    with pytest.raises(ConflictError, match="has continued"):
        await send("four")
    assert len((await ann.get("/agent/executions"))["items"]) == 2
    key = {"Idempotency-Key": "k"}
    one, two = [await openai.responses.create(model="clerk", input="five", extra_headers=key) for _ in "ab"]
    assert one == two
    with pytest.raises(BadRequestError, match="used for a different request"):
        await openai.responses.create(model="clerk", input="six", extra_headers=key)


REFUSED: Mapping[str, tuple[dict[str, Any], int, str]] = {
    "agent": ({"model": "clerc"}, 404, "did you mean 'clerk'"),
    "no agent": ({"model": None}, 400, "model"),
    "empty": ({"input": " "}, 400, "input is empty"),
    "number": ({"input": 5}, 400, "body.input: send text, or a list of items"),
    "number as an item": ({"input": [5]}, 400, "body.input: send text, or a list of items"),
    "tools": ({"tools": [{"type": "function", "name": "f"}]}, 400, "agents have their own"),
    "tool choice": ({"tool_choice": "required"}, 400, "tool_choice"),
    "store": ({"store": False}, 400, "always stored"),
    "prompt": ({"prompt": {"id": "p"}}, 400, "prompt"),
    "two places": ({"conversation": "c", "previous_response_id": "resp_1"}, 400, "not both"),
    "foreign form": ({"previous_response_id": "resp_1"}, 404, "no response"),
    "unknown": ({"previous_response_id": f"resp_{'0' * 32}"}, 404, "no response"),
    "role": ({"input": [{"role": "king", "content": "Hi"}]}, 400, "input.0 has the role"),
    "item": ({"input": [{"type": "function_call_output", "output": "x"}]}, 400, "function_call_output"),
    "image": (
        {"input": [{"role": "user", "content": [{"type": "input_image", "image_url": "http://x"}]}]},
        400,
        "data: URL",
    ),
    "file": (
        {"input": [{"role": "user", "content": [{"type": "input_file", "file_data": "data:;base64,?"}]}]},
        400,
        "base64",
    ),
    "decision": (
        {"input": [{"type": "mcp_approval_response", "approval_request_id": "mcpr_1", "approve": True}]},
        400,
        "mcpr_",
    ),
    "format": ({"text": {"format": {"type": "json_object"}}}, 400, "json_schema"),
    "option": ({"everstep": {"on_bussy": "steer"}}, 400, "on_bussy"),
    "model": ({"everstep": {"model": "openai:gpt"}}, 403, "preset"),
}


async def test_bad_input_is_refused_in_the_form_of_the_protocol(ann: ApiCaller) -> None:
    """17.5.8"""
    for kind, (change, status, word) in REFUSED.items():
        answer = await ann.http.post("/v1/responses", json={"model": "clerk", "input": "hello"} | change)
        assert answer.status_code == status, (kind, answer.text)
        error = answer.json()["error"]
        assert {*error} == {"message", "type", "param", "code"}
        assert word in error["message"], kind
    form = await ann.http.post("/v1/responses", data={"model": "clerk"})
    assert "add the header Content-Type: application/json" in form.json()["error"]["message"]
    assert not (await ann.get("/agent/executions"))["items"]


async def test_rights_are_those_of_the_api(
    openai: AsyncOpenAI, sign_in: MakeCaller, url: str, ann: ApiCaller
) -> None:
    """17.5.8"""
    mine = await openai.responses.create(model="clerk", input="hello")
    async with AsyncOpenAI(base_url=f"{url}/v1", api_key=key_of(await sign_in("ben")), max_retries=0) as ben:
        for refused in (
            lambda: ben.responses.retrieve(mine.id),
            lambda: ben.responses.cancel(mine.id),
            lambda: ben.responses.delete(mine.id),
            lambda: ben.responses.create(model="clerk", input="x", previous_response_id=mine.id),
        ):
            with pytest.raises(NotFoundError):
                await refused()
        # The same name is another conversation.
        await openai.responses.create(model="clerk", input="one", conversation="trip")
        await ben.responses.create(model="clerk", input="two", conversation="trip")
    async with AsyncOpenAI(base_url=f"{url}/v1", api_key="wrong", max_retries=0) as stranger:
        with pytest.raises(AuthenticationError) as raised:
            await stranger.responses.create(model="clerk", input="hello")
        assert raised.value.code == "invalid_api_key"
    reader = key_of(await sign_in("ann", "read-only"))
    async with AsyncOpenAI(base_url=f"{url}/v1", api_key=reader, max_retries=0) as watching:
        assert await watching.responses.retrieve(mine.id) == mine
        with pytest.raises(PermissionDeniedError, match="read-only"):
            await watching.responses.create(model="clerk", input="x")
    for method, path in (("POST", "/v1/embeddings"), ("PUT", "/v1/models"), ("GET", "/v1/files/a")):
        unknown = await ann.http.request(method, path)
        assert (unknown.status_code, {*unknown.json()}) == (404, {"error"}), unknown.text
    large = await ann.http.post("/v1/responses", json={"model": "clerk", "input": "x" * 5_000_000})
    assert (large.status_code, large.json()["error"]["code"]) == (413, "too_large")


async def test_the_sdk_for_node_does_the_same(url: str, ann: ApiCaller) -> None:
    """17.5.1, 17.5.4, 17.5.5"""
    async with openai_viewer() as node:
        client = OpenAiClient(node, "ann").make(url, key_of(ann))
        assert [model["id"] for model in await client.call("models")] == ["clerk", "other", "chief"]
        done = await client.call("stream", model="clerk", input="hello")
        assert done["response"]["output_text"] == "You said: hello"
        events = done["events"]
        rest = await client.call("rest", id=done["response"]["id"], after=events[4]["sequence_number"])
        assert rest == events[5:]
        asked = await client.call("response", model="clerk", input="book")
        (item,) = (each for each in asked["output"] if each["type"] == "mcp_approval_request")
        approved = await client.call(
            "response",
            model="clerk",
            previous_response_id=asked["id"],
            input=[{"type": "mcp_approval_response", "approval_request_id": item["id"], "approve": True}],
        )
        assert approved["output_text"] == "So be it: a room at Harbour Inn"
        messages = [{"role": "user", "content": "hello"}]
        chat = await client.call("chatStream", model="clerk", messages=messages)
        assert chat["text"] == "You said: hello"
        refused = await client.call("response", model="clerc", input="hello")
        assert (refused["status"], refused["code"]) == (404, "model_not_found")
        assert not node.events_of("uncaught", None)
