"""Errors between the store and PostgreSQL, worded for operators.

    EverstepError
    ├── StoreError
    │   ├── DatabaseUnreachable   no answer, or the connection broke: check the server and the URL
    │   ├── DatabaseBusy          the server cannot serve the call now: retry it
    │   ├── SchemaOutdated        its tables are older than this program: upgrade them
    │   └── SchemaTooNew          its tables are newer than this program: deploy a newer one
    └── InvalidInput              a value that PostgreSQL cannot hold: the caller has to change it

Every method of the store is one transaction: after one of these errors nothing was written, except that a
connection may break after `COMMIT` was sent. Every method can be called again.
"""

from collections.abc import Generator
from contextlib import contextmanager

from sqlalchemy import URL, exc

from everstep.agent_domain.errors import EverstepError, InvalidInput, StoreUnavailable

_UPGRADE = "run `everstep db upgrade`"


class StoreError(EverstepError):
    """The store could not complete a call."""


class DatabaseUnreachable(StoreError, StoreUnavailable):
    """PostgreSQL cannot be reached, or the connection to it broke."""

    def __init__(self, url: URL, reason: str) -> None:
        where = url.render_as_string(hide_password=True)
        super().__init__(
            f"PostgreSQL at {where} cannot be reached: {reason.rstrip('.?! ')}. "
            "Check that it runs and that the database URL is right, then try again"
        )


class DatabaseBusy(StoreError, StoreUnavailable):
    """PostgreSQL is reachable but cannot serve the call now."""

    def __init__(self, reason: str) -> None:
        super().__init__(
            f"PostgreSQL cannot serve this now: {reason}. Try again; if this persists, add capacity"
        )


class SchemaOutdated(StoreError):
    """The tables are missing or older than this program."""

    def __init__(self, reason: str) -> None:
        super().__init__(f"the database's tables do not fit this version of Everstep: {reason}; {_UPGRADE}")


class SchemaTooNew(StoreError):
    """The tables were upgraded by a newer program."""

    def __init__(self, revision: str) -> None:
        super().__init__(
            f"the database was upgraded to '{revision}', which this version of Everstep does not know; "
            "deploy the version that upgraded it, or a newer one"
        )


# https://www.postgresql.org/docs/current/errcodes-appendix.html
_BUSY_CODES = (
    "40",  # transaction rollback: serialization failures, deadlocks
    "53",  # insufficient resources: connections, memory, disk
    "55P03",  # a lock timed out
    "57014",  # a statement timed out and was cancelled
    "23505",  # a key that another transaction has just inserted: a retry finds its row
)
_OUTDATED_CODES = ("42P01", "42703")  # no such table, no such column
_VALUE_CODES = (
    "22",  # data exceptions: values that a column cannot hold
    "54000",  # program limits: texts that an index cannot hold
)


@contextmanager
def error_translation(url: URL) -> Generator[None]:
    """Translate errors of the database and its driver into the errors of this module."""
    try:
        yield
    except exc.TimeoutError:
        raise DatabaseBusy("all connections of this process's pool are in use") from None
    except UnicodeEncodeError as error:
        raise InvalidInput(
            f"a text contains half of a surrogate pair: {error.reason}; send valid Unicode"
        ) from None
    except exc.DBAPIError as error:
        raise _store_error(url, error) from error


def _store_error(url: URL, error: exc.DBAPIError) -> EverstepError:
    code = getattr(error.orig, "sqlstate", None) or ""
    # Only the server's first line: its details quote values, which may be user data.
    said = getattr(getattr(error.orig, "diag", None), "message_primary", None) or str(error.orig)
    reason = " ".join(said.split())
    if code.startswith(_BUSY_CODES):
        return DatabaseBusy(reason)
    if code.startswith(_OUTDATED_CODES):
        return SchemaOutdated(reason)
    if code.startswith(_VALUE_CODES) or isinstance(error, exc.DataError):
        return InvalidInput(f"PostgreSQL cannot hold this value: {reason}")
    if isinstance(error, exc.OperationalError | exc.InterfaceError) or error.connection_invalidated:
        return DatabaseUnreachable(url, reason)
    return StoreError(f"PostgreSQL refused a statement: {reason}")
