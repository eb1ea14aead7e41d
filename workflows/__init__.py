"""Temporal workflows that carry out the decisions of ``agent_domain``, in the order it makes them.

A workflow asks the domain for the next decision, awaits the activity or the update that the decision calls
for, and folds the result back into the domain's facts. An ``if`` about limits, errors or stopping belongs in
the domain, and any I/O belongs in an activity. Every command that a workflow issues is replayed, so changing
their order breaks running executions.

May import ``activities`` (their types, passed through the sandbox), ``agent_domain`` and ``temporalio``;
never ``everstep``, and no database, HTTP or provider library, even indirectly.
"""

if __name__ != "everstep.workflows":
    raise ImportError("Import everstep.workflows: under two names, every class would exist twice.")
