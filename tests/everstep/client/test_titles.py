"""Sessions get titles from a model, and no execution waits for one."""

from dataclasses import replace
from uuid import UUID

import pytest
from temporalio.client import Client as TemporalClient

from everstep.agent_domain.agents.drivers import Model
from everstep.agent_domain.errors import ModelUnavailable
from everstep.agent_domain.storage.sessions import SessionChanges, title_from
from everstep.agent_domain.testing import ScriptedModel
from everstep.client.titles import MAX_READ_CHARS, PROMPT, Titles
from everstep.store.sessions import PostgresSessions
from tests.everstep.client.parlour import SessionSetup, a_session_setup, message_with
from tests.workflows.harness import HeldModel, an_agent

FIRST = "Please book me a trip to Rome for two people in the second week of May"


def setup_with_titles(
    temporal: TemporalClient, store: PostgresSessions, model: Model
) -> tuple[SessionSetup, Titles]:
    parlour = a_session_setup(temporal, store, an_agent())
    titles = Titles(model, parlour.port)
    parlour.sessions = replace(parlour.sessions, titles=titles)
    return parlour, titles


async def title_of_session(parlour: SessionSetup, session_id: UUID) -> str | None:
    session = await parlour.port.session(parlour.scope, session_id)
    assert session
    return session.title


async def test_a_title_replaces_the_beginning_of_the_first_message(
    temporal: TemporalClient, store: PostgresSessions
) -> None:
    model = HeldModel(' "Trip to\nRome". ')
    parlour, titles = setup_with_titles(temporal, store, model)
    sent = await parlour.sessions.begin(parlour.scope, message_with(FIRST + "!" * MAX_READ_CHARS))
    session_id = sent.message.session_id
    assert (
        await title_of_session(parlour, session_id)
        == "Please book me a trip to Rome for two people in the second…"
    )
    model.go_on.set()
    await titles.wait_until_idle()

    assert await title_of_session(parlour, session_id) == "Trip to Rome"
    (request,) = model.requests
    prompt, content = request.messages
    assert prompt.text == PROMPT
    assert len(content.text) == MAX_READ_CHARS


async def test_a_title_of_the_user_stays(temporal: TemporalClient, store: PostgresSessions) -> None:
    model = HeldModel("Trip to Rome", holds=1)
    parlour, titles = setup_with_titles(temporal, store, model)
    session_id = await parlour.session()
    await parlour.post(session_id, FIRST)
    await model.begun.wait()
    await parlour.port.change_session(parlour.scope, session_id, SessionChanges("Mine"))
    model.go_on.set()
    await titles.wait_until_idle()
    named = await parlour.sessions.begin(parlour.scope, message_with(FIRST), "Hers")
    await titles.wait_until_idle()

    assert await title_of_session(parlour, session_id) == "Mine"
    assert await title_of_session(parlour, named.message.session_id) == "Hers"
    assert model.asked == 1


@pytest.mark.parametrize("answer", ["", ModelUnavailable("overloaded")])
async def test_without_an_answer_the_beginning_of_the_first_message_stays(
    temporal: TemporalClient, store: PostgresSessions, answer: str | Exception
) -> None:
    parlour, titles = setup_with_titles(temporal, store, ScriptedModel(answer))
    sent = await parlour.sessions.begin(parlour.scope, message_with(FIRST))
    await titles.wait_until_idle()

    assert await title_of_session(parlour, sent.message.session_id) == title_from(FIRST)


async def test_a_stopping_worker_does_not_wait_for_titles(
    temporal: TemporalClient, store: PostgresSessions
) -> None:
    model = HeldModel()
    parlour, titles = setup_with_titles(temporal, store, model)
    await parlour.sessions.begin(parlour.scope, message_with(FIRST))
    await model.begun.wait()
    await titles.aclose()

    assert model.was_closed
