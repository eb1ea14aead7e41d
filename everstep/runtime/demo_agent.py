"""The demo agent of every installation, which needs no tools."""

from dataclasses import replace

from everstep.agent_domain.agents.builder import DefinitionBuilder

DEMO = replace(
    DefinitionBuilder.base()
    .with_name("assistant", "Answers questions")
    .with_system_prompt("You are a helpful assistant. Answer briefly.")
    .definition(),
    source="built in",
)
