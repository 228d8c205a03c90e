"""Throughput of GPUs that nobody measured, with its error."""
