"""SQL statements of the rates that processes share; the arithmetic is that of `RateBucket`."""

from sqlalchemy import text

_LEVEL = """(least(CAST(:capacity AS float8),
                   rate.level + CAST(:per_second AS float8)
                   * greatest(0, extract(epoch FROM clock_timestamp() - rate.filled_at)))
             - CAST(:debt AS float8))"""

_GRANTED = f"""CASE WHEN CAST(:need AS float8) = 0 OR {_LEVEL} < CAST(:floor AS float8)
                      OR rate.paused_until > clock_timestamp() THEN 0
                 ELSE greatest(CAST(:need AS float8), least(CAST(:portion AS float8), {_LEVEL})) END"""

ADD_RATE = text("""
    WITH added AS (
        INSERT INTO agent_rates (name, level, granted) VALUES (:name, :capacity, 0)
            ON CONFLICT DO NOTHING
     RETURNING name
    )
    DELETE FROM agent_rates
     WHERE EXISTS (SELECT FROM added) AND filled_at < clock_timestamp() - interval '1 day'
""")
"""A bucket that was not used for a day is removed when another one is added; it would be full."""

DRAW_RATE = text(f"""
    UPDATE agent_rates AS rate
       SET level = {_LEVEL} - {_GRANTED},
           granted = {_GRANTED},
           filled_at = greatest(rate.filled_at, clock_timestamp())
     WHERE name = :name
 RETURNING granted, level, greatest(0, extract(epoch FROM paused_until - clock_timestamp())) AS paused
""")  # noqa: S608 -- constants only

PAUSE_RATE = text("""
    INSERT INTO agent_rates AS rate (name, level, granted, paused_until)
    VALUES (:name, 0, 0, clock_timestamp() + make_interval(secs => :seconds))
        ON CONFLICT (name) DO UPDATE
       SET paused_until = greatest(rate.paused_until, excluded.paused_until)
""")

LEVELS = text("""
    SELECT name, level, greatest(0, extract(epoch FROM clock_timestamp() - filled_at)) AS seconds
      FROM agent_rates
     WHERE name = ANY(:names)
""")
