"""Messages as models read them, and what is kept of the context between steps."""
