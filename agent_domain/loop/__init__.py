"""The agent loop: the next action, the conditions to stop, and the facts that these decisions read."""
