"""Benchmarks as processes of a host that is reached by ssh and has no Docker engine, e.g. a rented container."""
