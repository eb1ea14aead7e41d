"""Sessions get titles from a model, and no execution waits for one."""

from dataclasses import replace
from datetime import timedelta
from decimal import Decimal
from uuid import UUID

import pytest
from temporalio.client import Client as TemporalClient

from everstep.agent_domain.agents.call_limits import CallLimits
from everstep.agent_domain.agents.drivers import Model
from everstep.agent_domain.errors import ModelError, ModelUnavailable
from everstep.agent_domain.ids import Scope
from everstep.agent_domain.loop.budget import BudgetUnit
from everstep.agent_domain.loop.usage import Usage
from everstep.agent_domain.pricing.prices import PriceList, Prices
from everstep.agent_domain.state.steps import InferenceResponse
from everstep.agent_domain.storage.budget_ledger import OperatorBudget
from everstep.agent_domain.storage.sessions import SessionChanges, title_from
from everstep.agent_domain.storage.usage_report import TimeRange, UsageGroup
from everstep.agent_domain.testing import ScriptedModel
from everstep.client.reconciler import Reconciler
from everstep.client.titles import MAX_OUTPUT_TOKENS, MAX_READ_CHARS, PROMPT, Titles
from everstep.store import session_charges
from everstep.store.accounts import PostgresAccounts
from everstep.store.sessions import PostgresSessions
from tests.everstep.client.parlour import SessionSetup, a_session_setup, message_with
from tests.workflows.harness import HeldModel, an_agent

FIRST = "Please book me a trip to Rome for two people in the second week of May"


def find_model(preset: str) -> Model:
    raise AssertionError(f"{preset} is not asked")


def setup_with_titles(
    temporal: TemporalClient, store: PostgresSessions, model: Model
) -> tuple[SessionSetup, Titles]:
    parlour = a_session_setup(temporal, store, an_agent())
    titles = Titles(model, parlour.port, find_model)
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


PRICE = Decimal("0.002")


class PricedModel(ScriptedModel):
    """A model with prices, whose answers say what they used."""

    call_limits = CallLimits(prices=(PriceList(Prices(Decimal(10), Decimal(100))),))


def a_priced_model(usage: Usage = Usage(100, 10).with_cost(PRICE)) -> PricedModel:
    return PricedModel(InferenceResponse("Trip to Rome", usage=usage, model="small"))


async def a_titled_session(
    temporal: TemporalClient, store: PostgresSessions, model: Model, *budgets: OperatorBudget
) -> tuple[SessionSetup, UUID]:
    """A session whose title was asked for, under these budgets of the operator."""
    parlour, titles = setup_with_titles(temporal, store, model)
    for budget in budgets:
        await store.set_operator_budget(replace(budget, tenant_id=parlour.scope.tenant_id))
    sent = await parlour.sessions.begin(parlour.scope, message_with(FIRST))
    await titles.wait_until_idle()
    return parlour, sent.message.session_id


async def test_a_title_is_charged_to_its_session_and_in_each_report(
    temporal: TemporalClient, store: PostgresSessions
) -> None:
    """4.7.7"""
    parlour, session_id = await a_titled_session(temporal, store, a_priced_model())

    session = await store.session(parlour.scope, session_id)
    assert session
    assert session.cost_usd == PRICE
    span = TimeRange(session.created_at - timedelta(days=1), session.created_at + timedelta(days=1))
    reports = PostgresAccounts(store.engine)
    names = {}
    for group in UsageGroup:
        accounts = await reports.accounts(parlour.scope, span, group)
        charged = [each for each in accounts if each.total]
        assert [(each.total, each.cost_usd, each.executions) for each in charged] == [
            (110, PRICE, 0 if group is UsageGroup.MODEL else 1)
        ]
        names[group] = charged[0].name
    assert names[UsageGroup.MODEL] == "small"
    assert names[UsageGroup.USER] == parlour.scope.user_id
    others = Scope("others", None)
    assert [each for each in await reports.accounts(others, span) if each.total] == []


async def test_a_title_of_unknown_cost_makes_the_cost_of_its_session_unknown(
    temporal: TemporalClient, store: PostgresSessions
) -> None:
    """4.7.7, 4.7.4"""
    parlour, session_id = await a_titled_session(temporal, store, a_priced_model(Usage(100, 10)))

    session = await store.session(parlour.scope, session_id)
    assert session
    assert session.cost_usd is None


async def test_a_failed_title_is_charged_what_the_provider_counted(
    temporal: TemporalClient, store: PostgresSessions
) -> None:
    """4.7.7, 4.7.3"""
    failure = ModelError("broken")
    failure.usage = Usage(40).with_cost(PRICE)
    parlour, session_id = await a_titled_session(temporal, store, ScriptedModel(failure))

    session = await store.session(parlour.scope, session_id)
    assert session
    assert (session.title, session.cost_usd) == (title_from(FIRST), PRICE)


async def test_a_title_counts_in_the_budgets_of_its_user_and_tenant(
    temporal: TemporalClient, store: PostgresSessions
) -> None:
    """4.8.10: what it used, and not the worst case that was charged before the call."""
    tokens = OperatorBudget("", BudgetUnit.TOKENS, Decimal(10_000))
    money = OperatorBudget("", BudgetUnit.USD, Decimal(1))
    parlour, _ = await a_titled_session(temporal, store, a_priced_model(), tokens, money)

    spent = {each.unit: each for each in await store.operator_budgets(parlour.scope.tenant_id)}
    assert (spent[BudgetUnit.TOKENS].spent, spent[BudgetUnit.TOKENS].reserved) == (110, 0)
    assert (spent[BudgetUnit.USD].spent, spent[BudgetUnit.USD].reserved) == (PRICE, 0)


async def test_no_title_is_asked_for_that_a_budget_does_not_cover(
    temporal: TemporalClient, store: PostgresSessions
) -> None:
    """4.8.10"""
    model = a_priced_model()
    tokens = OperatorBudget("", BudgetUnit.TOKENS, Decimal(20))
    parlour, session_id = await a_titled_session(temporal, store, model, tokens)

    assert await title_of_session(parlour, session_id) == title_from(FIRST)
    assert model.requests == []
    (account,) = await store.operator_budgets(parlour.scope.tenant_id)
    assert (account.spent, account.reserved) == (0, 0)


async def test_a_title_whose_call_is_interrupted_is_charged_as_a_whole(
    temporal: TemporalClient, store: PostgresSessions, monkeypatch: pytest.MonkeyPatch
) -> None:
    """4.8.10: its provider may charge it, and the end of the execution releases nothing of it."""
    model = HeldModel()
    parlour, titles = setup_with_titles(temporal, store, model)
    await store.set_operator_budget(
        OperatorBudget(parlour.scope.tenant_id, BudgetUnit.TOKENS, Decimal(10_000))
    )
    await parlour.sessions.begin(parlour.scope, message_with(FIRST))
    await model.begun.wait()
    await titles.aclose()

    (held,) = await store.operator_budgets(parlour.scope.tenant_id)
    assert held.spent == 0
    assert held.reserved > MAX_OUTPUT_TOKENS
    assert await store.charge_lost_holds() == 0
    monkeypatch.setattr(session_charges, "LONGEST_HOLD_SECONDS", 0.0)
    await Reconciler(parlour.sessions).once()
    (charged,) = await store.operator_budgets(parlour.scope.tenant_id)
    assert (charged.spent, charged.reserved) == (held.reserved, 0)
