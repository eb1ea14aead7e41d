"""Runs an agent in this process, without Temporal: for tests, notebooks and examples.

It is a shell around ``agent_domain`` as the workflow is another one: it calls the driver and the tools, keeps
the clock and makes the ids, and takes every decision from the domain. What needs people to be waited for is
left to the workflow.

May import ``activities`` (for calling tools) and ``agent_domain``.
"""
