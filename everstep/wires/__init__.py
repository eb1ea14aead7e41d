"""Wires: the log of envelopes as the protocols that front ends speak; no I/O.

`run_log` reads the envelopes of one execution, with those of its subagents, and returns what happened in it
as `run_events`: text, calls and their results, questions, pauses, the end. It handles what is hard about it
once, for all wires: attempts that were given up, text that arrives twice, and a reader that resumes in the
middle. A projection, such as `ag_ui`, turns each of these events into the events of one protocol.

May import: `agent_domain`.
"""
