"""Registering the search attributes of executions in Temporal."""

import pytest

from everstep.runtime.installation import register
from everstep.runtime.settings import Settings
from tests.services import Servers


@pytest.mark.parametrize(
    ("is_used", "text"),
    [
        (None, "Temporal knows the search attributes"),
        (True, "Temporal knows the search attributes"),
        (False, "Temporal knows the search attributes; EVERSTEP_SEARCH_ATTRIBUTES=false prevents their use"),
    ],
)
async def test_they_are_registered_once(services: Servers, is_used: bool | None, text: str) -> None:
    """1.2.1: also with several concurrent and repeated calls."""
    settings = Settings(
        database_url=services.database_url,
        temporal_address=services.temporal_address,
        search_attributes=is_used,
    )
    assert [await register(settings) for _ in range(2)] == [text] * 2


async def test_an_unreachable_server_is_retried_later(services: Servers) -> None:
    """1.2.1: the database is still upgraded."""
    settings = Settings(database_url=services.database_url, temporal_address="127.0.0.1:9")
    assert (await register(settings)).startswith(
        "the search attributes are not registered, run `everstep db upgrade` again later: no Temporal server"
    )
