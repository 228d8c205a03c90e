"""Instances of Vast.ai, from `vastai show instances --raw`."""

from __future__ import annotations

from orchestrate.inventory.sources.machines import (
    Described,
    Found,
    Machine,
    Price,
    destination,
    port_number,
    read_json,
    validated,
)

COMMAND = "vastai show instances --raw"
RUNNING = "running"


class _Binding(Described):
    """Where a port of a container is reached."""

    HostPort: str


class _Instance(Described):
    """What is used of an instance; `ports` is missing until it runs."""

    id: str
    label: str | None = None
    actual_status: str | None = None
    gpu_name: str | None = None
    num_gpus: int | None = None
    dph_total: Price | None = None
    is_bid: bool | None = None
    image_runtype: str | None = None
    public_ipaddr: str | None = None
    ports: dict[str, list[_Binding] | None] | None = None
    ssh_host: str | None = None
    ssh_port: int | None = None


def from_vast(path: str) -> Found:
    """Read instances; each is a container with root and an sshd."""
    document = read_json(path, COMMAND)
    if isinstance(document, dict) and "instances" in document:  # of one page (--limit), and of older versions
        document = document["instances"]
    found = Found()
    for instance in validated(list[_Instance], document, path, COMMAND):
        name = instance.label or f"vast-{instance.id}"
        if instance.actual_status != RUNNING:
            found.left_out.append(f"{name} ({instance.id}): its status is {instance.actual_status}, not {RUNNING}")
            continue
        target, port = _address(instance)
        if target is None or port is None:
            found.left_out.append(f"{name} ({instance.id}): no ssh address. Start it with ssh (runtype ssh)")
            continue
        found.machines.append(
            Machine(
                name=name,
                way="ssh",
                target=target,
                port=port,
                gpu=instance.gpu_name,
                gpus=instance.num_gpus,
                usd_per_hour=instance.dph_total,
                notes=("interruptible: it can be stopped at any time by a higher bid",) if instance.is_bid else (),
            )
        )
    found.notes.append("Prices are those of Vast's dph_total: GPU and disk, without traffic.")
    return found


def _address(instance: _Instance) -> tuple[str | None, int | None]:
    """Return the direct address, else that of Vast's proxy; as `vastai ssh-url` does."""
    direct = (instance.ports or {}).get("22/tcp")
    if direct and instance.public_ipaddr:
        return destination("root", instance.public_ipaddr.strip()), port_number(direct[0].HostPort)
    if instance.ssh_host is None or instance.ssh_port is None:
        return None, None
    behind_jupyter = "jupyter" in (instance.image_runtype or "")
    return destination("root", instance.ssh_host.strip()), port_number(instance.ssh_port + behind_jupyter)
