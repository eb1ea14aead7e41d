"""The executions of subagents, as a tree."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

from everstep.agent_domain.ids import Scope
from everstep.agent_domain.storage.executions import ExecutionRow
from everstep.agent_domain.storage.sessions import ExecutionFilter
from everstep.cli.json_output import json_data
from everstep.http_api.schemas.execution_responses import ExecutionResponse
from everstep.runtime.installation import Installation

MAX_DEPTH: Final = 8
"""Levels of a tree that are read; the others are shown by the page of a subagent."""


@dataclass(frozen=True, slots=True)
class ExecutionTree:
    """A subagent's execution, with those of its own subagents."""

    row: ExecutionRow
    children: tuple["ExecutionTree", ...] = ()

    def lines(self, depth: int = 0) -> Iterator[str]:
        """The tree as lines, each level indented more."""
        row = self.row
        yield f"{'  ' * depth}subagent   {row.ref.execution_id}  {row.status:<9}  {row.agent}"
        for child in self.children:
            yield from child.lines(depth + 1)

    def to_dict(self) -> dict[str, Any]:
        """Convert to JSON data."""
        execution = json_data(ExecutionResponse.of(self.row, in_full=True))
        return {**execution, "children": [child.to_dict() for child in self.children]}


async def load_children(
    installation: Installation, row: ExecutionRow, depth: int = MAX_DEPTH
) -> tuple[ExecutionTree, ...]:
    """Read the executions of subagents, oldest first."""
    found: list[ExecutionRow] = []
    wanted, cursor = ExecutionFilter(parent_execution_id=row.ref.execution_id), None
    while True:
        page = await installation.store.executions_of(
            Scope(row.ref.tenant_id), wanted, cursor=cursor, limit=200
        )
        found.extend(page.rows)
        cursor = page.cursor
        if cursor is None:
            break
    if depth == 1:
        return tuple(map(ExecutionTree, reversed(found)))
    return tuple(
        [ExecutionTree(each, await load_children(installation, each, depth - 1)) for each in found[::-1]]
    )
