"""How many hosts and GPUs train together: names and order of these in tables."""

from __future__ import annotations

from collections.abc import Iterable

from results.schema import Case, Communication

CLUSTER_COLUMNS = ("num_gpus", "num_hosts", "communication")
"""Columns of a case that say what trains together: a table's columns rather than its rows."""


def cluster_name(case: Case) -> str:
    """Name what trains together: `4` GPUs; of several hosts `2×4`, and how they communicate where that was chosen."""
    if case.num_hosts == 1:
        return str(case.num_gpus)
    chosen = "" if case.communication is Communication.AUTO else f" {case.communication}"
    return f"{case.num_hosts}×{case.num_gpus}{chosen}"


def cluster_names(cases: Iterable[Case]) -> list[str]:
    """Return the names of all that trained together, the smallest first: those of one host before all others."""

    def order(case: Case) -> tuple[bool, int, str]:
        return case.num_hosts != 1, case.replicas, cluster_name(case)

    return list(dict.fromkeys(cluster_name(case) for case in sorted(cases, key=order)))
