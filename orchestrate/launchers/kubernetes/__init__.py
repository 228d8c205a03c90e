"""Benchmarks as Jobs of a Kubernetes cluster."""
