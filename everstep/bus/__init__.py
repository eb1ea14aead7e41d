"""Ways on which envelopes and chunks leave the process that wrote them.

May import ``agent_domain``: the port, and what passes through it.
"""
