"""Benchmarks in containers of a Docker engine, near or far."""
