"""Print the facts of this machine as one line of JSON on stdout, without importing TensorFlow.

    python -m tfbench.probe

    {"cpu": "AMD EPYC 7313", "cpu_count": 32, "cpu_limit": 2.0, "memory_bytes": 270582939648,
     "kernel": "6.1.0-18-amd64", "operating_system": "Debian GNU/Linux 12 (bookworm)", "python": "3.11.2",
     "tensorflow": "2.21.0", "keras": "3.15.1", "driver": "550.54.14", "cuda_driver": "12.4",
     "gpus": [{"index": 0, "name": "NVIDIA RTX A4000", "uuid": "GPU-…", "compute_capability": "8.6",
               "memory_bytes": 17171480576, "power_limit_watts": 140.0}],
     "gpu_problems": ["7 of 8 GPUs answer: GPU 3 (0000:3B:00.0) is lost"],
     "driver_problem": null, "disk_free_bytes": 812345678901, "other_cpu_share": 0.0, "load": 0.3,
     "boot_id": "4b1c9e0e-5d3c-4f0a-9d1b-0a5c8d1f2e3b",
     "gpu_states": [{"index": 0, "utilisation": 0.0, "memory_used_bytes": 3145728, "processes": 0,
                     "temperature_celsius": 34, "power_watts": 8.1, "power_limit_default_watts": 140.0, …}]}

`cpu_limit` is the smaller of affinity and container limit, and may be fractional; `memory_bytes` likewise. `index` is
the driver's, as in `nvidia-smi`, even if a GPU before it does not answer; of a GPU in MIG mode, `gpus` has the slice
that a process gets. Without an NVIDIA driver `driver` and `cuda_driver` are null and `gpus` is empty; unavailable
values are null. `driver_problem` is why an installed driver does not answer, and `other_cpu_share` the share of this
process's CPUs that other programs used meanwhile. The other keys are those of `tfbench.machine.host.host_facts`, with
`gpu_states` as in `results.schema.health.GPUFacts`; a host without GPUs adds those of
`tfbench.machine.host.processor_speed`.
"""

from __future__ import annotations

import dataclasses
import json
import os
import shutil
import sys
import time
from pathlib import Path

from tfbench.machine import host


def main() -> int:
    """Print the facts."""
    before = host.read_cpu_use()
    reported = {
        **host.host_facts(),
        "disk_free_bytes": shutil.disk_usage("/").free,  # in a container: the engine's storage
    }
    if not reported["gpus"]:  # with GPUs, estimates follow from their specification
        reported |= host.processor_speed()
    else:
        time.sleep(host.CPU_USE_SECONDS)
    reported["other_cpu_share"] = host.other_cpu_share(before, host.read_cpu_use(), reported["cpu_limit"])
    reported["load"] = os.getloadavg()[0]
    reported["boot_id"] = host.read_text(Path("/proc/sys/kernel/random/boot_id")).strip() or None  # the host's
    sys.stdout.write(json.dumps(reported, default=dataclasses.asdict) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
