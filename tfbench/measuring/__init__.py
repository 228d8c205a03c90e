"""Warm-up, timing, validity gates."""
