"""The gateway: relays the log of envelopes to viewers, without loss, gap or duplicate.

The gateway knows streams, envelopes and positions. It does not know agents, so it starts, scales and crashes
independently of them, and a slow viewer never slows down another viewer or a writer.

May import ``agent_domain`` (the envelope); never ``workflows``, ``activities`` or ``everstep``.
"""

if __name__ != "everstep.broadcast_gateway":
    raise ImportError("Import everstep.broadcast_gateway: under two names, every class would exist twice.")
