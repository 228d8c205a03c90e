"""How many hosts and GPUs train together: names and order of these in tables."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from results.table.fleets import FleetRate

CLUSTER_COLUMNS = ("num_gpus", "num_hosts", "communication")
"""Columns of a case that say what trains together: a table's columns rather than its rows."""


def cluster_text(hosts: Hashable, gpus: Hashable, communication: Hashable) -> str:
    """Name what trains together: `4` GPUs; of several hosts `2×4`, and how they communicate where that was chosen."""
    if hosts in (None, 1):
        return str(gpus)
    chosen = "" if communication in (None, "auto") else f" {communication}"
    return f"{hosts}×{gpus}{chosen}"


def cluster_name(rate: FleetRate) -> str:
    """Name what trained together for a rate; see `cluster_text`."""
    return cluster_text(*(rate.named(name) for name in ("num_hosts", "num_gpus", "communication")))


def replicas(rate: FleetRate) -> int:
    """Return the replicas of all hosts; 0 where they are not known."""
    hosts, gpus = rate.named("num_hosts"), rate.named("num_gpus")
    return hosts * gpus if isinstance(hosts, int) and isinstance(gpus, int) else 0


def cluster_names(rates: Sequence[FleetRate]) -> list[str]:
    """Return the names of all that trained together, the smallest first: those of one host before all others."""

    def order(rate: FleetRate) -> tuple[bool, int, str]:
        return rate.named("num_hosts") not in (None, 1), replicas(rate), cluster_name(rate)

    return list(dict.fromkeys(cluster_name(rate) for rate in sorted(rates, key=order)))
