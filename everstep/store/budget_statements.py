"""SQL statements of budgets.

The rows of budgets are locked last, after those of streams, and in the order of their ids: many executions
share them. No statement waits for anything else while it holds them.
"""

from sqlalchemy import text

from everstep.store.columns import IS_UNDER_WAY

OPERATOR_UNITS = """(SELECT array_agg(DISTINCT budget.unit)
                  FROM agent_budgets budget
                 WHERE budget.tenant_id = agent_executions.tenant_id AND budget.agent = ''
                   AND budget.subject IN ('', agent_executions.user_id))
                   AS operator_units"""

LOCK_BUDGETS = text("""
    SELECT id
      FROM agent_budgets
     WHERE id = ANY (CAST(:all_ids AS uuid[]))
     ORDER BY id
       FOR NO KEY UPDATE
""")

SHARE_EXECUTIONS = text("""
    SELECT id, tenant_id, status
      FROM agent_executions
     WHERE id = ANY (CAST(:execution_ids AS uuid[]))
     ORDER BY id
       FOR SHARE
""")

OPEN_BUDGETS = text("""
    INSERT INTO agent_budgets (id, tenant_id, scope, subject, agent, unit, limit_amount, on_exhausted,
                               degrade_to, execution_id, session_id)
    SELECT budget.id, :tenant_id, budget.scope, budget.subject, budget.agent, budget.unit,
           budget.limit_amount, budget.on_exhausted, budget.degrade_to,
           CASE WHEN budget.scope = 'execution' THEN CAST(budget.subject AS uuid) END,
           CASE WHEN budget.scope = 'session' THEN CAST(budget.subject AS uuid) END
      FROM unnest(CAST(:ids AS uuid[]), CAST(:scopes AS text[]), CAST(:subjects AS text[]),
                  CAST(:agents AS text[]), CAST(:kinds AS text[]), CAST(:limits AS numeric[]),
                  CAST(:policies AS text[]), CAST(:presets AS text[]))
           AS budget(id, scope, subject, agent, unit, limit_amount, on_exhausted, degrade_to)
     ORDER BY budget.id
        ON CONFLICT (id) DO NOTHING
""")

_ACCOUNT = """id, tenant_id, scope, subject, agent, unit, limit_amount, spent, reserved, on_exhausted,
           degrade_to"""


def _claim_sql(own: str, is_open: str, kept: str, change: str) -> str:
    """Grant a claim of every budget that applies, or of none, under the locks of the budgets.

    Args:
        own: Joins the amount that this claim replaces.
        is_open: The condition for granting anything.
        kept: Statements that keep what was granted.
        change: The column that changes, with its new value.
    """
    return f"""
    WITH account AS (
        SELECT budget.id, budget.tenant_id, budget.scope, budget.subject, budget.agent, budget.unit,
               greatest(coalesce(named.amount, budget.limit_amount), budget.raised_to) AS limit_amount,
               budget.spent, budget.reserved - coalesce(own.amount, 0) AS reserved, budget.on_exhausted,
               budget.degrade_to, coalesce(own.amount, 0) AS own, need.base, need.rate
          FROM agent_budgets budget
          LEFT JOIN unnest(CAST(:ids AS uuid[]), CAST(:limits AS numeric[])) AS named(id, amount)
            ON named.id = budget.id
          LEFT JOIN unnest(CAST(:units AS text[]), CAST(:bases AS numeric[]), CAST(:rates AS numeric[]))
                 AS need(unit, base, rate)
            ON need.unit = budget.unit
          {own}
         WHERE budget.id = ANY (CAST(:all_ids AS uuid[])) AND budget.tenant_id = :tenant_id
    ), pays AS (
        SELECT least(CAST(:most AS numeric),
                     min(CASE WHEN limit_amount - spent - reserved < base THEN -1
                              WHEN rate > 0 THEN div(limit_amount - spent - reserved - base, rate)
                         END)) AS output
          FROM account
    ), granted AS (
        SELECT CAST(pays.output AS bigint) AS output
          FROM pays
         WHERE pays.output >= :least AND {is_open}
           AND cardinality(CAST(:ids AS uuid[]))
               = (SELECT count(*) FROM account WHERE id = ANY (CAST(:ids AS uuid[])))
    ), {kept}changed AS (
        UPDATE agent_budgets budget
           SET {change}, updated_at = clock_timestamp()
          FROM account, granted
         WHERE budget.id = account.id AND account.base IS NOT NULL
    )
    SELECT {_ACCOUNT}, granted.output, account.base + account.rate * granted.output AS amount
      FROM account
      LEFT JOIN granted ON true
"""  # noqa: S608 -- constants only


_AMOUNT = "account.base + account.rate * granted.output"

RESERVE = text(
    _claim_sql(
        """LEFT JOIN agent_budget_reservations own
            ON own.execution_id = :execution_id AND own.key = :key AND own.budget_id = budget.id""",
        f"""EXISTS (SELECT 1 FROM agent_executions
                    WHERE id = :execution_id AND tenant_id = :tenant_id AND status {IS_UNDER_WAY})""",  # noqa: S608 -- constants only
        f"""made AS (
        INSERT INTO agent_budget_reservations (execution_id, key, budget_id, tenant_id, amount)
        SELECT :execution_id, :key, account.id, :tenant_id, {_AMOUNT}
          FROM account, granted
         WHERE account.base IS NOT NULL
            ON CONFLICT (execution_id, key, budget_id) DO UPDATE SET amount = excluded.amount
    ), """,  # noqa: S608 -- constants only
        f"reserved = budget.reserved - account.own + {_AMOUNT}",
    )
)
"""Under the locks of the execution and the budgets. Returns the budgets, without the reservation that this
one replaces; `output` is null if nothing was reserved."""

HOLD = text(
    _claim_sql(
        "CROSS JOIN (SELECT CAST(NULL AS numeric) AS amount) AS own",
        "true",
        f"""held AS (
        INSERT INTO agent_budget_holds (id, budget_id, tenant_id, amount)
        SELECT :hold, account.id, :tenant_id, {_AMOUNT}
          FROM account, granted
         WHERE account.base IS NOT NULL
    ), """,  # noqa: S608 -- constants only
        f"reserved = budget.reserved + {_AMOUNT}",
    )
)
"""Under the locks of the budgets. A reservation that no execution releases."""


def _settle_sql(table: str, mine: str, spent: str) -> str:
    """Replace reservations by what was spent.

    Locks the budgets in the order of their ids, and adds to what their last writers left. A reservation that
    is gone was settled before.
    """
    return f"""
    WITH locked AS (
        SELECT id
          FROM agent_budgets
         WHERE id IN (SELECT budget_id FROM {table} WHERE {mine})
         ORDER BY id
           FOR NO KEY UPDATE
    ), gone AS (
        DELETE FROM {table} WHERE {mine} RETURNING budget_id, amount
    ), released AS (
        SELECT budget_id, sum(amount) AS amount FROM gone GROUP BY budget_id
    ), settled AS (
        UPDATE agent_budgets budget
           SET reserved = budget.reserved - released.amount, spent = budget.spent + {spent},
               updated_at = clock_timestamp()
          FROM locked
          JOIN released ON released.budget_id = locked.id
         WHERE budget.id = locked.id
    )
    SELECT count(*) AS settled FROM gone
"""  # noqa: S608 -- constants only


_SPENT = """CASE budget.unit WHEN 'usd' THEN CAST(:spent_usd AS numeric)
                                WHEN 'tokens' THEN CAST(:spent_tokens AS numeric)
                                ELSE CAST(:spent_steps AS numeric) END"""

SETTLE = text(
    _settle_sql(
        "agent_budget_reservations",
        """execution_id = :execution_id AND tenant_id = :tenant_id
           AND (CAST(:budget_key AS text) IS NULL OR key = :budget_key)""",
        _SPENT,
    )
)

SETTLE_HOLD = text(_settle_sql("agent_budget_holds", "id = :hold", _SPENT))

CHARGE_LOST_HOLDS = text(
    _settle_sql(
        "agent_budget_holds",
        "created_at < clock_timestamp() - CAST(:seconds AS double precision) * interval '1 second'",
        "released.amount",
    )
)

CLOSE_REQUESTS = text("""
    UPDATE agent_requests
       SET state = 'resolved', resolved_at = clock_timestamp()
     WHERE execution_id = :execution_id AND kind = 'budget' AND state = 'open'
""")

_IS_RAISED = "coalesce(raised_to > CAST(:seen AS numeric), false)" + (
    " OR (agent = '' AND limit_amount > CAST(:seen AS numeric))"
)

OPEN_REQUEST = text(f"""
    WITH budget AS (
        SELECT {_IS_RAISED} AS is_raised FROM agent_budgets WHERE id = :budget_id FOR SHARE
    ), asked AS (
        INSERT INTO agent_requests (id, tenant_id, execution_id, user_id, kind, state, request, policy,
                                    resolved_at)
        SELECT :budget_request_id, execution.tenant_id, execution.id, execution.user_id, 'budget',
               CASE WHEN open.is_open THEN 'open' ELSE 'resolved' END, CAST(:request AS json),
               CAST(:policy AS json), CASE WHEN NOT open.is_open THEN clock_timestamp() END
          FROM agent_executions execution,
               (SELECT EXISTS (SELECT 1 FROM budget WHERE NOT is_raised) AS is_open) AS open
         WHERE execution.id = :execution_id
            ON CONFLICT (id) DO NOTHING
     RETURNING id, execution_id, tenant_id, state
    )
    INSERT INTO agent_commands (execution_id, key, tenant_id, kind)
    SELECT execution_id, 'budget/' || id, tenant_id, 'budget' FROM asked WHERE state = 'resolved'
        ON CONFLICT DO NOTHING
""")  # noqa: S608 -- constants only
"""Opens a request to raise a budget. If that was raised after the execution found it exhausted, the request
is resolved at once, and the command that resumes the execution is stored."""

LOCK_BUDGET = text("SELECT id FROM agent_budgets WHERE id = :budget_id FOR NO KEY UPDATE")

RESUME = """
    resolved AS (
        UPDATE agent_requests
           SET state = 'resolved', resolution = CAST(:resolution AS json), resolved_at = clock_timestamp()
         WHERE tenant_id = :tenant_id AND kind = 'budget' AND state = 'open'
           AND request ->> 'budget_id' = :budget_text
           -- An execution that is being cancelled is not resumed.
           AND NOT EXISTS (SELECT 1 FROM agent_commands command
                            WHERE command.execution_id = agent_requests.execution_id
                              AND command.kind = 'cancel')
     RETURNING id, execution_id, tenant_id
    ), command AS (
        INSERT INTO agent_commands (execution_id, key, tenant_id, kind)
        SELECT execution_id, 'budget/' || id, tenant_id, 'budget' FROM resolved
            ON CONFLICT DO NOTHING
    )"""

_RESUMED = """(SELECT coalesce(json_agg(json_build_array(execution.id, execution.session_id, resolved.id)
                                       ORDER BY execution.created_at), '[]')
                 FROM resolved
                 JOIN agent_executions execution ON execution.id = resolved.execution_id) AS resumed"""

RAISE = text(f"""
    WITH raised AS (
        UPDATE agent_budgets
           SET raised_to = CAST(:raised_to AS numeric), raised_by = CAST(:raised_by AS json),
               updated_at = clock_timestamp()
         WHERE id = :budget_id AND tenant_id = :tenant_id
     RETURNING spent, reserved
    ), {RESUME}
    SELECT raised.spent, raised.reserved, {_RESUMED} FROM raised
""")  # noqa: S608 -- constants only
"""Under the budget's lock."""

SET_OPERATORS = text(f"""
    WITH budget AS (
        INSERT INTO agent_budgets AS budget (id, tenant_id, scope, subject, agent, unit, limit_amount,
                                             on_exhausted, degrade_to)
        VALUES (:budget_id, :tenant_id, :scope, :subject, '', :unit, CAST(:limit AS numeric), :on_exhausted,
                :degrade_to)
            ON CONFLICT (id) DO UPDATE
           SET limit_amount = excluded.limit_amount, on_exhausted = excluded.on_exhausted,
               degrade_to = excluded.degrade_to, raised_to = NULL, raised_by = NULL,
               updated_at = clock_timestamp()
     RETURNING spent, reserved
    ), {RESUME}
    SELECT budget.spent, budget.reserved, {_RESUMED} FROM budget
""")  # noqa: S608 -- constants only

REMOVE_OPERATORS = text(f"""
    WITH budget AS (
        DELETE FROM agent_budgets
         WHERE id = :budget_id AND tenant_id = :tenant_id AND agent = ''
     RETURNING {_ACCOUNT}
    ), {RESUME}
    SELECT budget.*, {_RESUMED} FROM budget
""")  # noqa: S608 -- constants only

_EFFECTIVE = """id, tenant_id, scope, subject, agent, unit, greatest(limit_amount, raised_to) AS limit_amount,
           spent, reserved, on_exhausted, degrade_to"""

_TERMS = f"""id, agent_executions.tenant_id, session_id, user_id, plan -> 'budgets' AS budgets,
           {OPERATOR_UNITS}"""

TERMS = text(f"""
    SELECT {_TERMS} FROM agent_executions WHERE id = :execution_id AND tenant_id = :tenant_id
""")  # noqa: S608 -- constants only

INNER_REPLY = text(f"""
    SELECT reply.key, reply.digest, reply.response, {_TERMS}
      FROM agent_executions
      LEFT JOIN agent_inner_replies reply ON reply.execution_id = agent_executions.id AND reply.key = :key
     WHERE agent_executions.id = :execution_id AND agent_executions.tenant_id = :tenant_id
""")  # noqa: S608 -- constants only
"""The recorded reply to an inner model call, and the budgets for the call if there is none."""

ACCOUNTS = text(f"""
    SELECT {_EFFECTIVE}, raised_to
      FROM agent_budgets
     WHERE id = ANY (CAST(:all_ids AS uuid[])) AND tenant_id = :tenant_id
""")  # noqa: S608 -- constants only

GIVE_BACK_STEERING = text("""
    WITH back AS (
        UPDATE agent_steered SET heard_at = NULL
         WHERE execution_id = :execution_id AND tenant_id = :tenant_id AND heard_at = :number
    )
    DELETE FROM agent_transcript
     WHERE execution_id = :execution_id AND tenant_id = :tenant_id AND step = :number AND idx < 0
""")
"""The messages of the step that precede its reply are those that it received."""
