"""For tests of programs that use Everstep: agents run durably in one process, without PostgreSQL.

pytest finds the fixture `durable_agents` by itself. It runs agents on a real Temporal server on which time
can be skipped, with a real worker, and keeps executions in memory. Models are scripted.

Nothing else of Everstep imports this package.
"""

from everstep.agent_domain.testing import (
    DeterministicAgentDriver as DeterministicAgentDriver,
    MockTool as MockTool,
    ScenarioStep as ScenarioStep,
    ScriptedModel as ScriptedModel,
    calls as calls,
    says as says,
)
from everstep.runtime.replay.replaying import Replay as Replay, RunDiffers as RunDiffers
from everstep.store.memory import MemoryStore as MemoryStore
from everstep.streams.memory_bus import MemoryBus as MemoryBus
from everstep.testing.clock import ManualClock as ManualClock
from everstep.testing.durable import (
    DurableAgents as DurableAgents,
    open_agents as open_agents,
    open_server as open_server,
)
from everstep.testing.replay import replay as replay
