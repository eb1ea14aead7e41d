"""The revisions, each with its predecessor as `down_revision`."""
