"""An agent whose command sends itself signals and prints what they did."""

from everstep.agent_domain.agents.builder import DefinitionBuilder
from everstep.agent_domain.agents.drivers import ToolCallingDriver
from everstep.agent_domain.testing import ScriptedModel, calls
from everstep.capabilities.bash import UseBash

COMMAND = "for each in HUP INT QUIT; do sh -c 'kill -$0 $$' $each; echo $each $?; done 2>/dev/null"

agents = [
    DefinitionBuilder.base()
    .with_name("interrupting")
    .with_capability(UseBash())
    .with_driver(ToolCallingDriver(ScriptedModel(calls(("bash", {"command": COMMAND})), "Done.")))
]
