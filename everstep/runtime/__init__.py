"""Configuration, processes, and the wiring of implementations to ports.

Only this package reads the environment. It reads it once, into a frozen value that is passed on as an
argument.

May import every package but ``everstep.cli``. Only this package imports ``everstep.store`` and
``everstep.inference``.
"""
