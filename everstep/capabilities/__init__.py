"""Tools that touch files, processes and models, one folder for each capability.

The rules for a tool and the texts of its results are in ``agent_domain``, where they can be tested without a
disk; the code here does the I/O.

May import ``agent_domain``; never workflows, activities, the store or another layer of ``everstep``.
"""
