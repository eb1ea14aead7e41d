"""Usage totals of executions, computed by PostgreSQL."""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeVar

from sqlalchemy import (
    BigInteger,
    ColumnElement,
    Integer,
    Row,
    Select,
    case,
    cast,
    exists,
    func,
    literal,
    literal_column,
    select,
    tuple_,
)
from sqlalchemy.ext.asyncio import AsyncEngine

from everstep.agent_domain.ids import Scope
from everstep.agent_domain.loop.status import ExecutionStatus
from everstep.agent_domain.loop.usage import NO_COST
from everstep.agent_domain.storage.usage_report import (
    LatencyAccount,
    LatencyReport,
    Percentiles,
    TimeRange,
    UsageAccount,
    UsageGroup,
    merge_accounts,
    total_cost,
)
from everstep.store.cost_tables import model_usage, session_usage
from everstep.store.errors import error_translation
from everstep.store.replica import Replica
from everstep.store.tables import executions, requests, sessions, steps, tool_calls

_NAMES: Mapping[UsageGroup, ColumnElement[Any]] = {
    UsageGroup.AGENT: executions.c.agent_type,
    UsageGroup.USER: executions.c.user_id,
    UsageGroup.DAY: func.to_char(func.timezone("UTC", executions.c.created_at), "YYYY-MM-DD"),
    UsageGroup.MODEL: func.nullif(model_usage.c.model, ""),
    UsageGroup.TENANT: executions.c.tenant_id,
}


def _sum(counted: ColumnElement[Any]) -> ColumnElement[int]:
    return cast(func.coalesce(func.sum(counted), 0), BigInteger)


def _tokens(counter: str) -> ColumnElement[int]:
    return _sum(cast(executions.c.token_breakdown[counter].as_string(), BigInteger))


def _costs(own: Any) -> tuple[ColumnElement[Any], ColumnElement[Any]]:
    """Return the sum of the costs, null if one of them is, and that of the known ones."""
    is_known = func.count() == func.count(own.cost_usd)
    return case((is_known, func.coalesce(func.sum(own.cost_usd), 0))), func.coalesce(
        func.sum(own.known_cost_usd), 0
    )


_EXECUTIONS = (
    func.count(),
    func.count().filter(executions.c.status == str(ExecutionStatus.FAILED)),
)
_COUNTED = (
    *_EXECUTIONS,
    cast(func.sum(executions.c.step_count), Integer),
    *map(_tokens, ("input", "output", "cached", "reasoning", "total")),
    *_costs(executions.c),
)
_USED = model_usage.c
_CACHED = _USED.cache_write + _USED.cache_read
_COUNTED_BY_MODEL = (
    *_EXECUTIONS,
    cast(literal(None), Integer),
    *map(_sum, (_USED.input, _USED.output, _CACHED, _USED.reasoning)),
    _sum(_USED.input + _USED.output + _CACHED + _USED.reasoning),
    *_costs(_USED),
)


_OWN = session_usage.c
_OWN_NAMES: Mapping[UsageGroup, ColumnElement[Any]] = {
    UsageGroup.AGENT: _OWN.agent,
    UsageGroup.USER: sessions.c.user_id,
    UsageGroup.DAY: func.to_char(func.timezone("UTC", _OWN.created_at), "YYYY-MM-DD"),
    UsageGroup.MODEL: func.nullif(_OWN.model, ""),
    UsageGroup.TENANT: _OWN.tenant_id,
}


T = TypeVar("T")


class PostgresAccounts:
    """Computes usage reports from the tables of executions, and of the usage of models and sessions."""

    def __init__(self, engine: AsyncEngine, replica: Replica | None = None) -> None:
        self.engine = engine
        self.replica = replica

    async def accounts(
        self,
        scope: Scope,
        time_range: TimeRange,
        group: UsageGroup = UsageGroup.AGENT,
        *,
        every_tenant: bool = False,
    ) -> Sequence[UsageAccount]:
        """Return the usage of each group within a time range, of the scope or of all tenants."""
        whose = None if every_tenant else scope
        if group is not UsageGroup.MODEL:
            return await self._fetch(whose, time_range, group, _grouped(whose, time_range, group))
        by_model = _grouped(whose, time_range, group).join_from(
            executions, model_usage, model_usage.c.execution_id == executions.c.id
        )
        agents = UsageGroup.AGENT
        by_agent = await self._fetch(whose, time_range, agents, _grouped(whose, time_range, agents))
        return _with_remainder(await self._fetch(whose, time_range, group, by_model), by_agent)

    async def latencies(
        self,
        scope: Scope,
        time_range: TimeRange,
        group: UsageGroup = UsageGroup.AGENT,
        *,
        every_tenant: bool = False,
    ) -> LatencyReport:
        """Return the latency of the steps within a time range, in all and of each group."""
        wanted = _latencies(None if every_tenant else scope, time_range, group)

        async def ask(engine: AsyncEngine) -> Sequence[Row[Any]]:
            with error_translation(engine.url):
                async with engine.connect() as connection:
                    return (await connection.execute(wanted)).all()

        found = await self._read(ask)
        total = next((_latency(row) for row in found if row.is_total), LatencyAccount(None, 0, None, None))
        return LatencyReport(total, [_latency(row) for row in found if not row.is_total])

    async def _fetch(
        self, scope: Scope | None, time_range: TimeRange, group: UsageGroup, wanted: Select[Any]
    ) -> list[UsageAccount]:
        """Return the usage of executions, and of the sessions themselves."""

        async def ask(engine: AsyncEngine) -> list[UsageAccount]:
            with error_translation(engine.url):
                async with engine.connect() as connection:
                    accounts = [UsageAccount(*row) for row in await connection.execute(wanted)]
                    own = await connection.execute(_own_usage(scope, time_range, group))
                    return merge_accounts([*accounts, *(UsageAccount(*row) for row in own)])

        return await self._read(ask)

    async def _read(self, ask: Callable[[AsyncEngine], Awaitable[T]]) -> T:
        return await (ask(self.engine) if self.replica is None else self.replica.read(ask))


_FRACTIONS: ColumnElement[Any] = literal_column("ARRAY[0.5, 0.95]")
_STEP_SECONDS = func.extract("epoch", steps.c.completed_at - steps.c.started_at)
_MODEL = func.nullif(steps.c.response["model"].as_string(), "")
_WAITED = (
    select(1)
    .select_from(requests.join(tool_calls))
    .where(requests.c.execution_id == steps.c.execution_id, tool_calls.c.step == steps.c.number)
)


def _latencies(scope: Scope | None, time_range: TimeRange, group: UsageGroup) -> Select[Any]:
    """Select the percentiles of steps that did not wait for people, in all and of each group."""
    name = _MODEL if group is UsageGroup.MODEL else _NAMES[group]
    named = (
        _of_executions(select(name.label("name")), scope, time_range)
        .add_columns(steps.c.first_text_seconds, _STEP_SECONDS.label("step_seconds"))
        .join_from(executions, steps, steps.c.execution_id == executions.c.id)
        .where(steps.c.completed_at.is_not(None), ~exists(_WAITED))
        .subquery("timed")
    )
    percentiles = (
        func.percentile_cont(_FRACTIONS).within_group(each)
        for each in (named.c.first_text_seconds, named.c.step_seconds)
    )
    is_total = func.grouping(named.c.name) == 1
    columns = (named.c.name, is_total.label("is_total"), func.count().label("steps"))
    wanted = select(*columns, *(each.label(f"of_{at}") for at, each in enumerate(percentiles)))
    return wanted.group_by(func.grouping_sets(tuple_(named.c.name), tuple_())).order_by(named.c.name)


def _latency(row: Row[Any]) -> LatencyAccount:
    def percentiles(values: Sequence[Any] | None) -> Percentiles | None:
        return None if values is None else Percentiles(*map(float, values))

    return LatencyAccount(row.name, row.steps, percentiles(row.of_0), percentiles(row.of_1))


def _own_usage(scope: Scope | None, time_range: TimeRange, group: UsageGroup) -> Select[Any]:
    """Select what sessions used apart from their executions."""
    name = _OWN_NAMES[group]
    cached = _OWN.cache_write + _OWN.cache_read
    counted = (
        *(literal(0), literal(0), cast(literal(None if group is UsageGroup.MODEL else 0), Integer)),
        *map(_sum, (_OWN.input, _OWN.output, cached, _OWN.reasoning)),
        _sum(_OWN.input + _OWN.output + cached + _OWN.reasoning),
        *_costs(_OWN),
    )
    wanted = select(name, *counted).join_from(session_usage, sessions, sessions.c.id == _OWN.session_id)
    if scope is not None:
        wanted = wanted.where(_OWN.tenant_id == scope.tenant_id)
    if scope is not None and scope.user_id is not None:
        wanted = wanted.where(sessions.c.user_id == scope.user_id)
    within = wanted.where(_OWN.created_at >= time_range.since, _OWN.created_at < time_range.until)
    return within.group_by(name)


def _grouped(scope: Scope | None, time_range: TimeRange, group: UsageGroup) -> Select[Any]:
    name = _NAMES[group]
    counted = _COUNTED_BY_MODEL if group is UsageGroup.MODEL else _COUNTED
    return _of_executions(select(name, *counted), scope, time_range).group_by(name)


def _of_executions(wanted: Select[Any], scope: Scope | None, time_range: TimeRange) -> Select[Any]:
    """Filter by the executions of a scope, or of all tenants, that began in a time range."""
    created = executions.c.created_at
    if scope is not None:
        wanted = wanted.where(executions.c.tenant_id == scope.tenant_id)
    if scope is not None and scope.user_id is not None:
        wanted = wanted.where(executions.c.user_id == scope.user_id)
    return wanted.where(created >= time_range.since, created < time_range.until)


def _with_remainder(models: list[UsageAccount], agents: list[UsageAccount]) -> list[UsageAccount]:
    """Add what belongs to no known model, such as the usage of older releases, to the row without a name."""
    named = [account for account in models if account.name is not None]
    others = next((account for account in models if account.name is None), None)
    counters = ("input", "output", "cached", "reasoning", "total", "known_cost_usd")
    missing = {
        key: max(0, sum(getattr(each, key) for each in agents) - sum(getattr(each, key) for each in models))
        for key in counters
    }
    if not any(missing.values()):
        return models
    rest = others or UsageAccount(None, 0, 0, None, 0, 0, 0, 0, 0, total_cost(agents), NO_COST)
    return [*named, replace(rest, **{key: getattr(rest, key) + missing[key] for key in counters})]
