"""Pods of RunPod, from its REST API (versions 1 and 2) or its GraphQL API, which the Python package uses."""

from __future__ import annotations

import ipaddress

from pydantic import AliasChoices, Field

from orchestrate.errors import UserError
from orchestrate.inventory.sources.machines import (
    SSH_PORT,
    Described,
    Found,
    Machine,
    Price,
    destination,
    port_number,
    read_json,
    validated,
)

COMMAND = 'curl -H "Authorization: Bearer $RUNPOD_API_KEY" "https://rest.runpod.io/v1/pods?includeMachine=true"'
RUNNING = "RUNNING"
INTERRUPTIBLE = "INTERRUPTABLE"
"""As the API spells it."""


class _Port(Described):
    """A port of a running pod: GraphQL and REST 2 name its parts differently."""

    ip: str | None = None
    private: int | None = Field(None, validation_alias=AliasChoices("privatePort", "private"))
    public: int | None = Field(None, validation_alias=AliasChoices("publicPort", "public"))
    is_public: bool | None = Field(None, validation_alias="isIpPublic")
    type: str | None = None


class _Runtime(Described):
    ports: list[_Port] | None = None


class _GPU(Described):
    id: str | None = None
    displayName: str | None = None  # noqa: N815 (the API's)
    count: int | None = None


class _Machine(Described):
    gpuDisplayName: str | None = None  # noqa: N815
    gpuTypeId: str | None = None  # noqa: N815


class _Pod(Described):
    id: str
    name: str | None = None
    status: str | None = Field(None, validation_alias=AliasChoices("desiredStatus", "status"))
    cost: Price | None = Field(None, validation_alias=AliasChoices("adjustedCostPerHr", "costPerHr", "cost"))
    gpu_count: int | None = Field(None, validation_alias="gpuCount")
    gpu_id: str | None = Field(None, validation_alias="gpuId")
    gpu: _GPU | None = None
    machine: _Machine | None = None
    interruptible: bool | None = None
    kind: str | None = Field(None, validation_alias="podType")
    public_ip: str | None = Field(None, validation_alias="publicIp")
    mappings: dict[str, int] | None = Field(None, validation_alias="portMappings")
    runtime: _Runtime | None = None


def from_runpod(path: str) -> Found:
    """Read pods; each is a container with root."""
    found = Found()
    for pod in validated(list[_Pod], _pods(read_json(path, COMMAND), path), path, COMMAND):
        name = pod.name or f"runpod-{pod.id}"
        if (pod.status or "").upper() != RUNNING:
            found.left_out.append(f"{name} (pod {pod.id}): its status is {pod.status}, not {RUNNING}")
            continue
        target, port = _address(pod)
        if target is None or port is None:
            found.left_out.append(
                f"{name} (pod {pod.id}): no public address for port 22. RunPod's proxy (ssh.runpod.io) does not "
                "pass on commands: use a template with 22/tcp, and a machine with a public IP address"
            )
            continue
        spot = pod.interruptible or pod.kind == INTERRUPTIBLE
        found.machines.append(
            Machine(
                name=name,
                way="ssh",
                target=target,
                port=port,
                gpu=_gpu(pod),
                gpus=pod.gpu.count if pod.gpu and pod.gpu.count else pod.gpu_count,
                usd_per_hour=pod.cost,
                notes=("interruptible: it can be stopped at any time",) if spot else (),
            )
        )
    return found


def _pods(document: object, path: str) -> object:
    """Unwrap the list of pods, whichever API it comes from."""
    if isinstance(document, dict) and document.get("errors"):
        raise UserError(f"{path}: RunPod answered with an error: {str(document['errors'])[:300]}")
    for key in ("data", "myself", "pods"):
        if isinstance(document, dict) and key in document:
            document = document[key]
    return [document] if isinstance(document, dict) else document


def _address(pod: _Pod) -> tuple[str | None, int | None]:
    """Return where its port 22 is reached from outside."""
    mapped = (pod.mappings or {}).get(str(SSH_PORT))
    if pod.public_ip and mapped:
        return destination("root", pod.public_ip), port_number(mapped)
    for port in (pod.runtime.ports if pod.runtime else None) or []:
        if port.private == SSH_PORT and port.type in (None, "tcp") and port.ip and _is_public(port):
            return destination("root", port.ip), port_number(port.public)
    return None, None


def _is_public(port: _Port) -> bool:
    """Return whether a port is reached from outside: GraphQL says so, of REST 2 the address does."""
    if port.is_public is not None:
        return port.is_public
    try:
        address = ipaddress.ip_address(port.ip or "")
    except ValueError:
        return True  # a name
    return not any(address in network for network in _INSIDE)


_INSIDE = tuple(map(ipaddress.ip_network, ("10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16", "100.64.0.0/10")))


def _gpu(pod: _Pod) -> str | None:
    of_machine = pod.machine or _Machine()
    of_pod = pod.gpu or _GPU()
    return of_machine.gpuDisplayName or of_pod.displayName or of_machine.gpuTypeId or of_pod.id or pod.gpu_id
