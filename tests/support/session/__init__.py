"""Distributes a test session over processes."""
