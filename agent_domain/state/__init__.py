"""The state of an execution with its bodies: steps, snapshots and events."""
