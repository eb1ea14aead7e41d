"""Wires: settings, the processes, and which implementation stands behind which port.

The environment is read here and nowhere else, once, into one frozen value that is passed on as an argument.

May import every package but ``everstep.cli``; it alone imports ``everstep.store`` and ``everstep.inference``.
"""
