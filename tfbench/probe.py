"""Print the facts of this machine as one line of JSON on stdout, without importing TensorFlow.

    python -m tfbench.probe

    {"cpu": "AMD EPYC 7313", "cpu_count": 32, "cpu_limit": 2.0, "memory_bytes": 270582939648,
     "kernel": "6.1.0-18-amd64", "operating_system": "Debian GNU/Linux 12 (bookworm)", "python": "3.11.2",
     "tensorflow": "2.21.0", "keras": "3.15.1", "driver": "550.54.14", "cuda_driver": "12.4",
     "gpus": [{"index": 0, "name": "NVIDIA RTX A4000", "uuid": "GPU-…", "compute_capability": "8.6",
               "memory_bytes": 17171480576, "power_limit_watts": 140.0}]}

`cpu_limit` is the smaller of affinity and container limit and may be fractional; `memory_bytes` likewise.
Without an NVIDIA driver `driver` and `cuda_driver` are null and `gpus` is empty; what a package or card does
not tell is null. The keys are those of `tfbench.host.HostFacts`; keys are added, never renamed.
"""

from __future__ import annotations

import dataclasses
import json
import sys

from tfbench.host import host_facts


def main() -> int:
    """Print the facts."""
    sys.stdout.write(json.dumps(dataclasses.asdict(host_facts())) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
