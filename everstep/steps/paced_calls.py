"""The requests and tokens per minute of a preset, which all processes share."""

import asyncio
from collections.abc import Callable
from typing import Final
from weakref import WeakKeyDictionary

from everstep.agent_domain.errors import RateLimited
from everstep.agent_domain.fairness.shares import Claimant
from everstep.agent_domain.fairness.turns import equal_weights
from everstep.agent_domain.storage.rate_store import RateStore
from everstep.steps.current_claimant import current_claimant
from everstep.steps.shared_rates import SharedRate

PATIENCE_SECONDS: Final = 600.0
"""How long a call waits for the limits of its preset. It ends well before the time limit of its activity."""

FALLBACK_PATIENCE_SECONDS: Final = 1.0
"""The same for a preset with fallbacks, which are asked then."""


class PacedCalls:
    """The calls of a preset with limits.

    Args:
        store: Has the rates.
        preset: The name of the preset.
        requests_per_minute: None: any number.
        tokens_per_minute: None: any number.
        weight_of: The weights of tenants.
    """

    def __init__(
        self,
        store: RateStore,
        preset: str,
        *,
        requests_per_minute: float | None,
        tokens_per_minute: float | None,
        weight_of: Callable[[Claimant], float] = equal_weights,
        patience: float = PATIENCE_SECONDS,
    ) -> None:
        self._store = store
        self._preset = preset
        self._limits = {"requests": requests_per_minute, "tokens": tokens_per_minute}
        self._weight_of = weight_of
        self._patience = patience
        # Calls wait in the event loop in which they are made.
        self._rates = WeakKeyDictionary[asyncio.AbstractEventLoop, dict[str, SharedRate]]()

    async def enter(self, tokens: int) -> None:
        """Wait until a call may be made; see `CallGate`."""
        claimant, amounts = current_claimant(), {"requests": 1, "tokens": max(1, tokens)}
        try:
            async with asyncio.timeout(self._patience):
                for unit, rate in self._own_rates().items():
                    await rate.take(claimant, amounts[unit])
        except TimeoutError:
            raise RateLimited(
                f"waited {self._patience:g} seconds for the limits of the preset '{self._preset}': "
                "more calls are made than its requests_per_minute and tokens_per_minute allow"
            ) from None

    def count(self, expected: int, used: int) -> None:
        """Note how many tokens a call has used; see `CallGate`."""
        if rate := self._own_rates().get("tokens"):
            rate.correct(used - max(1, expected))

    async def pause(self, seconds: float) -> None:
        """Let calls wait in all processes; see `CallGate`."""
        for rate in self._own_rates().values():
            await rate.pause(seconds)

    def _own_rates(self) -> dict[str, SharedRate]:
        loop = asyncio.get_running_loop()
        if loop not in self._rates:
            self._rates[loop] = {
                unit: SharedRate(self._store, f"preset/{self._preset}/{unit}", limit, self._weight_of)
                for unit, limit in self._limits.items()
                if limit is not None
            }
        return self._rates[loop]
