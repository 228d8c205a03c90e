"""Fleets against each other: ratios with their intervals, scaling, cost."""
