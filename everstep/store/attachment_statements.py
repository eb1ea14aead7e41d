"""SQL statements of attached files."""

from sqlalchemy import text

_COLUMNS = "id, name, media_type, size, sha256"

_IS_LIVE = """(attachment.expires_at IS NULL OR attachment.expires_at > clock_timestamp()
            OR EXISTS (SELECT 1 FROM agent_attachment_uses WHERE attachment_id = attachment.id))"""

ADD = text("""
    INSERT INTO agent_attachments (id, tenant_id, user_id, name, media_type, size, sha256, expires_at)
    VALUES (:id, :tenant_id, :user_id, :name, :media_type, :size, :sha256,
            clock_timestamp() + :seconds * interval '1 second')
        ON CONFLICT (id) DO UPDATE
       SET name = excluded.name, media_type = excluded.media_type, size = excluded.size,
           sha256 = excluded.sha256
     WHERE agent_attachments.tenant_id = excluded.tenant_id
 RETURNING id
""")
"""Another attempt of the same upload or call replaces the description of the first."""

USE = text(f"""
    WITH used AS (
        UPDATE agent_attachments attachment
           SET expires_at = NULL
         WHERE id = ANY (CAST(:attachment_ids AS uuid[])) AND tenant_id = :tenant_id AND {_IS_LIVE}
           AND EXISTS (SELECT 1 FROM agent_executions
                        WHERE id = :execution_id AND agent_executions.tenant_id = :tenant_id)
     RETURNING id
    ), linked AS (
        INSERT INTO agent_attachment_uses (execution_id, tenant_id, attachment_id, call_id)
        SELECT :execution_id, :tenant_id, id, CAST(:call_id AS text) FROM used
            ON CONFLICT DO NOTHING
    )
    SELECT id FROM used
""")  # noqa: S608 -- constants only
"""Returns the files that the execution may use; the others do not exist, or have expired."""

READABLE = text(f"""
    SELECT {_COLUMNS}
      FROM agent_attachments attachment
     WHERE id = ANY (CAST(:attachment_ids AS uuid[])) AND tenant_id = :tenant_id AND {_IS_LIVE}
       AND (CAST(:user_id AS text) IS NULL
            OR user_id = :user_id
            OR EXISTS (SELECT 1
                         FROM agent_attachment_uses used
                         JOIN agent_executions execution ON execution.id = used.execution_id
                         LEFT JOIN agent_sessions session ON session.id = execution.session_id
                        WHERE used.attachment_id = attachment.id
                          AND coalesce(session.user_id, execution.user_id) = :user_id))
""")  # noqa: S608 -- constants only
"""The files that a user has sent, or that belong to one of its conversations."""

USED_BY = text(f"""
    SELECT {_COLUMNS}, used.call_id, used.created_at
      FROM agent_attachment_uses used
      JOIN agent_attachments attachment ON attachment.id = used.attachment_id
     WHERE used.execution_id = :execution_id AND attachment.tenant_id = :tenant_id
     ORDER BY used.created_at, attachment.id
""")  # noqa: S608 -- constants only

WRITE = text("""
    INSERT INTO agent_attachment_contents (id, tenant_id, data)
    VALUES (:id, :tenant_id, :data)
        ON CONFLICT (id) DO UPDATE SET data = excluded.data
     WHERE agent_attachment_contents.tenant_id = excluded.tenant_id
""")

READ = text("SELECT data FROM agent_attachment_contents WHERE id = :id AND tenant_id = :tenant_id")

DELETE_CONTENT = text("""
    DELETE FROM agent_attachment_contents WHERE id = :id AND tenant_id = :tenant_id
""")

EXPIRED = text("""
    SELECT id, tenant_id
      FROM agent_attachments attachment
     WHERE expires_at < clock_timestamp() - :grace * interval '1 second'
       AND NOT EXISTS (SELECT 1 FROM agent_attachment_uses WHERE attachment_id = attachment.id)
     ORDER BY expires_at
     LIMIT :limit
""")
"""Files that no execution uses. A use that began before they expired is committed within the grace period."""

EXPIRE_ORPHANS = text("""
    UPDATE agent_attachments attachment
       SET expires_at = '-infinity'
     WHERE expires_at IS NULL
       AND NOT EXISTS (SELECT 1 FROM agent_attachment_uses WHERE attachment_id = attachment.id)
""")
"""The files of executions that were removed."""

COUNT_ORPHANS = text("""
    SELECT count(*) AS many
      FROM agent_attachments attachment
     WHERE (expires_at IS NULL OR expires_at < clock_timestamp() - :grace * interval '1 second')
       AND NOT EXISTS (SELECT 1 FROM agent_attachment_uses WHERE attachment_id = attachment.id)
""")

REMOVE = text("""
    DELETE FROM agent_attachments attachment
     WHERE id = ANY (CAST(:attachment_ids AS uuid[])) AND expires_at IS NOT NULL
       AND NOT EXISTS (SELECT 1 FROM agent_attachment_uses WHERE attachment_id = attachment.id)
""")

EXPIRE_OF_SESSION = """
    expired AS (
        UPDATE agent_attachments attachment
           SET expires_at = '-infinity'
         WHERE id IN (SELECT used.attachment_id
                        FROM agent_attachment_uses used
                        JOIN agent_executions execution ON execution.id = used.execution_id
                       WHERE execution.session_id = :session_id AND execution.tenant_id = :tenant_id)
           AND NOT EXISTS (SELECT 1
                             FROM agent_attachment_uses used
                             JOIN agent_executions execution ON execution.id = used.execution_id
                            WHERE used.attachment_id = attachment.id
                              AND execution.session_id IS DISTINCT FROM :session_id)
    )"""
"""The files of a session that is deleted, except those that other conversations use."""
