"""Runs an agent in this process, without Temporal: for tests, notebooks and examples.

Like the workflow, it is a shell around ``agent_domain``: it calls the driver and the tools, supplies the
clock and the ids, and takes every decision from the domain. Waiting for people is left to the workflow.

May import ``steps`` and ``agent_domain``.
"""
