"""The revisions, each with the one before it as `down_revision`."""
