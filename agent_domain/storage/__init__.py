"""Ports of the stores, and the values that they accept and return."""
