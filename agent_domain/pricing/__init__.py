"""What model calls cost: prices of models, the table of known prices, and the cost of a call."""
