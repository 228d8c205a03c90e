"""The version of tfbench in all packages, images and records."""

__version__ = "0.1.0"
