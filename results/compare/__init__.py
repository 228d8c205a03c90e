"""Compares fleets: ratios of throughput and of samples per dollar, and scaling efficiency, with intervals.

`comparison.py` compares case by case and computes scaling efficiency, `summary.py` puts many cases into an answer, and
`sequential.py` decides when a comparison needs no more repeats. `table.comparable` decides what may be compared.

Start at `comparison.compare`; the statistics are in `results/stats.py`.
"""
