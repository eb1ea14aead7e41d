"""The protocols of viewers: parsing their frames, and encoding frames for them.

All of them are projections of the same envelopes. Frames are interpreted elsewhere.
"""
