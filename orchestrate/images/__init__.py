"""Builds, verifies and pushes container images. Start with `commands.py`; `builds.py` works with an engine."""
