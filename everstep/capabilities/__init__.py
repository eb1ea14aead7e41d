"""Tools that touch files, processes and models, one folder for each capability.

What a tool may do and how its results read is decided in ``agent_domain``, where it can be tested without a
disk; the code here does it.

May import ``agent_domain``; never workflows, activities, the store or another layer of ``everstep``.
"""
