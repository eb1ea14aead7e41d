"""Roles and permissions of the embedded PostgreSQL.

Clients use the role `everstep`: it owns its databases, may create others, and is not a superuser, so no
statement reads a file or runs a program. Its password is generated at the first start and stored in the data
folder. The superuser has no password, may not log in, and is rejected by pg_hba.conf. Statements that need it
run in PostgreSQL's single-user mode, before the server starts.
"""

import base64
import hashlib
import hmac
import re
import secrets
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from everstep.runtime.embedded.errors import EmbeddedError
from everstep.runtime.embedded.folder import write_private

DATABASE: Final = "everstep"
ROLE: Final = "everstep"
SUPERUSER: Final = "postgres"

PASSWORD_FILE: Final = "database-password"  # noqa: S105 -- the name of a file
PASSWORD: Final = re.compile(r"[A-Za-z0-9_-]{32,128}")

HBA: Final = f"""\
# Written by Everstep before each start; changes are lost.
local  all  {SUPERUSER}                reject
host   all  {SUPERUSER}  0.0.0.0/0     reject
host   all  {SUPERUSER}  ::/0          reject
local  all  all                        scram-sha-256
host   all  all          127.0.0.1/32  scram-sha-256
host   all  all          ::1/128       scram-sha-256
"""

ITERATIONS: Final = 4096
"""PostgreSQL's default. The password has 192 random bits, so more iterations would gain nothing."""

# In single-user mode, each line is a statement.
_CREATE_ROLE: Final = (
    f"DO $$ BEGIN IF NOT EXISTS (SELECT FROM pg_roles WHERE rolname = '{ROLE}') "
    f"THEN CREATE ROLE {ROLE}; END IF; END $$;"
)
_RIGHTS: Final = "LOGIN NOSUPERUSER CREATEDB NOCREATEROLE NOREPLICATION NOBYPASSRLS CONNECTION LIMIT -1"
_DATABASES: Final = (
    "SELECT datname, pg_get_userbyid(datdba) AS owner FROM pg_database "
    "WHERE NOT datistemplate AND datname <> 'postgres';"
)
_ROW: Final = re.compile(r'datname = "([^"]*)".*\n.*owner = "([^"]*)"')

_OWNED_BY_SUPERUSER: Final = """
    SELECT format('ALTER SCHEMA %I OWNER TO {role}', nspname) AS command FROM pg_namespace
    WHERE nspowner = 10 AND {users_own}
    UNION ALL
    SELECT format('ALTER TABLE %s OWNER TO {role}', c.oid::regclass)
    FROM pg_class AS c JOIN pg_namespace AS n ON n.oid = relnamespace
    WHERE relowner = 10 AND {users_own} AND relkind IN ('r', 'p', 'v', 'm', 'f', 'S')
    AND NOT EXISTS (SELECT FROM pg_depend WHERE classid = 'pg_class'::regclass AND objid = c.oid
    AND deptype IN ('a', 'i', 'e'))
    UNION ALL
    SELECT format('ALTER ROUTINE %s OWNER TO {role}', p.oid::regprocedure)
    FROM pg_proc AS p JOIN pg_namespace AS n ON n.oid = pronamespace
    WHERE proowner = 10 AND {users_own}
    AND NOT EXISTS (SELECT FROM pg_depend WHERE classid = 'pg_proc'::regclass AND objid = p.oid
    AND deptype = 'e')
    UNION ALL
    SELECT format('ALTER TYPE %s OWNER TO {role}', t.oid::regtype)
    FROM pg_type AS t JOIN pg_namespace AS n ON n.oid = typnamespace
    WHERE typowner = 10 AND {users_own} AND (typtype IN ('e', 'd', 'r')
    OR EXISTS (SELECT FROM pg_class WHERE oid = typrelid AND relkind = 'c'))
    AND NOT EXISTS (SELECT FROM pg_depend WHERE classid = 'pg_type'::regclass AND objid = t.oid
    AND deptype = 'e')
    UNION ALL
    SELECT format('ALTER LARGE OBJECT %s OWNER TO {role}', oid)
    FROM pg_largeobject_metadata WHERE lomowner = 10
"""
"""Commands that transfer user objects. PostgreSQL's REASSIGN refuses the bootstrap superuser."""


@dataclass(frozen=True, slots=True)
class Databases:
    """The user databases of a cluster."""

    known: frozenset[str]
    of_superuser: tuple[str, ...]
    """Those that an earlier release created."""


def make_password(data: Path) -> str:
    """Return the password of the data folder's database, generated if there is none."""
    file = data / PASSWORD_FILE
    try:
        known = file.read_text(encoding="ascii").strip()
    except FileNotFoundError:
        known = ""
    except (OSError, ValueError) as error:
        raise EmbeddedError(
            f"{file} cannot be read: {error}; remove it, and a new one is generated"
        ) from error
    if not PASSWORD.fullmatch(known):
        known = secrets.token_urlsafe(24)
        write_private(file, known + "\n")
    return known


def role_statements(password: str) -> list[str]:
    """Return statements that create the role, lock out the superuser and list the databases."""
    return [
        _CREATE_ROLE,
        f"ALTER ROLE {ROLE} {_RIGHTS} PASSWORD '{scram_verifier(password)}';",
        f"ALTER ROLE {SUPERUSER} NOLOGIN PASSWORD NULL;",
        _DATABASES,
    ]


def parse_databases(output: str) -> Databases:
    """Parse the databases from the output of single-user mode."""
    owners = dict(_ROW.findall(output))
    return Databases(frozenset(owners), tuple(name for name, owner in owners.items() if owner == SUPERUSER))


def ownership_statements(database: str) -> list[str]:
    """Return statements that transfer a database to the role, run in it; the database itself is last."""
    users_own = "nspname !~ '^pg_' AND nspname <> 'information_schema'"
    commands = " ".join(_OWNED_BY_SUPERUSER.format(role=ROLE, users_own=users_own).split())
    name = '"' + database.replace('"', '""') + '"'
    return [
        f"DO $$ DECLARE each text; BEGIN FOR each IN {commands} LOOP EXECUTE each; END LOOP; END $$;",
        f"ALTER DATABASE {name} OWNER TO {ROLE};",
    ]


def scram_verifier(password: str, salt: bytes | None = None) -> str:
    """Return the form in which PostgreSQL stores a password, which it then never receives (RFC 5803)."""
    salt = secrets.token_bytes(16) if salt is None else salt
    salted = hashlib.pbkdf2_hmac("sha256", password.encode(), salt, ITERATIONS)
    stored = hashlib.sha256(hmac.digest(salted, b"Client Key", "sha256")).digest()
    server = hmac.digest(salted, b"Server Key", "sha256")
    shown, keys = (base64.b64encode(salt), (base64.b64encode(each) for each in (stored, server)))
    return f"SCRAM-SHA-256${ITERATIONS}:{shown.decode()}${':'.join(key.decode() for key in keys)}"
