"""SQL expressions of costs. A sum is null if one of its parts is unknown."""

from typing import Any

from sqlalchemy import ColumnElement, literal_column

_TREE: ColumnElement[Any] = literal_column("""(
    WITH RECURSIVE tree (id, cost_usd) AS (
        SELECT agent_executions.id, agent_executions.cost_usd
     UNION ALL
        SELECT child.id, child.cost_usd
          FROM agent_executions child
          JOIN tree ON child.parent_execution_id = tree.id
    )
    SELECT CASE WHEN count(*) = count(cost_usd) THEN sum(cost_usd) END FROM tree
    )""")
TREE_COST: ColumnElement[Any] = _TREE.label("tree_cost_usd")
"""The cost of an execution and its child executions."""

_SESSION: ColumnElement[Any] = literal_column("""(
    SELECT CASE WHEN count(*) = count(cost_usd) THEN coalesce(sum(cost_usd), 0) END
      FROM (SELECT cost_usd FROM agent_executions execution WHERE execution.session_id = agent_sessions.id
             UNION ALL
            SELECT cost_usd FROM agent_session_usage used WHERE used.session_id = agent_sessions.id) AS part
    )""")
SESSION_COST: ColumnElement[Any] = _SESSION.label("cost_usd")
"""The cost of a session: of its executions, child executions included, and of its title."""
