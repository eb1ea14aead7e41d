"""Exports a run of each kind, and runs the tests in a fresh clone: `make exports`.

The runs happen on servers of this process. The tests run in a clone without them, and without a network where
the system permits that. All have to pass. Then every agent gets a limit of one step: the tests of longer runs
fail, and one of the failures is printed.
"""

import asyncio
import logging
import os
import re
import subprocess
import sys
from dataclasses import replace
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

from everstep.agent_domain.redaction import Redaction
from everstep.agent_domain.storage.run_record import RunRecord
from everstep.client.exported_runs import ExportForm, export_run
from everstep.runtime.embedded import open_services
from tests.services import ROOT, careless, data_directory
from tests.workflows.exported_agents import agent_of, name_of
from tests.workflows.harness import connect_temporal
from tests.workflows.recorded_runs import CASES

AGENTS = "tests.workflows.exported_agents:agents"
NO_NETWORK = ("unshare", "--map-root-user", "--net")


async def export_all(folder: Path) -> list[RunRecord]:
    """Run every case on servers, and write the tests of the runs into a folder."""
    records: list[RunRecord] = []
    with data_directory() as data:
        async with open_services(careless(data)) as services:
            temporal = await connect_temporal(services)
            for case in CASES:
                office, execution = await replace(case, agent=partial(agent_of, case)).run(temporal)
                known = {name_of(case): office.agents[0]}
                run = await export_run(office.port, execution.ref, known, Redaction())
                records.append(run.record)
                for name, text in run.files(ExportForm.TEST).items():
                    (folder / name).write_text(text, encoding="utf-8")
    return records


def run_tests(clone: Path, **variables: str) -> tuple[int, int, str]:
    """Run the exported tests in the clone; returns how many passed and failed, and the output."""
    unset = {name for name in os.environ if name.startswith(("EVERSTEP_", "TEMPORAL_"))} | {"DATABASE_URL"}
    environment = {name: value for name, value in os.environ.items() if name not in unset}
    environment |= {"EVERSTEP_AGENTS": AGENTS, "PYTHONPATH": str(clone), **variables}
    can_isolate = subprocess.run([*NO_NETWORK, "true"], capture_output=True, check=False).returncode == 0  # noqa: S603 -- fixed arguments
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "exported"]
    done = subprocess.run(  # noqa: S603 -- fixed arguments
        [*NO_NETWORK, *command] if can_isolate else command,
        cwd=clone,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    counts = {word: int(number) for number, word in re.findall(r"(\d+) (passed|failed)", done.stdout)}
    where = "without a network" if can_isolate else "with this machine's network"
    text = f"{done.stdout}{done.stderr}\n({where})"
    return counts.get("passed", 0), counts.get("failed", 0), text


def say(text: str) -> None:
    """Print a line."""
    sys.stdout.write(f"{text}\n")


def main() -> int:
    """Export, clone, run and change a policy; returns the exit code."""
    # Some runs fail, and workers log that.
    logging.disable(logging.WARNING)
    with TemporaryDirectory() as folder:
        clone = Path(folder) / "clone"
        subprocess.run(["git", "clone", "--quiet", str(ROOT), str(clone)], check=True)  # noqa: S603, S607 -- fixed arguments
        exported = clone / "exported"
        exported.mkdir()
        records = asyncio.run(export_all(exported))
        passed, failed, text = run_tests(clone)
        say(f"{passed} of {len(records)} exported tests pass in a fresh clone {text.splitlines()[-1]}")
        if (passed, failed) != (len(records), 0):
            say(text)
            return 1
        changed, different, text = run_tests(clone, EVERSTEP_TEST_MAX_STEPS="1")
        longer = sum(len(record.steps) > 1 for record in records)
        say(f"with at most 1 step, {different} tests fail and {changed} pass; {longer} runs have more steps")
        lines = re.sub(r"^E {0,3}", "", text, flags=re.MULTILINE)
        shown = re.search(r"The agent '.*?Otherwise change the agent back\.", lines, re.DOTALL)
        say(shown[0] if shown else text)
        return int(shown is None or different < longer // 2)


if __name__ == "__main__":
    sys.exit(main())
