"""Sessions get titles from a model, and no execution waits for one."""

from dataclasses import replace
from uuid import UUID

import pytest
from temporalio.client import Client as TemporalClient

from everstep.agent_domain.agents.drivers import Model
from everstep.agent_domain.errors import ModelUnavailable
from everstep.agent_domain.storage.sessions import SessionChanges, title_of
from everstep.agent_domain.testing import ScriptedModel
from everstep.client.titles import PROMPT, READS, Titles
from everstep.store.sessions import PostgresSessions
from tests.everstep.client.parlour import Parlour, a_parlour, said
from tests.workflows.harness import HeldModel, an_agent

FIRST = "Please book me a trip to Rome for two people in the second week of May"


def entitled(temporal: TemporalClient, store: PostgresSessions, model: Model) -> tuple[Parlour, Titles]:
    parlour = a_parlour(temporal, store, an_agent())
    titles = Titles(model, parlour.port)
    parlour.sessions = replace(parlour.sessions, titles=titles)
    return parlour, titles


async def title(parlour: Parlour, session_id: UUID) -> str | None:
    session = await parlour.port.session(parlour.scope, session_id)
    assert session
    return session.title


async def test_a_title_replaces_the_beginning_of_the_first_message(
    temporal: TemporalClient, store: PostgresSessions
) -> None:
    model = HeldModel(' "Trip to\nRome". ')
    parlour, titles = entitled(temporal, store, model)
    sent = await parlour.sessions.begin(parlour.scope, said(FIRST + "!" * READS))
    session_id = sent.message.session_id
    assert await title(parlour, session_id) == "Please book me a trip to Rome for two people in the second…"
    model.go_on.set()
    await titles.settled()

    assert await title(parlour, session_id) == "Trip to Rome"
    (request,) = model.requests
    prompt, content = request.messages
    assert prompt.text == PROMPT
    assert len(content.text) == READS


async def test_a_title_of_the_user_stays(temporal: TemporalClient, store: PostgresSessions) -> None:
    model = HeldModel("Trip to Rome", holds=1)
    parlour, titles = entitled(temporal, store, model)
    session_id = await parlour.session()
    await parlour.say(session_id, FIRST)
    await model.begun.wait()
    await parlour.port.change_session(parlour.scope, session_id, SessionChanges("Mine"))
    model.go_on.set()
    await titles.settled()
    named = await parlour.sessions.begin(parlour.scope, said(FIRST), "Hers")
    await titles.settled()

    assert await title(parlour, session_id) == "Mine"
    assert await title(parlour, named.message.session_id) == "Hers"
    assert model.asked == 1


@pytest.mark.parametrize("answer", ["", ModelUnavailable("overloaded")])
async def test_without_an_answer_the_beginning_of_the_first_message_stays(
    temporal: TemporalClient, store: PostgresSessions, answer: str | Exception
) -> None:
    parlour, titles = entitled(temporal, store, ScriptedModel(answer))
    sent = await parlour.sessions.begin(parlour.scope, said(FIRST))
    await titles.settled()

    assert await title(parlour, sent.message.session_id) == title_of(FIRST)


async def test_a_stopping_worker_does_not_wait_for_titles(
    temporal: TemporalClient, store: PostgresSessions
) -> None:
    model = HeldModel()
    parlour, titles = entitled(temporal, store, model)
    await parlour.sessions.begin(parlour.scope, said(FIRST))
    await model.begun.wait()
    await titles.aclose()

    assert model.was_closed
