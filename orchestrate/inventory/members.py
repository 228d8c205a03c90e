"""A host's part in a case that several hosts train together: its rank, and where all of them are."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass

from orchestrate.inventory.hosts import Host
from results.schema import Case, Communication, Device

PORTS_PER_RANK = 2
"""TensorFlow's own, and above it the one at which the chief hears the others; the same for all is simpler to allow."""


@dataclass(frozen=True, kw_only=True)
class Member:
    """A host's part in a case of several hosts.

    Attributes:
        rank: From 0; rank 0 writes the record.
        addresses: `host:port` of every rank, as the others reach it.
        network: `bridge`: the container's own, with only its ports published; `host`: the machine's.
    """

    rank: int
    addresses: tuple[str, ...]
    network: str = "bridge"

    @property
    def environment(self) -> dict[str, str]:
        """What TensorFlow reads who it is from."""
        task = {"type": "worker", "index": self.rank}
        return {"TF_CONFIG": json.dumps({"cluster": {"worker": list(self.addresses)}, "task": task})}

    @property
    def ports(self) -> tuple[int, ...]:
        """TCP ports at which the other hosts reach this one."""
        port = int(self.addresses[self.rank].rpartition(":")[2])
        return (port, port + 1) if self.rank == 0 else (port,)


def members_of(hosts: Sequence[Host], case: Case) -> tuple[Member, ...] | str:
    """Give each host its part in a case.

    Args:
        hosts: In the order of their ranks.
        case: Of as many hosts.

    Returns:
        The members by rank, or why these hosts cannot train it together.
    """
    if len(hosts) < case.num_hosts:
        return f"needs {case.num_hosts} hosts, the fleet has {len(hosts)}"
    if case.device is Device.CPU and case.num_gpus > 1:
        return "with several hosts, TensorFlow uses only one CPU device per host"
    addresses = []
    for rank, host in enumerate(hosts):
        where = host.cluster_address
        if where is None:
            return f"the address at which other hosts reach {host.key} is unknown. Set its address: in the hosts file"
        if host.network == "bridge" and case.device is Device.GPU and case.communication is not Communication.RING:
            return (
                f"NCCL opens additional ports, which {host.key} would not publish. Set network: host if you trust the "
                "network, or else communication: ring"
            )
        shown = f"[{where}]" if ":" in where else where
        addresses.append(f"{shown}:{host.cluster_port + PORTS_PER_RANK * rank}")
    return tuple(Member(rank=rank, addresses=tuple(addresses), network=host.network) for rank, host in enumerate(hosts))
