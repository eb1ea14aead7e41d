"""Asks models: one driver for each provider, all of them behind the inference port of ``agent_domain``.

A driver translates messages, tools, usage and errors between a provider's words and the domain's. It never
retries, because whoever calls it owns the retries, and it never hands out an answer whose end it did not see.

May import ``agent_domain`` and a provider's library. Only ``everstep.runtime`` imports this package.
"""
