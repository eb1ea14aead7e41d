"""The full state of an execution: steps, snapshots and events."""
