"""How a test session is spread over processes."""
