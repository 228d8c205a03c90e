"""Code shared by tests: engines, controllers, fakes."""

from pathlib import Path

PROJECT = Path(__file__).parents[2]
"""This checkout."""
