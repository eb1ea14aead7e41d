"""The smallest agent: a script instead of a model, one question, one answer. Needs no keys."""

from everstep import AgentBuilder, ScriptedModel, ToolCallingDriver

model = ScriptedModel("Hello! I am an agent whose every decision can be replayed.")
agent = AgentBuilder.base().with_driver(ToolCallingDriver(model)).build()

state = agent.run("Who are you?")

print(state.final_response)
print(f"({state.status} after {state.step_count} step)")
