"""The agents of all recorded runs, each with a name of its own, as a process loads them.

`EVERSTEP_TEST_MAX_STEPS` limits all of them, to show what a changed policy does to exported tests.
"""

import os
import re

from everstep.agent_domain.agents.builder import DefinitionBuilder
from tests.workflows.recorded_runs import CASES, Case

__all__ = ["agents", "name_of"]


def name_of(case: Case) -> str:
    """The name of the agent of a run."""
    return re.sub(r"\W+", "-", case.name)


def agent_of(case: Case) -> DefinitionBuilder:
    """The agent of a run, under its name."""
    agent = case.agent().with_name(name_of(case))
    limit = os.environ.get("EVERSTEP_TEST_MAX_STEPS")
    return agent.with_max_steps(int(limit)) if limit else agent


agents = [agent_of(case) for case in CASES]
