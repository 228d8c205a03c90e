"""Benchmarks as processes of a host that is reached by ssh and has no Docker engine, e.g. a rented container.

Start reading at `launcher.py`, then `agent.py`, which runs over there: `connection.py` sends it with every connection,
and it is never installed. `software.py` is what a benchmark runs with: the runner, a Python, the locked packages.
"""
