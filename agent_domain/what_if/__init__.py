"""Past executions under other policies. May import every other package of the domain except `testing`."""
