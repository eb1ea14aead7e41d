"""An installation that serves HTTP on a port, and clients of other protocols in node."""

from tests.everstep.http_api.conftest import ann, api_setup, http_database, sign_in, work

__all__ = ["ann", "api_setup", "http_database", "sign_in", "work"]
