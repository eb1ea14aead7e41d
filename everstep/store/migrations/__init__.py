"""The Alembic environment of the schema.

Each file in `versions` is one revision. A revision imports nothing of `everstep`, because the current tables
differ from those it created. New revisions are written by hand; the test that compares the revisions with
`tables.py` prints the difference.
"""
