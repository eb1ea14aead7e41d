"""An agent whose commands have a forbidden base directory: for the doctor."""

from everstep.agent_domain.agents.builder import DefinitionBuilder
from everstep.capabilities.bash import UseBash

agents = [DefinitionBuilder.base().with_name("shell").with_capability(UseBash(base_dir="/etc"))]
