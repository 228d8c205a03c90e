"""Hosts by cases with gaps: what each host would have reached on average, had it measured every case."""

from __future__ import annotations

import statistics
from collections.abc import Mapping

Cells = Mapping[str, Mapping[int, float]]
"""A value by host and number of the case, e.g. the logarithm of a throughput; some may be missing."""


def host_levels(cells: Cells) -> dict[str, float] | None:
    """Return each host's mean over all cases, a missing one filled in by what its host and its case have of their own.

    Hosts then count equally whatever they lack, so that their spread is that between hosts, not that of cases which
    one host measured and another did not.

    Args:
        cells: At least one value for each host.

    Returns:
        None where hosts and cases cannot be separated: some hosts share no case with the others, not even by way of a
        third one.

    Source: Yates, The analysis of replicated experiments when the field results are incomplete, 1933: least squares
        of host + case, and its fitted values in place of the missing ones.
    """
    cases = list(dict.fromkeys(case for of_host in cells.values() for case in of_host))
    if all(len(of_host) == len(cases) for of_host in cells.values()):
        return {host: statistics.fmean(of_host.values()) for host, of_host in cells.items()}
    fitted = _least_squares(cells, cases)
    if fitted is None:
        return None
    return {
        host: statistics.fmean(of_host.get(case, fitted[host, case]) for case in cases)
        for host, of_host in cells.items()
    }


def _least_squares(cells: Cells, cases: list[int]) -> dict[tuple[str, int], float] | None:
    """Fit value = host + case; None where the cells that are there do not determine it."""
    import numpy as np

    hosts = list(cells)
    known = [(host, case) for host in hosts for case in cases if case in cells[host]]
    design = np.zeros((len(known), len(hosts) + len(cases)))
    for row, (host, case) in enumerate(known):
        design[row, hosts.index(host)] = design[row, len(hosts) + cases.index(case)] = 1.0
    values = np.array([cells[host][case] for host, case in known])
    effects, _, rank, _ = np.linalg.lstsq(design, values, rcond=None)
    if rank < len(hosts) + len(cases) - 1:
        return None
    of_host, of_case = effects[: len(hosts)], effects[len(hosts) :]
    return {(h, c): float(of_host[i] + of_case[j]) for i, h in enumerate(hosts) for j, c in enumerate(cases)}
