"""Runs benchmarks as processes on a host without Docker engine, over ssh, e.g. in a rented container.

Start with `launcher.py`, then `agent.py`, which runs on the host: `channel.py` sends it once and carries all requests.
`software.py` provides the runner, a Python and the locked packages.
"""
