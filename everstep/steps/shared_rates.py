"""Waiting for a rate that all processes share, in fair turns of tenants and users."""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from time import monotonic
from typing import Final

from everstep.agent_domain.errors import EverstepError
from everstep.agent_domain.fairness.rate_draws import RateBuckets, RateDraw, RateGrant, portion_of
from everstep.agent_domain.fairness.shares import Claimant
from everstep.agent_domain.fairness.turns import Turns, equal_weights
from everstep.agent_domain.storage.rate_store import RateStore

log = logging.getLogger(__name__)

FRESH_SECONDS: Final = 2.0
"""What is left of a portion is forgotten after this time: other processes may have used the rate since."""
SHORTEST_PAUSE: Final = 0.005
LONGEST_PAUSE: Final = 2.0
"""Seconds between two draws while nothing is left; a changed limit applies after that."""
SETTLE_SECONDS: Final = 1.0
"""How long a debt may stay in the process before other processes read of it."""
OUTAGE_SECONDS: Final = 1.0


class LocalRates:
    """The buckets of a process without a store."""

    def __init__(self, clock: Callable[[], float] = monotonic) -> None:
        self._buckets = RateBuckets()
        self._clock = clock

    async def draw_rate(self, draw: RateDraw) -> RateGrant:
        """Draw from a bucket; see `RateStore`."""
        return self._buckets.draw(draw, self._clock())

    async def pause_rate(self, name: str, seconds: float) -> None:
        """Pause a bucket; see `RateStore`."""
        self._buckets.pause(name, seconds, self._clock())


class SharedRate:
    """One rate, as this process uses it.

    Args:
        store: Has the buckets.
        name: The name of the bucket.
        per_minute: The rate; it may be changed.
        weight_of: The weights of tenants.
        current_rate: Returns the rate as it is now, None for no limit; default: as given.
    """

    def __init__(
        self,
        store: RateStore,
        name: str,
        per_minute: float,
        weight_of: Callable[[Claimant], float] = equal_weights,
        *,
        current_rate: Callable[[], float | None] | None = None,
        clock: Callable[[], float] = monotonic,
        sleep: Callable[[float], Awaitable[object]] = asyncio.sleep,
    ) -> None:
        self.name = name
        self.per_minute = per_minute
        self._store = store
        self._current_rate = current_rate
        self._clock = clock
        self._sleep = sleep
        self._balance = 0.0
        self._drawn_at = clock()
        self._turns = Turns[asyncio.Future[None]](weight_of)
        self._task: asyncio.Task[None] | None = None

    @property
    def is_idle(self) -> bool:
        """Whether nothing waits for it, and it owes nothing."""
        return not self._turns and self._task is None and self._balance >= 0

    async def take(self, claimant: Claimant, amount: float) -> None:
        """Wait until an amount may be used."""
        self._forget_old_portion()
        if not self._turns and self._is_enough(amount):
            self._balance -= amount
            return
        waiter = asyncio.get_running_loop().create_future()
        self._turns.add(claimant, waiter, amount)
        self._begin_work()
        try:
            await waiter
        except asyncio.CancelledError:
            if waiter.done() and not waiter.cancelled() and waiter.exception() is None:
                self.correct(-amount)
            raise
        finally:
            self._turns.remove(claimant, waiter)

    def correct(self, amount: float) -> None:
        """Note that a call used more than it took; a negative amount, that it used less."""
        self._balance -= amount
        if self._balance < 0:
            self._begin_work()

    async def pause(self, seconds: float) -> None:
        """Use nothing for some seconds, in any process."""
        self._balance = min(self._balance, 0.0)
        await self._store.pause_rate(self.name, seconds)

    def _is_enough(self, amount: float) -> bool:
        return self._balance >= min(amount, portion_of(self.per_minute))

    def _forget_old_portion(self) -> None:
        if self._clock() - self._drawn_at > FRESH_SECONDS:
            self._balance = min(self._balance, 0.0)

    def _begin_work(self) -> None:
        if self._task is None:
            self._task = asyncio.create_task(self._work())

    async def _work(self) -> None:
        """Draw while calls wait, and settle the debt."""
        try:
            while self._turns or self._balance < 0:
                try:
                    await self._serve_next()
                except EverstepError as error:
                    log.warning("the rate %s is not known at the moment: %s", self.name, error)
                    await self._sleep(OUTAGE_SECONDS)
        except Exception as error:
            log.exception("the rate %s cannot be used", self.name)
            self._fail(error)
        finally:
            self._task = None

    async def _serve_next(self) -> None:
        if not self._turns:
            await self._sleep(SETTLE_SECONDS)
            if not self._turns and self._balance < 0:
                await self._draw(0.0)
            return
        claimant, waiter, amount = self._turns.first()
        is_limited = self._read_rate()
        if waiter.done():
            self._turns.remove(claimant, waiter)
        elif not is_limited or self._is_enough(amount):
            self._balance -= amount if is_limited else 0
            self._turns.serve(claimant, waiter)
            waiter.set_result(None)
        elif pause := await self._draw(amount - max(self._balance, 0.0)):
            await self._sleep(min(LONGEST_PAUSE, max(SHORTEST_PAUSE, pause)))

    def _read_rate(self) -> bool:
        """Take over the rate as it is now; return whether there is a limit."""
        if self._current_rate is None:
            return True
        rate = self._current_rate()
        if rate is not None:
            self.per_minute = rate
        return rate is not None

    async def _draw(self, need: float) -> float:
        """Draw; return the seconds to wait if nothing was left."""
        debt = max(0.0, -self._balance)
        grant = await self._store.draw_rate(RateDraw(self.name, self.per_minute, need, debt))
        self._balance += debt + grant.amount
        self._drawn_at = self._clock()
        return grant.wait

    def _fail(self, error: Exception) -> None:
        """End the waiting calls, which would wait forever."""
        while self._turns:
            claimant, waiter, _ = self._turns.first()
            self._turns.remove(claimant, waiter)
            if not waiter.done():
                waiter.set_exception(error)
