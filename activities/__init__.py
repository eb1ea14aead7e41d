"""Temporal activities: everything in an execution that does I/O, once and recorded, through ports.

An activity is a method of a small class that receives its ports in ``__init__``, so that a workflow can refer
to it by type without importing a driver. Every write has a key derived from its execution, step and call: a
second attempt finds the result of the first instead of doing the work again.

May import ``steps``, ``agent_domain`` (values and ports) and ``temporalio``; never the packages that
implement the ports.
"""

if __name__ != "everstep.activities":
    raise ImportError("Import everstep.activities: under two names, every class would exist twice.")
