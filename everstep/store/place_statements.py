"""SQL statements of the limits of tenants, and of the places of their executions.

Whether an execution of a tenant with `max_running` may start is decided under a lock of the tenant, from the
rows of its places: a count that is kept apart would be wrong after a crash. Executions of other tenants have
no rows, and nothing here is locked for them.
"""

from sqlalchemy import text

from everstep.store.columns import HAS_ENDED, IS_UNDER_WAY

IS_LIMITED = """EXISTS (SELECT 1 FROM agent_tenant_limits
                WHERE tenant_id IN (:tenant_id, '*') AND max_running IS NOT NULL)"""
"""Whether executions of a tenant may have to wait."""

QUEUE_FOR_PLACE = """
        INSERT INTO agent_places (execution_id, tenant_id, user_id)
        SELECT id, tenant_id, coalesce(user_id, '')
          FROM {released}
         WHERE {condition} AND {is_limited}
            ON CONFLICT DO NOTHING
     RETURNING execution_id"""
"""A part of statements that release an execution: with a limit, it waits for its admission."""

_HELD = """
        SELECT user_id, count(*) AS count
          FROM agent_places
         WHERE tenant_id = :tenant_id AND admitted_at IS NOT NULL AND NOT is_paused
         GROUP BY user_id"""

_TENANT_LIMIT = """
        SELECT max_running FROM agent_tenant_limits
         WHERE tenant_id IN (:tenant_id, '*') AND user_id = ''
         ORDER BY tenant_id = '*'
         LIMIT 1"""
_USER_LIMIT = """
        SELECT max_running FROM agent_tenant_limits
         WHERE (tenant_id, user_id) IN ((:tenant_id, nullif({user}, '')), (:tenant_id, '*'), ('*', '*'))
         ORDER BY tenant_id = '*', user_id = '*'
         LIMIT 1"""

EXPECTED_POSITION = f"""CASE WHEN {IS_LIMITED} THEN (
        WITH held AS ({_HELD}
        ), waiting AS (
            SELECT user_id, row_number() OVER (PARTITION BY user_id) AS number
              FROM agent_places
             WHERE tenant_id = :tenant_id AND admitted_at IS NULL
        ), own AS (
            SELECT 1 + coalesce((SELECT count FROM held WHERE user_id = asked.name), 0)
                   + (SELECT count(*) FROM waiting WHERE user_id = asked.name) AS rank, asked.name
              FROM (SELECT coalesce(CAST(:user_id AS text), '') AS name) AS asked
        ), queue AS (
            SELECT count(*) AS ahead
              FROM waiting LEFT JOIN held USING (user_id)
             WHERE waiting.number + coalesce(held.count, 0) <= (SELECT rank FROM own)
        )
        SELECT CASE WHEN ({_TENANT_LIMIT}) <= ahead + (SELECT coalesce(sum(count), 0) FROM held)
                      OR ({_USER_LIMIT.format(user="own.name")}) < own.rank
                    THEN ahead + 1 END
          FROM queue, own) END"""  # noqa: S608 -- constants only
"""The position at which an execution has to wait that is accepted now; null if it need not."""

IS_WAITING = """EXISTS (SELECT 1 FROM agent_places place
                    WHERE place.execution_id = launched.id AND place.admitted_at IS NULL)
           AS is_waiting"""

CHANGE_PLACE = """
        UPDATE agent_places
           SET is_paused = CAST(:status AS text) = 'paused'
         WHERE execution_id = :execution_id AND NOT :ends AND admitted_at IS NOT NULL
     RETURNING CAST(:status AS text) = 'paused' AS is_free"""
LEAVE_PLACE = """
        DELETE FROM agent_places WHERE execution_id = :execution_id AND :ends RETURNING true AS is_free"""

LIMITS = text("""
    SELECT tenant_id, nullif(user_id, '') AS user_id, weight, max_running, max_model_calls,
           requests_per_second, tokens_per_minute
      FROM agent_tenant_limits stored
     ORDER BY tenant_id, stored.user_id
""")

SET_LIMITS = text("""
    INSERT INTO agent_tenant_limits (tenant_id, user_id, weight, max_running, max_model_calls,
                                     requests_per_second, tokens_per_minute)
    VALUES (:tenant_id, :user_id, :weight, :max_running, :max_model_calls, :requests_per_second,
            :tokens_per_minute)
        ON CONFLICT (tenant_id, user_id) DO UPDATE
       SET weight = excluded.weight, max_running = excluded.max_running,
           max_model_calls = excluded.max_model_calls, requests_per_second = excluded.requests_per_second,
           tokens_per_minute = excluded.tokens_per_minute, updated_at = clock_timestamp()
""")

TAKE_PLACES_OF_RUNNING = text(f"""
    INSERT INTO agent_places (execution_id, tenant_id, user_id, admitted_at, is_paused)
    SELECT id, tenant_id, coalesce(user_id, ''), clock_timestamp(), status = 'paused'
      FROM agent_executions
     WHERE (tenant_id = :tenant_id OR :tenant_id = '*') AND parent_execution_id IS NULL
       AND released_at IS NOT NULL AND status {IS_UNDER_WAY}
        ON CONFLICT DO NOTHING
""")  # noqa: S608 -- constants only
"""What began before a limit was set counts as well."""

REMOVE_LIMITS = text("""
    DELETE FROM agent_tenant_limits WHERE tenant_id = :tenant_id AND user_id = :user_id RETURNING 1
""")

HAS_EXECUTIONS = text("SELECT 1 FROM agent_executions WHERE tenant_id = :tenant_id LIMIT 1")

LOCK_TENANT = text("SELECT pg_advisory_xact_lock(hashtextextended(:tenant_id, 7316229))")

REMOVE_ENDED = text(f"""
    DELETE FROM agent_places place
     USING agent_executions execution
     WHERE place.tenant_id = :tenant_id AND execution.id = place.execution_id
       AND execution.status {HAS_ENDED}
""")  # noqa: S608 -- constants only
"""Workers of an older release leave these."""

WAITING_TENANTS = text("""
    WITH RECURSIVE tenant AS (
        (SELECT tenant_id FROM agent_places WHERE admitted_at IS NULL ORDER BY tenant_id LIMIT 1)
         UNION ALL
        SELECT (SELECT tenant_id FROM agent_places
                 WHERE admitted_at IS NULL AND tenant_id > tenant.tenant_id
                 ORDER BY tenant_id LIMIT 1)
          FROM tenant
         WHERE tenant_id IS NOT NULL
    )
    SELECT tenant_id FROM tenant WHERE tenant_id IS NOT NULL
""")

PENDING = text("SELECT id FROM agent_executions WHERE id = ANY(:ids) AND status = 'pending'")

ADMIT = text(f"""
    WITH RECURSIVE waiting_user AS (
        -- Each user with waiting executions, by one look into the index for each.
        (SELECT user_id FROM agent_places
          WHERE tenant_id = :tenant_id AND admitted_at IS NULL ORDER BY user_id LIMIT 1)
         UNION ALL
        SELECT (SELECT place.user_id FROM agent_places place
                 WHERE place.tenant_id = :tenant_id AND place.admitted_at IS NULL
                   AND place.user_id > waiting_user.user_id
                 ORDER BY place.user_id LIMIT 1)
          FROM waiting_user
         WHERE user_id IS NOT NULL
    ), held AS ({_HELD}
    ), tenant_limit AS ({_TENANT_LIMIT}
    ), free AS (
        SELECT CASE WHEN EXISTS (SELECT 1 FROM tenant_limit WHERE max_running IS NOT NULL)
                    THEN least(CAST(:most AS bigint),
                               greatest(0, (SELECT max_running FROM tenant_limit)
                                           - (SELECT coalesce(sum(count), 0) FROM held)))
                    ELSE CAST(:most AS bigint) END AS places
    ), candidate AS (
        SELECT first.execution_id, first.queued_at, coalesce(held.count, 0) + first.number AS place
          FROM waiting_user
          LEFT JOIN held ON held.user_id = waiting_user.user_id
          LEFT JOIN LATERAL ({_USER_LIMIT.format(user="waiting_user.user_id")}) AS user_limit ON true
         CROSS JOIN LATERAL (SELECT place.execution_id, place.queued_at,
                                    row_number() OVER (ORDER BY queued_at, execution_id) AS number
                               FROM (SELECT execution_id, queued_at FROM agent_places
                                      WHERE tenant_id = :tenant_id AND admitted_at IS NULL
                                        AND user_id = waiting_user.user_id
                                      ORDER BY queued_at, execution_id
                                      LIMIT :most) AS place) AS first
         WHERE user_limit.max_running IS NULL
            OR coalesce(held.count, 0) + first.number <= user_limit.max_running
    ), chosen AS (
        SELECT execution_id
          FROM candidate
         ORDER BY place, queued_at, execution_id
         LIMIT (SELECT places FROM free)
    ), admitted AS (
        UPDATE agent_places
           SET admitted_at = clock_timestamp()
          FROM chosen
         WHERE agent_places.execution_id = chosen.execution_id AND admitted_at IS NULL
     RETURNING agent_places.execution_id
    )
    SELECT launched.id, launched.tenant_id, launched.session_id, launched.plan, launched.task_queue,
           launched.session_seconds, launched.session_began_at, launched.user_id,
           launched.input -> 'request' AS request, false AS is_waiting,
           EXISTS (SELECT 1 FROM agent_commands command
                    WHERE command.execution_id = launched.id AND command.delivered_at IS NULL)
           AS has_commands
      FROM admitted
      JOIN agent_executions launched ON launched.id = admitted.execution_id
""")  # noqa: S608 -- constants only
"""Under the tenant's lock. The order is that of `QUEUE`."""

QUEUE = f"""
    SELECT waiting.execution_id,
           row_number() OVER (ORDER BY waiting.number + coalesce(held.count, 0), waiting.queued_at,
                                       waiting.execution_id) AS position
      FROM (SELECT execution_id, user_id, queued_at,
                   row_number() OVER (PARTITION BY user_id ORDER BY queued_at, execution_id) AS number
              FROM agent_places
             WHERE tenant_id = :tenant_id AND admitted_at IS NULL) AS waiting
      LEFT JOIN ({_HELD}) AS held ON held.user_id = waiting.user_id
"""  # noqa: S608 -- constants only
"""The places in the queue of a tenant, from 1, in the order of admission."""

QUEUE_POSITIONS = text(QUEUE)

MODEL_CALLS = text("""
    SELECT execution.tenant_id, execution.user_id, count(*) AS calls
      FROM agent_executions execution
      JOIN LATERAL (SELECT attempt, facts IS NULL AS is_unanswered, wait ->> 'attempt' AS failed
                      FROM agent_steps
                     WHERE execution_id = execution.id
                     ORDER BY number DESC
                     LIMIT 1) AS step ON step.is_unanswered
     WHERE execution.tenant_id = ANY(:tenants) AND execution.status = 'running'
       AND step.failed IS DISTINCT FROM CAST(step.attempt AS text)
     GROUP BY execution.tenant_id, execution.user_id
""")
"""The model calls that are made now. One that waits for its next attempt is not."""
