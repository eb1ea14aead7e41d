"""Drivers for models: one for each provider, behind the inference port of ``agent_domain``.

A driver translates messages, tools, usage and errors between a provider's format and the domain's. It never
retries, because its caller does, and it never returns an answer whose end it has not seen.

May import ``agent_domain`` and a provider's library. Only ``everstep.runtime`` imports this package.
"""
