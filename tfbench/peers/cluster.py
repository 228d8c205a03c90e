"""The hosts that train one case together, and this process's rank, from TensorFlow's `TF_CONFIG`."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

VARIABLE = "TF_CONFIG"
EXAMPLE = '{"cluster": {"worker": ["10.0.0.11:29500", "10.0.0.12:29500"]}, "task": {"type": "worker", "index": 0}}'
LARGEST_PORT = 65_535


class ClusterError(Exception):
    """`TF_CONFIG` does not describe the hosts of the case; the message is one line."""


@dataclass(frozen=True, kw_only=True)
class TFCluster:
    """The hosts of a case.

    Attributes:
        addresses: `host:port` of each rank, as the others reach it; TensorFlow's collectives listen there.
        rank: Of this process, from 0; rank 0 is the chief, which writes the record.
    """

    addresses: tuple[str, ...]
    rank: int

    @property
    def control(self) -> tuple[str, int]:
        """Return the host and port on which the chief accepts the other ranks: the port above its own."""
        host, port = split_address(self.addresses[0])
        return host, port + 1

    def name(self, rank: int) -> str:
        """Return a rank's name in messages."""
        return f"rank {rank} ({self.addresses[rank]})"


def read_cluster(num_hosts: int, environment: Mapping[str, str]) -> TFCluster | None:
    """Read the cluster of a case.

    Args:
        num_hosts: Of the case.
        environment: Environment variables.

    Returns:
        None for a case of one host.

    Raises:
        ClusterError: The variable is missing, malformed, or has a different number of hosts.
    """
    text = environment.get(VARIABLE, "")
    if not text:
        if num_hosts > 1:
            raise ClusterError(f"--num_hosts={num_hosts} needs the environment variable {VARIABLE}. Example: {EXAMPLE}")
        return None
    try:
        document = json.loads(text)
        cluster, task = dict(document["cluster"]), dict(document.get("task") or {})
    except (ValueError, KeyError, TypeError) as error:
        raise ClusterError(
            f"{VARIABLE} is not a JSON object with 'cluster' and 'task': {error}. {_seen(text)}"
        ) from error
    addresses = cluster.get("worker")
    if not isinstance(addresses, list) or len(addresses) != num_hosts or set(cluster) != {"worker"}:
        raise ClusterError(
            f"{VARIABLE} must list as many addresses as --num_hosts={num_hosts}, all under 'worker'. {_seen(text)}"
        )
    if num_hosts == 1:
        return None
    for address in addresses:
        _check_address(address, text)
    if len(set(addresses)) < num_hosts:
        raise ClusterError(f"{VARIABLE}: an address appears twice. {_seen(text)}")
    found = TFCluster(addresses=tuple(addresses), rank=_rank(task, num_hosts, text))
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
    return host.removeprefix("[").removesuffix("]"), int(port)


def _check_address(address: object, text: str) -> None:
    host, _, port = address.rpartition(":") if isinstance(address, str) else ("", "", "")
    known = host and port.isascii() and port.isdigit() and 1 <= int(port) < LARGEST_PORT
    if not known or (":" in host and not (host.startswith("[") and host.endswith("]"))):
        raise ClusterError(
            f"{VARIABLE}: {address!r} is not host:port with a port of 1 to {LARGEST_PORT - 1}. {_seen(text)}"
        )


def _rank(task: dict[str, Any], num_hosts: int, text: str) -> int:
    rank = task.get("index")
    if task.get("type") != "worker" or type(rank) is not int or not 0 <= rank < num_hosts:
        raise ClusterError(
            f"{VARIABLE}: 'task' must be of type 'worker' with an index of 0 to {num_hosts - 1}. {_seen(text)}"
        )
    return rank


def _seen(text: str) -> str:
    return f"Received: {text if len(text) <= 300 else text[:299] + '…'}"
