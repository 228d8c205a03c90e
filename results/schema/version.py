"""The version of tfbench, for every package, image and record."""

__version__ = "0.1.0"
