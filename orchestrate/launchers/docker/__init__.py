"""Benchmarks in containers of a Docker engine, or Podman, near or far.

Start reading at `launcher.py`: the launcher of one host. `engine.py` and `images.py` are its requests to the engine, a
method for each request; `client.py` is the SDK's client within limits, and says where the SDK is not trusted, and why.
"""
