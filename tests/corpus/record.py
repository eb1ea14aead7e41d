"""Records the executions of the corpus: `python -m tests.corpus.record`; README.md says when."""

import asyncio
import json
import sys

from everstep.runtime.embedded import open_services
from everstep.store.engine import create_engine
from everstep.store.postgres import PostgresStore
from tests.corpus.policies import POLICIES, examine
from tests.corpus.rows import EXPECTED, FILE, read_rows, save
from tests.databases import Databases
from tests.services import careless, data_directory, make_template
from tests.workflows.harness import STORAGE, connect_temporal
from tests.workflows.recorded_runs import CASES


class OneDatabase(Databases):
    """Gives the same database to every store."""

    def __init__(self, url: str) -> None:
        super().__init__(url)
        self.shared = super().take()

    def take(self) -> str:
        """Return the URL of the one database."""
        return self.shared

    def give_back(self, url: str) -> None:
        """Keep its rows."""


async def main() -> None:
    """Run every case on servers of this process, and save its rows with the sums under each policy."""
    with data_directory() as data:
        async with open_services(careless(data)) as services:
            await make_template(services)
            STORAGE.databases = databases = OneDatabase(services.database_url)
            temporal = await connect_temporal(services)
            for case in CASES:
                await case.run(temporal)
                sys.stdout.write(f"{case.name}\n")
            await STORAGE.close()
            save(read_rows(databases.shared))
            engine = create_engine(databases.shared)
            store = PostgresStore(engine)
            sums = {policy: await examine(store, policy) for policy in POLICIES}
            await engine.dispose()
    EXPECTED.write_text(json.dumps(sums, indent=1) + "\n", encoding="utf-8")
    sys.stdout.write(f"{FILE.name}: {FILE.stat().st_size} bytes\n")


if __name__ == "__main__":
    asyncio.run(main())
