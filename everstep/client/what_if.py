"""Past executions of a tenant or a user under another policy, read in pages; no model is asked."""

import asyncio
from collections.abc import AsyncGenerator
from dataclasses import dataclass, field
from typing import Final

from everstep.agent_domain.checks import require_integer_at_least
from everstep.agent_domain.ids import Scope
from everstep.agent_domain.storage.recorded_executions import RecordedExecutions, RecordFilter
from everstep.agent_domain.what_if.policy_change import PolicyChange
from everstep.agent_domain.what_if.repeating import WhatIfResult, compare
from everstep.agent_domain.what_if.report import WhatIfReport

PAGE: Final = 100


@dataclass
class WhatIf:
    """Repeats the decisions of past executions, newest first.

    Iterate over `comparisons`; `report` has the sums of those that have been yielded.

    Raises:
        InvalidInput: A limit or a criterion cannot be used.
    """

    store: RecordedExecutions
    scope: Scope
    change: PolicyChange = field(default_factory=PolicyChange)
    wanted: RecordFilter = field(default_factory=RecordFilter)
    limit: int | None = None
    """The most executions to examine; None for all."""
    cursor: str | None = None
    """Where to begin: the cursor that an earlier part ended with."""
    report: WhatIfReport = field(default_factory=WhatIfReport)
    examined_in_page: int = field(default=0, init=False)
    """How many executions after the cursor were examined."""

    def __post_init__(self) -> None:
        if self.limit is not None:
            require_integer_at_least("limit", self.limit, 1)
        self.change.require_known_criteria()

    async def count(self) -> int:
        """How many executions there are to examine."""
        found = await self.store.count_records(self.scope, self.wanted)
        return found if self.limit is None else min(found, self.limit)

    async def comparisons(self) -> AsyncGenerator[WhatIfResult]:
        """Compare the executions one after the other."""
        left = self.limit
        while left is None or left > 0:
            page = await self.store.load_records(
                self.scope,
                self.wanted,
                cursor=self.cursor,
                limit=PAGE if left is None else min(PAGE, left),
                with_models=bool(self.change.prices),
            )
            for record in page.rows:
                comparison = compare(record, self.change)
                self.report.add(record, comparison)
                self.examined_in_page += 1
                yield comparison
                # Other tasks, and a cancellation, come between two executions.
                await asyncio.sleep(0)
            left = None if left is None else left - len(page.rows)
            self.cursor, self.examined_in_page = page.cursor, 0
            if page.cursor is None:
                return

    async def next_cursor(self) -> str | None:
        """The cursor after the executions that were examined, also within a page; None at the end."""
        if not self.examined_in_page:
            return self.cursor
        page = await self.store.load_records(
            self.scope, self.wanted, cursor=self.cursor, limit=self.examined_in_page
        )
        return page.cursor

    async def run(self) -> WhatIfReport:
        """Compare all of them; return the sums."""
        async for _ in self.comparisons():
            pass
        return self.report
