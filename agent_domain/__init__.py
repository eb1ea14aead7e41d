"""The agent's decisions, as values and pure functions.

Nothing in this package reads a clock, draws randomness, touches a file, a socket or the
environment, or logs: times and ids are arguments, and the same arguments always give the
same result. Temporal can therefore replay every decision, and a test can pin it.

Where to start reading:

- `loop` is the whole agent loop: one function, and the transitions that feed it;
- `continuation` and `criteria` decide whether a run continues, `error_policy` how a failure is handled;
- `facts` holds everything that a decision may depend on, `state` the same together with the bodies.
"""

if __name__ != "everstep.agent_domain":
    raise ImportError("Import everstep.agent_domain: under two names, every class would exist twice.")
