"""The limits of tenants, and the admission of their executions, in the memory store."""

from collections import Counter
from collections.abc import Collection, Sequence
from uuid import UUID

from everstep.agent_domain.fairness.limit_waits import LimitedUser, LimitUse, RateLevel
from everstep.agent_domain.fairness.rate_draws import RateDraw, RateGrant
from everstep.agent_domain.fairness.tenant_limits import LimitBook, TenantLimits
from everstep.agent_domain.loop.run_context import RunContext
from everstep.agent_domain.loop.status import ExecutionStatus
from everstep.agent_domain.storage.sessions import ExecutionLaunch
from everstep.agent_domain.storage.tenant_store import ADMITTED_AT_ONCE
from everstep.store.memory_base import MemoryBase
from everstep.store.memory_records import MemoryExecution, MemoryPlace


class MemoryTenants(MemoryBase):
    """The limits of tenants, and the admission of their executions; see `TenantStore`."""

    async def tenant_limits(self) -> Sequence[TenantLimits]:
        """Return the limits of all tenants and users."""
        return tuple(self._limits[name] for name in sorted(self._limits))

    async def set_limits(self, limits: TenantLimits) -> None:
        """Store limits in place of earlier ones."""
        self._limits[limits.tenant_id, limits.user_id or ""] = limits
        if limits.max_running is None:
            return
        for execution in self._executions.values():
            is_concerned = limits.tenant_id in {"*", execution.ref.tenant_id}
            if is_concerned and execution.parent_execution_id is None and not execution.status.is_terminal:
                place = MemoryPlace(execution, True, execution.status is ExecutionStatus.PAUSED)
                self._places.setdefault(execution.ref.execution_id, place)

    async def remove_limits(self, tenant_id: str, user_id: str | None = None) -> bool:
        """Remove limits; return whether there were any."""
        return self._limits.pop((tenant_id, user_id or ""), None) is not None

    async def limit_use(self, tenants: Collection[str], rates: Collection[str]) -> LimitUse:
        """Return the model calls that are made for tenants, and what is left of rates."""
        calls = Counter[LimitedUser](
            (each.ref.tenant_id, each.user_id)
            for each in self._executions.values()
            if each.ref.tenant_id in tenants and each.status is ExecutionStatus.RUNNING and _is_asking(each)
        )
        now, buckets = self._now().timestamp(), self._rates.find(rates)
        levels = {
            name: RateLevel(each.level, max(0.0, now - each.filled_at)) for name, each in buckets.items()
        }
        return LimitUse(calls, levels)

    async def has_executions(self, tenant_id: str) -> bool:
        """Return whether a tenant has stored executions."""
        return any(each.ref.tenant_id == tenant_id for each in self._executions.values())

    async def admit(self, tenant_id: str, *, is_repair: bool = False) -> Sequence[ExecutionLaunch]:
        """Give the free places of a tenant to executions that wait; see `TenantStore`."""
        del is_repair
        book, held = LimitBook(self._limits.values()), self._held(tenant_id)
        tenant = book.tenant(tenant_id)
        cap = None if tenant is None else tenant.max_running
        free = ADMITTED_AT_ONCE if cap is None else max(0, min(ADMITTED_AT_ONCE, cap - held.total()))
        admitted = list[ExecutionLaunch]()
        for number, place in self._queue(tenant_id):
            user = book.user(tenant_id, place.user)
            if len(admitted) == free:
                break
            if user is None or user.max_running is None or number <= user.max_running:
                place.is_admitted = True
                admitted.append(_launch(place.execution))
        return admitted

    async def draw_rate(self, draw: RateDraw) -> RateGrant:
        """Draw from the bucket of a rate; one that is not known is full."""
        return self._rates.draw(draw, self._now().timestamp())

    async def pause_rate(self, name: str, seconds: float) -> None:
        """Draw nothing from a bucket for some seconds; a longer pause stays."""
        self._rates.pause(name, seconds, self._now().timestamp())

    async def find_pending(self, execution_ids: Collection[UUID]) -> Collection[UUID]:
        """Return those of these executions that have not begun; see `TenantStore`."""
        found = map(self._executions.get, execution_ids)
        return [each.ref.execution_id for each in found if each and each.status is ExecutionStatus.PENDING]

    async def waiting_tenants(self) -> Sequence[str]:
        """Return the tenants with executions that wait for a place."""
        return sorted(
            {each.execution.ref.tenant_id for each in self._places.values() if not each.is_admitted}
        )

    def _held(self, tenant_id: str) -> Counter[str]:
        """The places of each user."""
        held = (each for each in self._places.values() if each.is_admitted and not each.is_paused)
        return Counter(each.user for each in held if each.execution.ref.tenant_id == tenant_id)

    def _queue(self, tenant_id: str) -> list[tuple[int, MemoryPlace]]:
        """The executions that wait, in the order of admission, with their numbers among those of the user."""
        numbers, queue = self._held(tenant_id), list[tuple[int, MemoryPlace]]()
        for place in self._places.values():
            if place.execution.ref.tenant_id == tenant_id and not place.is_admitted:
                numbers[place.user] += 1
                queue.append((numbers[place.user], place))
        return sorted(queue, key=lambda each: each[0])

    def _queue_for_place(self, execution: MemoryExecution) -> None:
        """Let an execution wait for its admission, if its tenant has a limit."""
        tenants = {execution.ref.tenant_id, "*"}
        is_limited = any(
            each.max_running is not None for each in self._limits.values() if each.tenant_id in tenants
        )
        if is_limited and execution.parent_execution_id is None:
            self._places[execution.ref.execution_id] = MemoryPlace(execution)

    def _change_place(self, execution: MemoryExecution) -> bool:
        """Adapt the place of an execution to its status; return whether that frees a place."""
        identity, status = execution.ref.execution_id, execution.status
        if status.is_terminal:
            return self._places.pop(identity, None) is not None
        place = self._places.get(identity)
        if place is None or not place.is_admitted:
            return False
        place.is_paused = status is ExecutionStatus.PAUSED
        return place.is_paused

    def _queue_position(self, execution: MemoryExecution) -> int | None:
        """The position of an execution in the queue of its tenant, from 1."""
        place = self._places.get(execution.ref.execution_id)
        if place is None or place.is_admitted:
            return None
        waiting = [each for _, each in self._queue(execution.ref.tenant_id)]
        return waiting.index(place) + 1


def _launch(execution: MemoryExecution) -> ExecutionLaunch:
    run = RunContext.from_request(execution.ref, execution.user_id, execution.request)
    has_commands = any(not each.is_delivered for each in execution.commands.values())
    return ExecutionLaunch(execution.ref, execution.plan, None, has_commands, execution.clocks, run)


def _is_asking(execution: MemoryExecution) -> bool:
    """Whether the execution's model is asked now."""
    step = execution.steps[max(execution.steps)] if execution.steps else None
    is_waiting = step is not None and step.wait is not None and step.wait.attempt == step.attempt
    return step is not None and step.facts is None and not is_waiting
