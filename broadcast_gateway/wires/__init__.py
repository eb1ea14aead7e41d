"""The protocols that viewers speak: what they send, read into values, and what they are sent.

All of them are projections of the same envelopes. What a frame means for streams and viewers is decided by
nobody here.
"""
