"""Random programs under random faults: no acknowledged operation is lost, doubled, or refused and done.

`EVERSTEP_CHAOS_SEED` draws the same programs and faults again; `EVERSTEP_CHAOS=long` plays five storms that
are longer and stronger (`make chaos`). The accounts, in `storm/accounts.py`, compare the clients' answers
with the journal of tools and models, outside the product.
"""

from pathlib import Path

import pytest

from tests.acceptance.harness import Nursery
from tests.acceptance.storm.accounts import wrong_books
from tests.acceptance.storm.local import open_scene
from tests.acceptance.storm.scene import SHORT, force, seeds

pytestmark = [pytest.mark.asyncio(loop_scope="session"), pytest.mark.timeout(force().limit)]


@pytest.mark.parametrize("seed", seeds(), ids=str if force() is SHORT else lambda _: "drawn")
async def test_no_acknowledged_operation_is_lost_or_doubled(
    seed: str, nursery: Nursery, tmp_path: Path
) -> None:
    """Follows rules 1.1.1, 1.1.3, 1.1.5, 7.1.1, 7.4.2, 8.2.1, 8.3.1, 8.5.4 and 8.6.3."""
    async with open_scene(force(), seed, nursery, tmp_path) as (scene, weather):
        try:
            await scene.play(weather)
            scene.faults += await wrong_books(scene)
        finally:
            # Shown if the test fails, or with `-s`.
            print(scene.report())  # noqa: T201
    assert scene.faults == []
    accepted = [each for each in scene.operations if each.is_accepted]
    assert len(accepted) > scene.measure.talks
