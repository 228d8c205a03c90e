"""The hosts that train one case together, and this process's rank, from TensorFlow's `TF_CONFIG`."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass

VARIABLE = "TF_CONFIG"
EXAMPLE = '{"cluster": {"worker": ["10.0.0.11:29500", "10.0.0.12:29500"]}, "task": {"type": "worker", "index": 0}}'
LARGEST_PORT = 65_535


class ClusterError(Exception):
    """`TF_CONFIG` does not describe the hosts of the case; the message is one line."""


@dataclass(frozen=True, kw_only=True)
class TFCluster:
    """The hosts of a case; by default a single one.

    Attributes:
        addresses: `host:port` of each rank, as the others reach it; TensorFlow's collectives listen there.
        rank: Of this process, from 0; rank 0 is the chief, which writes the record.
    """

    addresses: tuple[str, ...] = ("this host",)
    rank: int = 0

    @property
    def control(self) -> tuple[str, int]:
        """Return the host and port on which the chief accepts the other ranks: the port above its own."""
        host, port = split_address(self.addresses[0])
        return host, port + 1

    def name(self, rank: int) -> str:
        """Return a rank's name in messages."""
        return f"rank {rank} ({self.addresses[rank]})"


def read_cluster(num_hosts: int, environment: Mapping[str, str]) -> TFCluster:
    """Read the cluster of a case.

    Args:
        num_hosts: Of the case.
        environment: Environment variables.

    Raises:
        ClusterError: The variable is missing, malformed, or has a different number of hosts.
    """
    text = environment.get(VARIABLE, "")
    if not text:
        if num_hosts > 1:
            raise ClusterError(f"--num_hosts={num_hosts} needs the environment variable {VARIABLE}. Example: {EXAMPLE}")
        return TFCluster()
    received = f"Received: {text if len(text) <= 300 else text[:299] + '…'}"
    try:
        document = json.loads(text)
        cluster, task = dict(document["cluster"]), dict(document.get("task") or {})
    except (ValueError, KeyError, TypeError) as error:
        text = f"{VARIABLE} is not a JSON object with 'cluster' and 'task': {error}. {received}"
        raise ClusterError(text) from error
    addresses, rank = cluster.get("worker"), task.get("index")
    if not isinstance(addresses, list) or len(addresses) != num_hosts or set(cluster) != {"worker"}:
        expected = f"must list as many addresses as --num_hosts={num_hosts}, all under 'worker'"
        raise ClusterError(f"{VARIABLE} {expected}. {received}")
    if num_hosts == 1:
        return TFCluster()
    for address in addresses:
        if not _is_address(address):
            expected = f"host:port with a port of 1 to {LARGEST_PORT - 1}"
            raise ClusterError(f"{VARIABLE}: {address!r} is not {expected}. {received}")
    if len(set(addresses)) < num_hosts:
        raise ClusterError(f"{VARIABLE}: an address appears twice. {received}")
    if task.get("type") != "worker" or type(rank) is not int or not 0 <= rank < num_hosts:
        expected = f"of type 'worker' with an index of 0 to {num_hosts - 1}"
        raise ClusterError(f"{VARIABLE}: 'task' must be {expected}. {received}")
    found = TFCluster(addresses=tuple(addresses), rank=rank)
    host, port = found.control
    if (host, port) in map(split_address, addresses):
        name = f"[{host}]" if ":" in host else host
        raise ClusterError(
            f"{VARIABLE}: {name}:{port} is where the chief listens for the others (one above its own port). "
            "Give ranks on one machine ports that are at least 2 apart"
        )
    return found


def split_address(address: str) -> tuple[str, int]:
    """Split `host:port`, and remove the brackets of an IPv6 host."""
    host, _, port = address.rpartition(":")
    return host.strip("[]"), int(port)


def _is_address(address: object) -> bool:
    match = re.fullmatch(r"(?:\[[^][]+\]|[^][:]+):([0-9]{1,5})", str(address))
    return match is not None and 1 <= int(match[1]) < LARGEST_PORT
