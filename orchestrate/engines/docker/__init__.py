"""Runs benchmarks in containers of a local or remote Docker engine or Podman.

Start with `launcher.py`, the launcher of one host. `engine.py` has one method per request to the engine; `client.py`
adds limits to the SDK's client, and documents where and why the SDK is not used.
"""
