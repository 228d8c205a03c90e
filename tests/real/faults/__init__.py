"""Faults of real machines: what kills, cuts, fills and lies, against real engines, and what the run makes of it."""
