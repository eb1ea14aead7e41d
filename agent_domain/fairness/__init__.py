"""How tenants and their users share what is scarce: places of a worker, executions at once, requests."""
