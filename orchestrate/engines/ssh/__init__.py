"""Runs benchmarks as processes on a host without Docker engine, over ssh, e.g. in a rented container.

Start with `launcher.py`, then `agent.py`, which runs on the host: `connection.py` sends it with every connection.
`software.py` provides the runner, a Python and the locked packages.
"""
