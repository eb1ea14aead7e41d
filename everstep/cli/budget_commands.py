"""The commands about budgets: of an execution, and those that the operator sets for tenants and users."""

from collections.abc import Iterable
from dataclasses import replace
from decimal import Decimal
from typing import Any

import click

from everstep.agent_domain.agents.budget_arguments import parse_budgets
from everstep.agent_domain.errors import InvalidInput
from everstep.agent_domain.ids import DEFAULT_TENANT, ExecutionRef
from everstep.agent_domain.loop.budget import BudgetScope, BudgetUnit
from everstep.agent_domain.storage.budget_ledger import BudgetAccount, OperatorBudget
from everstep.cli.command import command, print_line
from everstep.cli.executions import OPERATOR, await_worker, with_execution
from everstep.cli.json_output import json_data, json_option, print_json
from everstep.cli.printing import echo
from everstep.client.budget_raising import resume_after_raise
from everstep.client.execution import Execution
from everstep.http_api.schemas.execution_responses import BudgetResponse
from everstep.runtime.installation import Installation, open_installation
from everstep.runtime.settings import Settings


def _amounts(function: Any) -> Any:
    """Add the options for an amount in each unit."""
    for option in (
        click.option("--steps", type=int, help="The amount in steps."),
        click.option("--tokens", type=int, help="The amount in tokens, of input and output."),
        click.option("--usd", type=float, help="The amount in US dollars."),
    ):
        function = option(function)
    return function


@click.command()
@click.argument("execution_id")
@_amounts
@click.option(
    "--scope",
    type=click.Choice([str(scope) for scope in BudgetScope]),
    help="Whose budget; default: the one that the execution waits for, or else the narrowest.",
)
@json_option
@click.pass_obj
@command
async def budget(
    settings: Settings,
    execution_id: str,
    *,
    usd: float | None,
    tokens: int | None,
    steps: int | None,
    scope: str | None,
    as_json: bool,
) -> None:
    """Show the budgets of an execution, or raise one of them to a new total."""
    is_raise = any(amount is not None for amount in (usd, tokens, steps))
    if scope is not None and not is_raise:
        raise click.UsageError("--scope requires a new total: --usd, --tokens or --steps")

    async def act(_installation: Installation, execution: Execution) -> None:
        if is_raise:
            account = await await_worker(
                execution.raise_budget(usd=usd, tokens=tokens, steps=steps, scope=scope, by=OPERATOR)
            )
            print_budgets([account], as_json=as_json, done="raised: ")
            return
        accounts = await execution.budgets()
        print_budgets(accounts, as_json=as_json)
        if not accounts:
            echo("The execution has no budget.", err=True)

    await with_execution(settings, execution_id, act)


@click.group()
def budgets() -> None:
    """Manage the budgets of tenants and users, which apply to all agents."""


_tenant = click.option("--tenant", default=DEFAULT_TENANT, show_default=True, help="The tenant.")
_user = click.option("--user", help="A user of the tenant; default: the whole tenant.")


@budgets.command("set")
@_tenant
@_user
@_amounts
@click.option(
    "--on-exhausted",
    type=click.Choice(["stop", "ask", "degrade"]),
    default="stop",
    show_default=True,
    help="stop ends executions, ask pauses them until the budget is raised, degrade asks a cheaper preset.",
)
@click.option("--degrade-to", help="The cheaper preset or model, for degrade.")
@click.pass_obj
@command
async def set_budgets(
    settings: Settings,
    *,
    tenant: str,
    user: str | None,
    usd: float | None,
    tokens: int | None,
    steps: int | None,
    on_exhausted: str,
    degrade_to: str | None,
) -> None:
    """Set a budget; what was spent of it stays.

    Executions that wait for it go on if it is larger now.
    """
    given = {
        "usd": usd,
        "tokens": tokens,
        "steps": steps,
        "on_exhausted": on_exhausted,
        "degrade_to": degrade_to,
    }
    parsed = parse_budgets(given, "the budget")
    if not tenant.strip() or (user is not None and not user.strip()):
        raise InvalidInput("the names of tenants and users are not blank")
    async with open_installation(settings) as installation:
        for each in parsed:
            if each.degrade_to is not None:
                installation.client.check_model(each.degrade_to)
            wanted = OperatorBudget(tenant, each.unit, each.limit, user, each.on_exhausted, each.degrade_to)
            changed = await installation.client.store.set_operator_budget(wanted)
            print_line(f"set: {budget_line(changed.account)}")
            await _resume(installation, changed.resumed)


@budgets.command("list")
@_tenant
@json_option
@click.pass_obj
@command
async def show(settings: Settings, tenant: str, as_json: bool) -> None:
    """List the budgets of a tenant and its users, with what was spent of them."""
    async with open_installation(settings) as installation:
        accounts = await installation.client.store.operator_budgets(tenant)
    print_budgets(accounts, as_json=as_json)
    if not accounts:
        echo(f"The tenant '{tenant}' has no budgets; `everstep budgets set` sets one.", err=True)


@budgets.command("remove")
@_tenant
@_user
@click.option("--unit", type=click.Choice([str(unit) for unit in BudgetUnit]), required=True)
@click.pass_obj
@command
async def remove(settings: Settings, *, tenant: str, user: str | None, unit: str) -> None:
    """Remove a budget, with its record of what was spent.

    Executions that wait for it go on.
    """
    account = OperatorBudget(tenant, BudgetUnit(unit), Decimal(0), user).account
    async with open_installation(settings) as installation:
        removed = await installation.client.store.remove_operator_budget(tenant, account.id)
        if removed is None:
            whose = f"the user '{user}'" if user else f"the tenant '{tenant}'"
            raise InvalidInput(f"{whose} has no budget in {unit}; `everstep budgets list` lists them")
        print_line(f"removed: {budget_line(removed.account)}")
        await _resume(installation, removed.resumed)


async def _resume(installation: Installation, resumed: tuple[ExecutionRef, ...]) -> None:
    if resumed:
        client = replace(installation.client, tenant_id=resumed[0].tenant_id)
        first = client.execution(resumed[0].execution_id, resumed[0].session_id)
        await await_worker(resume_after_raise(first, resumed))


def print_budgets(accounts: Iterable[BudgetAccount], *, as_json: bool, done: str = "") -> None:
    """Print budgets, one per line.

    Args:
        accounts: The budgets.
        as_json: Whether to print each as JSON, as the HTTP API has it, with its subject.
        done: What happened to them, before each line for people.
    """
    for account in accounts:
        if as_json:
            print_json({**json_data(BudgetResponse.of(account)), "subject": account.subject})
        else:
            print_line(f"{done}{budget_line(account)}")


def budget_line(account: BudgetAccount) -> str:
    """A budget for people, in one line."""
    unit = account.unit
    whose = f"{account.scope} {account.subject}".rstrip() if account.scope != "execution" else "execution"
    reserved = f", {unit.text(account.reserved)} reserved" if account.reserved else ""
    then = f"then {account.on_exhausted}" + (f" ({account.degrade_to})" if account.degrade_to else "")
    by = "set by the operator" if account.is_operators else f"of the agent {account.agent}"
    return f"{whose}: {unit.text(account.spent)} of {unit.text(account.limit)} spent{reserved}; {then}; {by}"
