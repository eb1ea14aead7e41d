"""Carries out: Temporal workflows that do what ``agent_domain`` decides, in the order it decides.

A workflow asks the domain what comes next, awaits the activity or the people that this takes, and hands what
happened back to the domain. An ``if`` about limits, errors or stopping belongs to the domain, and anything
that touches the world to an activity. Every command a workflow issues is replayed, so a change of their order
breaks running executions.

May import ``activities`` (their types, passed through the sandbox), ``agent_domain`` and ``temporalio``;
never ``everstep``, and no database, HTTP or provider library, even indirectly.
"""

if __name__ != "everstep.workflows":
    raise ImportError("Import everstep.workflows: under two names, every class would exist twice.")
