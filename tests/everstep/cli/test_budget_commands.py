"""The commands about budgets."""

from decimal import Decimal

import pytest

from everstep.agent_domain.loop.budget import Budget, BudgetUnit, OnExhausted
from tests.acceptance.harness import until_pause
from tests.everstep.cli.desk import CommandLine

pytestmark = pytest.mark.asyncio(loop_scope="session")


async def test_a_budget_is_shown_and_raised(desk: CommandLine) -> None:
    """4.8.6: the operator of the machine may raise it; the execution goes on."""
    asking = Budget(BudgetUnit.STEPS, Decimal(0), on_exhausted=OnExhausted.ASK)
    execution = await desk.client.start("clerk", "hello", budgets=(asking,))
    name = str(execution.id)
    await until_pause(execution)

    shown = await desk.output_of("show", name)
    assert (
        "budget     the execution's 0 steps: 0 steps spent, the next model call needs up to 1 step\n" in shown
    )
    assert f"           everstep budget {name} --steps TOTAL\n" in shown
    of_the_agent = "then ask; of the agent clerk\n"
    assert await desk.output_of("budget", name) == f"execution: 0 steps of 0 steps spent; {of_the_agent}"
    for arguments, message in (
        (("--steps", "-1"), "steps is -1; pass a whole number of steps"),
        (("--usd", "5"), "has no budget in usd"),
        (("--steps", "5", "--tokens", "5"), "pass one new total"),
    ):
        assert message in await desk.error_of("budget", name, *arguments)
    usage = await desk.usage_error_of("budget", name, "--scope", "session")
    assert usage.startswith("--scope requires a new total")

    raised = await desk.output_of("budget", name, "--steps", "9")
    assert raised == f"raised: execution: 0 steps of 9 steps spent; {of_the_agent}"
    await execution.result()
    assert "1 step of 9 steps spent" in await desk.output_of("budget", name)
    assert "raised to  9 steps by local (approve)" in await desk.output_of("show", name)


async def test_the_budgets_of_a_tenant_are_set_listed_and_removed(desk: CommandLine) -> None:
    """4.8.8"""
    tenant = ("--tenant", "acme")
    said = await desk.output_of("budgets", "set", *tenant, "--usd", "2.50", "--steps", "100")
    assert said == (
        "set: tenant: 0 USD of 2.5 USD spent; then stop; set by the operator\n"
        "set: tenant: 0 steps of 100 steps spent; then stop; set by the operator\n"
    )
    await desk.output_of(
        *("budgets", "set", *tenant, "--user", "ann", "--tokens", "1000", "--on-exhausted", "ask")
    )
    listed = (await desk.output_of("budgets", "list", *tenant)).splitlines()
    assert [line.split(";")[0] for line in listed] == [
        "user ann: 0 tokens of 1000 tokens spent",
        "tenant: 0 steps of 100 steps spent",
        "tenant: 0 USD of 2.5 USD spent",
    ]
    for arguments, message in (
        ((), "has no amount; pass usd, tokens or steps"),
        (("--usd", "1", "--on-exhausted", "degrade"), "needs --degrade-to"),
        (("--usd", "nan"), "usd is nan; pass dollars"),
        (("--usd", "1", "--user", " "), "are not blank"),
    ):
        assert message in await desk.error_of("budgets", "set", *tenant, *arguments)

    await desk.output_of("budgets", "remove", *tenant, "--unit", "usd")
    missing = await desk.error_of("budgets", "remove", *tenant, "--unit", "usd")
    assert "the tenant 'acme' has no budget in usd" in missing
    assert len((await desk.output_of("budgets", "list", *tenant)).splitlines()) == 2
