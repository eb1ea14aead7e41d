"""Runs one step against user code: models, tools, hooks and processors.

Both shells of the loop use it, the activities of a durable execution and the runner in this process, so that
a step has the same effects in each. It stores nothing, and knows neither Temporal nor the order of steps: a
shell passes what the code receives, and records what this package returns.

May import ``agent_domain``.
"""
