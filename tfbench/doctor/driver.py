"""Everything that the NVIDIA driver reports about every GPU: `python -m tfbench.doctor.driver` prints it as JSON.

Runs in a process of its own, because a driver that has lost a GPU can hang in any of these queries.
"""

from __future__ import annotations

import dataclasses
import itertools
from dataclasses import dataclass, field

import pynvml

from results.schema.health import GPUFacts
from tfbench.doctor.trial import report
from tfbench.machine.driver_gpus import DriverGPU, ask_cuda, offered, problems_of, read_driver_gpus
from tfbench.machine.nvml import Driver, opened, read_gpu, versions

P2P_READ = 0
"""The queried capability of a pair: reading each other's memory. (nvidia-ml-py's own constant is a tuple.)"""

P2P_STATUS = {
    0: "ok",
    1: "chipset not supported",
    2: "GPU not supported",
    3: "topology not supported",
    4: "disabled by registry key",
    5: "not supported",
    6: "unknown",
}
"""Source: nvml.h, nvmlGpuP2PStatus_t."""

TOPOLOGY = {0: "internal", 10: "PIX", 20: "PXB", 30: "PHB", 40: "NODE", 50: "SYS"}
"""What a transfer crosses, abbreviated as in `nvidia-smi topo -m`. Source: nvml.h, nvmlGpuTopologyLevel_t."""


@dataclass(frozen=True, kw_only=True)
class GPUPair:
    """Two GPUs, and how they reach each other.

    Attributes:
        p2p: Whether they can read each other's memory: a value of `P2P_STATUS`.
        topology: What a transfer crosses: a value of `TOPOLOGY`.
    """

    first: int
    second: int
    p2p: str | None
    topology: str | None


@dataclass(frozen=True, kw_only=True)
class DriverFacts(Driver):
    """The driver and all its GPUs.

    Attributes:
        cuda_problem: Why the CUDA driver does not start, e.g. `cuInit failed with … (802)`; None: it does.
        cuda_devices: Names of the devices that CUDA gives to a process, in its order.
    """

    cuda_problem: str | None = None
    cuda_devices: list[str] = field(default_factory=list)
    pairs: list[GPUPair] = field(default_factory=list)

    @property
    def answering(self) -> list[GPUFacts]:
        """The GPUs that answer."""
        return [gpu for gpu in self.gpus if gpu.problem is None]


def read_nvml() -> DriverFacts:
    """Read all GPUs from NVML."""
    with opened() as problem:
        if problem is not None:
            return DriverFacts(problem=problem)
        gpus = read_driver_gpus()
        return DriverFacts(
            **versions(),
            gpus=[read_gpu(gpu) for gpu in gpus],
            pairs=read_pairs(gpus),
            gpu_problems=problems_of(gpus),
        )


def read_pairs(gpus: list[DriverGPU]) -> list[GPUPair]:
    """Query P2P and topology of each pair of GPUs; those in MIG mode have no P2P."""
    able = [gpu for gpu in gpus if gpu.facts.problem is None and not gpu.facts.mig]
    found = []
    for first, second in itertools.combinations(able, 2):
        status = offered(pynvml.nvmlDeviceGetP2PStatus, first.handle, second.handle, P2P_READ)
        level = offered(pynvml.nvmlDeviceGetTopologyCommonAncestor, first.handle, second.handle)
        p2p = None if status is None else P2P_STATUS.get(status, "unknown")
        topology = None if level is None else TOPOLOGY.get(level, "unknown")
        found.append(GPUPair(first=first.facts.index, second=second.facts.index, p2p=p2p, topology=topology))
    return found


def main() -> None:
    """Print the facts of NVML, then those of CUDA, which may hang although NVML answers."""
    facts = read_nvml()
    report(**dataclasses.asdict(facts))
    if facts.problem is None:
        devices, problem = ask_cuda()
        report(cuda_problem=problem, cuda_devices=[device.name for device in devices])


if __name__ == "__main__":
    main()
