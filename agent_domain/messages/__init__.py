"""Messages as models read them, and the context that is cached between steps."""
