"""The loop: what comes next, when to stop, and the facts that these decisions read."""
