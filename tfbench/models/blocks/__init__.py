"""Layers that networks are built of."""
