"""Benchmarks in containers of a local or remote Docker engine or Podman.

Start with `launcher.py`, the launcher of one host. `engine.py` and `images.py` have its requests to the engine, one
method each; `client.py` limits the SDK's client, and documents where the SDK is not used, and why.
"""
