"""What an agent decides, as values and pure functions.

Nothing in this package reads a clock, draws randomness, touches a file, a socket or the
environment, or logs: moments and ids are arguments, and the same arguments always give the
same answer. That is what lets Temporal replay a decision, and a test pin one.

Where to start reading:

- `loop` is the whole agent loop, as one function and the transitions that feed it;
- `continuation` and `criteria` say when a run goes on, `error_policy` what a failure means;
- `facts` is all that a decision may depend on, `state` the same with the bodies beside it.
"""

if __name__ != "everstep.agent_domain":
    raise ImportError("Import everstep.agent_domain: under two names, every class would exist twice.")
