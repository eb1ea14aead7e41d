"""Explanations: why an execution went on, waits or ended, in one plain sentence each, from recorded facts."""
