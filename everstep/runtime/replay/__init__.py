"""Replays recorded runs in this process: the real workflow and activities, without server, model or tool.

A record has the answers of models, the results of tools, and what people did. `host` takes the place of
Temporal, `recorded_store` of the database and its clock, `recorded_agents` of models and tools, and `people`
of people. Everything else, above all every decision, is what a worker would run.
"""
