"""The text of an exception reaches the operator, and neither callers, viewers nor Temporal.

Agents fail in every way in which an error can be raised. Then the owner of the executions reads everything.
"""

import asyncio
import base64
import re
from collections.abc import AsyncGenerator, Iterator
from dataclasses import replace
from itertools import chain
from typing import Any, cast
from uuid import UUID

import pytest_asyncio

from everstep.agent_domain.agents.builder import DefinitionBuilder
from everstep.agent_domain.agents.drivers import ToolCallingDriver
from everstep.agent_domain.agents.plan import REGISTERED
from everstep.agent_domain.agents.processors import AgentHook
from everstep.agent_domain.agents.react import ReActDriver
from everstep.agent_domain.errors import ModelError, ToolError
from everstep.agent_domain.ids import ExecutionRef
from everstep.agent_domain.loop.continuation import ContinuationDecision
from everstep.agent_domain.loop.error_policy import ErrorPolicy
from everstep.agent_domain.state.state import AgentState
from everstep.agent_domain.testing import ScriptedModel, calls
from everstep.agent_domain.tools.function_tool import tool
from everstep.agent_domain.tools.tools import ToolExecution
from everstep.client.sessions import Sessions
from everstep.runtime.agents import AgentBook
from everstep.runtime.worker import make_worker
from tests.everstep.http_api.house import ApiCaller, ApiSetup, MakeCaller, NoModels, open_callers

LEAK = "db-7.internal at 10.9.8.7 refused mallory"
PASSWORD = "hunter2-of-the-tests"  # noqa: S105 -- planted
WORDS = f"{LEAK}, password={PASSWORD}"


@tool
def connect() -> str:
    """Connect to the database."""
    raise ConnectionError(WORDS)


@tool
def explain() -> str:
    """Fail with a text that is meant for readers."""
    raise ToolError("The table is full: remove a row")


def failing_processor(state: AgentState) -> AgentState:
    del state
    raise RuntimeError(WORDS)


class BrokenHook(AgentHook):
    def after_tool(self, state: AgentState, execution: ToolExecution) -> AgentState:
        del execution
        raise RuntimeError(WORDS)


@REGISTERED.function("tests.leaky")
def failing_criterion(state: Any) -> ContinuationDecision:
    if state.step_count:
        raise RuntimeError(WORDS)
    return ContinuationDecision.ALLOW


@tool
def look() -> str:
    """Look around."""
    return "seen"


CALLS, LOOKS = calls(("connect", {})), calls(("look", {}))
REACTS = '{"thought": "", "type": "call_tool", "tool": "connect", "args": {}}'
REACTED = '{"thought": "", "type": "final_answer", "answer": "Sorry."}'


def an_agent(name: str, *script: Any) -> DefinitionBuilder:
    driver = ToolCallingDriver(ScriptedModel(*script))
    builder = DefinitionBuilder.new().with_name(name, "Fails").with_driver(driver).with_debug()
    return builder.with_tools([connect, explain, look]).with_max_retries(1)


def agents() -> Iterator[DefinitionBuilder]:
    yield an_agent("forgives", CALLS, "Sorry.", CALLS, "Sorry.").with_error_policy(
        ErrorPolicy.retry_tool_errors()
    )
    yield an_agent("ends", CALLS)
    yield an_agent("explains", calls(("explain", {})))
    reacts = an_agent("reacts").with_driver(ReActDriver(ScriptedModel(REACTS, REACTED, REACTS, REACTED)))
    yield reacts.with_error_policy(ErrorPolicy.retry_tool_errors())
    yield an_agent("processes", LOOKS, "Done").add_processor(failing_processor)
    yield an_agent("hooked", LOOKS, "Done").add_hook(BrokenHook())
    yield an_agent("judged", LOOKS, "Done").add_continuation_criteria(failing_criterion())
    yield an_agent("refused", ModelError(WORDS))


FAILING = ["forgives", "ends", "reacts", "processes", "hooked", "judged", "refused"]


@pytest_asyncio.fixture
async def leaking(api_setup: ApiSetup) -> AsyncGenerator[ApiSetup]:
    """The API with these agents, and a worker."""
    known = {agent.descriptor.name: agent for agent in (builder.definition() for builder in agents())}
    client = replace(api_setup.sessions.client, agents=known)
    sessions = Sessions(client, api_setup.sessions.store, "ends")
    book = AgentBook(known.values(), NoModels())
    async with make_worker(client.temporal, client.store, book, api_setup.settings, ended=sessions.on_end):
        yield ApiSetup(sessions, api_setup.keys, api_setup.settings, tenant=api_setup.tenant)


@pytest_asyncio.fixture
async def doors(leaking: ApiSetup) -> AsyncGenerator[MakeCaller]:
    async with open_callers(leaking) as sign_in:
        yield sign_in


async def run_failure(person: ApiCaller, session: str, content: str = "Go") -> str:
    """An execution in this session that failed."""
    execution = (await person.post_message(session, content))["execution_id"]
    await person.wait_for_status(execution, "completed", "failed")
    return execution


async def run_two_failures(person: ApiCaller, agent: str) -> tuple[str, str]:
    """A session in which two executions failed, the second as a continuation of the first."""
    session = await person.create_session(agent=agent)
    await run_failure(person, session)
    return session, await run_failure(person, session, "Again")


def readable_addresses(person: ApiCaller, *ids: str) -> Iterator[tuple[str, str]]:
    """Every path that can be read, and each of its addresses with one of these ids."""
    paths: dict[str, Any] = person.app.openapi()["paths"]
    for path, methods in paths.items():
        if "get" in methods and "/streams/" not in path:
            for address in sorted({re.sub(r"\{[a-z_]+\}", id_, path) for id_ in ids}):
                yield path, address


async def all_responses(person: ApiCaller, *ids: str) -> dict[str, str]:
    """The response of every address that can be read, by path and address."""
    said = dict[str, str]()
    for path, address in readable_addresses(person, *ids):
        answer = await person.http.get(address)
        if answer.status_code == 200:
            said[f"{path} {address}"] = answer.text
    return said


async def test_no_response_contains_the_text_of_an_exception(leaking: ApiSetup, doors: MakeCaller) -> None:
    """Follows rules 5.4.4 and 16.6.3: for its owner, at every address, in every envelope and message, and in
    Temporal; searches do not find it either."""
    ann = await doors("ann")
    failures = dict(
        zip(FAILING, await asyncio.gather(*(run_two_failures(ann, a) for a in FAILING)), strict=True)
    )
    said = await all_responses(ann, *chain.from_iterable(failures.values()))

    read = ("", "/steps", "/trace", "/because", "/snapshots")
    for agent, (session, execution) in failures.items():
        about = {
            address: text for address, text in said.items() if session in address or execution in address
        }
        assert {
            f"/agent/executions/{{execution_id}}{rest} /agent/executions/{execution}{rest}" for rest in read
        } <= about.keys()
        assert f"/agent/sessions/{{session_id}}/messages /agent/sessions/{session}/messages" in about
        assert re.search(r"[A-Z][a-zA-Z]+ \(ref [0-9a-f]{12}\)", str(about)), agent
        ref = ExecutionRef(UUID(execution), leaking.tenant, UUID(session))
        assert LEAK not in str(await leaking.sessions.client.store.envelopes(ref.tenant_id, ref.stream_id)), (
            agent
        )
        handle = await leaking.sessions.client.execution(ref.execution_id).workflow.fetch_history()
        assert LEAK not in decode_payloads(handle.to_json_dict()), agent
    leaks = {
        address: text[max(0, text.find(LEAK) - 200) : text.find(LEAK) + 200]
        for address, text in said.items()
        if LEAK in text or PASSWORD in text
    }
    assert not leaks, leaks
    assert (await ann.get("/agent/search", q="mallory OR refused"))["items"] == []
    assert (await ann.get("/agent/search", q="go"))["items"] != []


async def test_a_caller_with_all_scopes_reads_the_text_without_the_secret(doors: MakeCaller) -> None:
    """5.4.4: under the reference that others see; the model reads the same."""
    ann, operator = await doors("ann"), await doors("ops", "sessions:all")
    execution = await run_failure(ann, await ann.create_session(agent="forgives"))
    path = f"/agent/executions/{execution}/steps"
    (hers, *_), (all_, *_) = (await ann.get(path))["items"], (await operator.get(path))["items"]

    words = f"{LEAK}, password=[redacted]"
    assert all_["calls"][0]["text"] == f"Error: {words}"
    assert all_["calls"][0]["error"]["message"] == words
    told = hers["calls"][0]["error"]["message"]
    assert re.fullmatch(r"ConnectionError \(ref [0-9a-f]{12}\)", told)
    assert hers["calls"][0]["text"] == f"Error: {told}"
    assert hers["messages"][-1]["content"] == f"Error: {told}"
    failed = await run_failure(ann, await ann.create_session(agent="ends"))
    path = f"/agent/executions/{failed}"
    row, rows = await ann.get(path), await operator.get(path)
    assert re.fullmatch(r"ConnectionError \(ref [0-9a-f]{12}\)", row["error_message"])
    assert rows["error_message"] == words


async def test_the_text_of_a_tool_error_is_shown_to_all_callers(doors: MakeCaller) -> None:
    """5.4.4: by raising `ToolError`."""
    ann = await doors("ann")
    execution = await run_failure(ann, await ann.create_session(agent="explains"))

    row = await ann.get(f"/agent/executions/{execution}")
    assert row["error_message"] == "The table is full: remove a row"


async def test_a_setting_shows_all_texts_to_all_callers(
    api_setup: ApiSetup, leaking: ApiSetup, doors: MakeCaller
) -> None:
    """5.4.4: for installations of one person; secrets are still redacted."""
    del doors
    known = leaking.sessions.client.agents
    changed = {"error_details": True, "task_queue": f"{api_setup.settings.task_queue}-x"}
    settings = api_setup.settings.model_copy(update=changed)
    client = replace(leaking.sessions.client, task_queue=settings.task_queue)
    sessions = Sessions(client, api_setup.sessions.store, "ends")
    book = AgentBook(known.values(), NoModels())
    async with (
        make_worker(client.temporal, client.store, book, settings, ended=sessions.on_end),
        open_callers(ApiSetup(sessions, api_setup.keys, settings, tenant=api_setup.tenant)) as sign_in,
    ):
        ann = await sign_in("ann")
        execution = await run_failure(ann, await ann.create_session(agent="ends"))
        row = await ann.get(f"/agent/executions/{execution}")

    assert row["error_message"] == f"{LEAK}, password=[redacted]"


def decode_payloads(value: Any) -> str:
    """A history as text, its payloads decoded."""
    match value:
        case dict():
            return " ".join(map(decode_payloads, cast("dict[str, Any]", value).values()))
        case list():
            return " ".join(map(decode_payloads, cast("list[Any]", value)))
        case str():
            try:
                return f"{value} {base64.b64decode(value, validate=True).decode()}"
            except ValueError:
                return value
        case _:
            return str(value)
