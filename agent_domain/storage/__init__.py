"""The stores, as ports, and the values that pass through them."""
