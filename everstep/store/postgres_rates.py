"""The rates that all processes share, in PostgreSQL."""

from dataclasses import fields

from everstep.agent_domain.fairness.rate_draws import RateDraw, RateGrant
from everstep.store import rate_statements
from everstep.store.postgres_writing import PostgresWriter

_DERIVED = ("per_second", "portion", "capacity", "floor")


class PostgresRates(PostgresWriter):
    """The buckets of rates; see `RateStore`."""

    async def draw_rate(self, draw: RateDraw) -> RateGrant:
        """Draw from the bucket of a rate; one that is not known is full."""
        values = {name: getattr(draw, name) for name in (*(each.name for each in fields(draw)), *_DERIVED)}
        async with self._transaction() as connection:
            _, drawn = await connection.together(
                (rate_statements.ADD_RATE, values), (rate_statements.DRAW_RATE, values), last=True
            )
        row = drawn.one()
        paused = float(row.paused or 0)
        if row.granted or not draw.need:
            return RateGrant(row.granted, 0.0 if row.granted else paused)
        return RateGrant(0.0, max(paused, (draw.floor - row.level) / draw.per_second))

    async def pause_rate(self, name: str, seconds: float) -> None:
        """Draw nothing from a bucket for some seconds, in any process; a longer pause stays."""
        async with self._transaction() as connection:
            await connection.together(
                (rate_statements.PAUSE_RATE, {"name": name, "seconds": seconds}), last=True
            )
