"""How the tables became what they are: an Alembic environment.

One file in `versions` is one revision. It stands by itself: it imports nothing of `everstep`, because the
tables of today are not those it made. A new one is written by hand; the test that compares the revisions
with `tables.py` prints what is missing.
"""
