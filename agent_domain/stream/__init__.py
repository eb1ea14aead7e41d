"""Envelopes, which viewers receive, and their delivery in order."""
