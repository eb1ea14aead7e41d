"""What crosses the API, as schemas: bodies that clients send, and responses that they get."""
