"""Limits of attempts that fail: of one address, and of all together.

An attempt takes from two allowances that refill over time, and gives back what it took if it succeeds. So
people who sign in do not slow each other down, and no caller can flood another server through this process.
"""

from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass, field
from ipaddress import IPv6Address, ip_address
from math import ceil
from time import monotonic
from typing import Final

from everstep.http_api.problems import too_many_attempts

PER_ADDRESS: Final = 10
"""Attempts of an address that may fail at once; one more each `SECONDS / PER_ADDRESS`."""
TOGETHER: Final = 120
"""Likewise, of all addresses."""
AT_ONCE: Final = 16
"""Attempts at a time."""
SECONDS: Final = 60.0
MAX_ADDRESSES: Final = 10_000


@dataclass(slots=True)
class _Allowance:
    most: int
    used: float = 0.0
    at: float = 0.0

    def refill(self, now: float) -> None:
        self.used = max(0.0, self.used - (now - self.at) * self.most / SECONDS)
        self.at = now

    @property
    def wait_seconds(self) -> float:
        """Seconds until one more attempt is allowed."""
        return max(0.0, (self.used + 1 - self.most) * SECONDS / self.most)


@dataclass(slots=True)
class AttemptLimit:
    """The attempts of the callers of one process."""

    clock: Callable[[], float] = monotonic
    running: int = 0
    _together: _Allowance = field(default_factory=lambda: _Allowance(TOGETHER))
    _addresses: dict[str, _Allowance] = field(default_factory=dict[str, _Allowance])

    @property
    def address_count(self) -> int:
        """How many addresses it remembers."""
        return len(self._addresses)

    @contextmanager
    def attempt(self, address: str) -> Generator[None]:
        """Count an attempt of this address, unless the block ends without an exception.

        Raises:
            Refusal: There are too many; it says when to try again.
        """
        allowances = self._together, self._allowance(_network(address))
        wait = max(each.wait_seconds for each in allowances)
        if self.running >= AT_ONCE:
            wait = max(wait, 1.0)
        if wait:
            raise too_many_attempts(ceil(wait))
        for each in allowances:
            each.used += 1
        self.running += 1
        try:
            yield
            for each in allowances:
                each.used = max(0.0, each.used - 1)
        finally:
            self.running -= 1

    def _allowance(self, network: str) -> _Allowance:
        now = self.clock()
        self._together.refill(now)
        if network not in self._addresses and len(self._addresses) >= MAX_ADDRESSES:
            self._forget(now)
        found = self._addresses.setdefault(network, _Allowance(PER_ADDRESS, at=now))
        found.refill(now)
        return found

    def _forget(self, now: float) -> None:
        for network, each in [*self._addresses.items()]:
            each.refill(now)
            if not each.used:
                del self._addresses[network]
        # `TOGETHER` fail in a minute at most, so only some hundreds are left.


def _network(address: str) -> str:
    """The address, or of IPv6 the network that one customer has."""
    try:
        parsed = ip_address(address.partition("%")[0])
    except ValueError:
        return address
    if not isinstance(parsed, IPv6Address):
        return str(parsed)
    if parsed.ipv4_mapped is not None:
        return str(parsed.ipv4_mapped)
    return parsed.exploded[:19]
