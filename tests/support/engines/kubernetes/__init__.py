"""Kubernetes for tests: a fake API server that simulates nodes, and real clusters."""
