"""Ratios between fleets, with their intervals: how much faster, how well it scales, what a dollar buys.

It works on `table.fleets.FleetRate`; `table.comparable` decides what may be compared. `pairs.py` compares case by
case and gives each ratio its mark, `overall.py` draws the answer over many cases, `scaling.py` divides by one GPU's
throughput; `sequential.py` decides when a comparison needs no more repeats.

Start at `pairs.compare`; the statistics are in `results/stats.py`.
"""
