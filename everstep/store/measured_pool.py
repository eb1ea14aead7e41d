"""The pool of connections to PostgreSQL, with metrics of its connections and of waits for one."""

from collections.abc import Mapping
from time import perf_counter
from typing import Any
from weakref import WeakSet

from sqlalchemy.ext.asyncio import AsyncEngine
from sqlalchemy.pool import AsyncAdaptedQueuePool, ConnectionPoolEntry

from everstep.telemetry import metrics


class MeasuredPool(AsyncAdaptedQueuePool):
    """A pool that measures a checkout only if no connection is free, so that others cost nothing."""

    # SQLAlchemy names its logger after the module, and "Pool recreating" is no line of ours.
    _sqla_logger_namespace = "sqlalchemy.pool.MeasuredPool"

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        _pools.add(self)

    @property
    def is_exhausted(self) -> bool:
        """Whether a checkout has to wait for a connection to be returned."""
        return not self.checkedin() and self.overflow() >= self._max_overflow

    def _do_get(self) -> ConnectionPoolEntry:
        if not self.is_exhausted:
            return super()._do_get()
        began = perf_counter()
        try:
            return super()._do_get()
        finally:
            metrics.POOL_WAITS.observe(perf_counter() - began)


def is_exhausted(engine: AsyncEngine) -> bool:
    """Return whether all connections of an engine's pool are in use."""
    return isinstance(engine.pool, MeasuredPool) and engine.pool.is_exhausted


_pools = WeakSet[MeasuredPool]()


def _connections() -> Mapping[tuple[str, ...], float]:
    pools = [*_pools]
    used, idle = sum(each.checkedout() for each in pools), sum(each.checkedin() for each in pools)
    return {("used",): used, ("idle",): idle}


metrics.POOL_CONNECTIONS.add_source(_connections)
