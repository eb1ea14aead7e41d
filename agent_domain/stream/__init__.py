"""Envelopes: what viewers read, and how it reaches them in order."""
