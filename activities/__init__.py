"""Touches the world, through ports: what a workflow may ask to be done once and recorded.

An activity is a method of a small class that is given its ports in ``__init__``, so that a workflow can
refer to it by type without importing a driver. Whatever an activity writes has a key derived from its
execution, step and call: a second attempt finds the first one's result instead of doing the work again.

May import ``agent_domain`` (values and ports) and ``temporalio``; never the packages that implement the
ports.
"""

if __name__ != "everstep.activities":
    raise ImportError("Import everstep.activities: under two names, every class would exist twice.")
