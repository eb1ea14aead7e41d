"""Relays: the log of envelopes to whoever watches, without loss, gap or duplicate.

The gateway knows streams, envelopes and positions. It knows nothing of agents, so it starts, scales and
crashes on its own, and a slow viewer never slows another one or a writer.

May import ``agent_domain`` (the envelope); never ``workflows``, ``activities`` or ``everstep``.
"""

if __name__ != "everstep.broadcast_gateway":
    raise ImportError("Import everstep.broadcast_gateway: under two names, every class would exist twice.")
