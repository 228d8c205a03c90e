"""Kubernetes for the tests: an API server of our own that keeps objects and plays the nodes, and real clusters."""
