"""Compares fleets: ratios of throughput and of samples per dollar, and scaling efficiency, with intervals.

`pairs.py` compares case by case, `overall.py` summarises many cases, `scaling.py` computes scaling efficiency and
`sequential.py` decides when a comparison needs no more repeats. `table.comparable` decides what may be compared.

Start at `pairs.compare`; the statistics are in `results/stats.py`.
"""
