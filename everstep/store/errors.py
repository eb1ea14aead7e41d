"""What can go wrong between the store and PostgreSQL, in words for whoever runs it.

    EverstepError
    ├── StoreError
    │   ├── DatabaseUnreachable   nothing was said, or the connection broke: check the server and the URL
    │   ├── DatabaseBusy          it answered that it cannot serve this now: the same call may be made again
    │   ├── SchemaOutdated        its tables are older than this program: upgrade them
    │   └── SchemaTooNew          its tables are newer than this program: deploy a newer one
    └── InvalidInput              a value that PostgreSQL cannot hold: the caller has to change it

Every method of the store is one transaction: when one of these is raised, nothing was written, except
that a connection may break after the last word (`COMMIT`) was sent. The methods can all be called again.
"""

from collections.abc import Generator
from contextlib import contextmanager

from sqlalchemy import URL, exc

from everstep.agent_domain.errors import EverstepError, InvalidInput, StoreUnavailable

_UPGRADE = "run `everstep db upgrade`"


class StoreError(EverstepError):
    """The store could not do what it was asked."""


class DatabaseUnreachable(StoreError, StoreUnavailable):
    """PostgreSQL cannot be reached, or the connection to it broke."""

    def __init__(self, url: URL, reason: str) -> None:
        where = url.render_as_string(hide_password=True)
        super().__init__(
            f"PostgreSQL at {where} cannot be reached: {reason}. "
            "Check that it runs and that the database URL is right, then try again"
        )


class DatabaseBusy(StoreError, StoreUnavailable):
    """PostgreSQL is there but cannot serve this now."""

    def __init__(self, reason: str) -> None:
        super().__init__(
            f"PostgreSQL cannot serve this now: {reason}. Try again; if it stays so, add capacity"
        )


class SchemaOutdated(StoreError):
    """The tables are missing or older than this program."""

    def __init__(self, reason: str) -> None:
        super().__init__(f"the database's tables do not fit this version of Everstep: {reason}; {_UPGRADE}")


class SchemaTooNew(StoreError):
    """A newer program has upgraded the tables."""

    def __init__(self, revision: str) -> None:
        super().__init__(
            f"the database was upgraded to '{revision}', which this version of Everstep does not know; "
            "deploy the version that upgraded it, or a newer one"
        )


# https://www.postgresql.org/docs/current/errcodes-appendix.html
_BUSY = (
    "40",  # transaction rollback: serialization failures, deadlocks
    "53",  # insufficient resources: connections, memory, disk
    "55P03",  # a lock was not to be had in time
    "57014",  # a statement took too long and was cancelled
    "23505",  # a key that another transaction has just taken: the next attempt finds what it wrote
)
_OUTDATED = ("42P01", "42703")  # no such table, no such column
_NOT_STORABLE = ("22",)  # data exceptions: values that a column cannot hold


@contextmanager
def translated(url: URL) -> Generator[None]:
    """Raises what the database or its driver has to say as one of the errors above."""
    try:
        yield
    except exc.TimeoutError:
        raise DatabaseBusy("every connection of this process's pool is taken") from None
    except UnicodeEncodeError as error:
        raise InvalidInput(
            f"a text contains half of a surrogate pair: {error.reason}; send valid Unicode"
        ) from None
    except exc.DBAPIError as error:
        raise _typed(url, error) from error


def _typed(url: URL, error: exc.DBAPIError) -> EverstepError:
    code = getattr(error.orig, "sqlstate", None) or ""
    # The server's first line only: its details quote values, and those may be what people wrote.
    said = getattr(getattr(error.orig, "diag", None), "message_primary", None) or str(error.orig)
    reason = " ".join(said.split())
    if code.startswith(_BUSY):
        return DatabaseBusy(reason)
    if code.startswith(_OUTDATED):
        return SchemaOutdated(reason)
    if code.startswith(_NOT_STORABLE) or isinstance(error, exc.DataError):
        return InvalidInput(f"PostgreSQL cannot hold this value: {reason}")
    if isinstance(error, exc.OperationalError | exc.InterfaceError) or error.connection_invalidated:
        return DatabaseUnreachable(url, reason)
    return StoreError(f"PostgreSQL refused a statement: {reason}")
