"""The sums of a what-if over many executions, in constant space."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from everstep.agent_domain.loop.usage import usd_number
from everstep.agent_domain.storage.recorded_executions import RecordedExecution
from everstep.agent_domain.what_if.family import Families
from everstep.agent_domain.what_if.repeating import ChangedEnd, WhatIfResult
from everstep.agent_domain.what_if.spending import NO_SPENDING, Spending

MOST_REASONS: Final = 20
"""So many different reasons are counted by themselves."""

OTHER_REASONS: Final = "for other reasons"


@dataclass
class WhatIfReport:
    """Counts executions by how they end under another policy, and sums up what that saves."""

    examined: int = 0
    decisions: int = 0
    """How many recorded decisions were repeated."""
    endings: Counter[ChangedEnd] = field(default_factory=Counter[ChangedEnd])
    not_ended: int = 0
    """The executions that have not ended, which are examined up to their last recorded step."""
    saved: Spending = NO_SPENDING
    reasons: Counter[str] = field(default_factory=Counter[str])
    """Why executions are undetermined."""
    families: Families = field(default_factory=Families)

    def add(self, record: RecordedExecution, comparison: WhatIfResult) -> None:
        """Count an execution. Subagents come before their parents, as newer executions come first."""
        self.examined += 1
        self.decisions += comparison.decisions
        self.not_ended += not record.status.is_terminal
        self.endings[comparison.verdict] += 1
        self.saved = self.families.with_savings(self.saved, record, comparison)
        if comparison.verdict is ChangedEnd.UNDETERMINED:
            because = comparison.because
            is_listed = because in self.reasons or len(self.reasons) < MOST_REASONS
            self.reasons[because if is_listed else OTHER_REASONS] += 1

    @property
    def differing(self) -> int:
        """The executions to which the other policy certainly makes a difference."""
        return sum(
            self.endings[each] for each in (ChangedEnd.EARLIER, ChangedEnd.LATER, ChangedEnd.OTHERWISE)
        )

    def to_dict(self) -> dict[str, Any]:
        """Convert the sums to JSON data."""
        return {
            "examined": self.examined,
            "ended_earlier": self.endings[ChangedEnd.EARLIER],
            "ended_later": self.endings[ChangedEnd.LATER],
            "undetermined": self.endings[ChangedEnd.UNDETERMINED],
            "differing": self.differing,
            "not_ended": self.not_ended,
            "tokens_saved": self.saved.tokens,
            "cost_saved": usd_number(self.saved.cost_usd),
            "seconds_saved": round(self.saved.seconds, 6),
        }


def comparison_data(comparison: WhatIfResult) -> Mapping[str, Any]:
    """An execution that differs, or is undetermined, as JSON data."""
    return {
        "id": str(comparison.id),
        "parts_at_step": comparison.parts_at_step,
        "agent": comparison.agent,
        "verdict": str(comparison.verdict),
        "status": str(comparison.status),
        "stop_reason": comparison.stop_reason and str(comparison.stop_reason),
        "would_stop_by": comparison.would and str(comparison.would),
        "because": comparison.because,
        "tokens_saved": comparison.saved.tokens,
        "cost_saved": usd_number(comparison.saved.cost_usd),
        "seconds_saved": round(comparison.saved.seconds, 6),
        "note": comparison.note,
    }
