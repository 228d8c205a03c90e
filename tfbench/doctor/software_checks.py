"""Judges the driver, NVIDIA's libraries, and what TensorFlow could do with them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from tfbench.doctor.facts import NAMES, Facts
from tfbench.doctor.findings import Finding, Level
from tfbench.doctor.libraries import Library
from tfbench.doctor.machine import MachineFacts
from tfbench.machine.cuda_libraries import opened_libraries
from tfbench.measuring.soft_warnings import needs_ptx_jit

CUDA_FIXES = {
    "(100)": "check CUDA_VISIBLE_DEVICES, and that the container was given GPUs (--gpus all)",
    "(802)": "sudo systemctl restart nvidia-fabricmanager (its version must be the driver's)",
    "(803)": "libcuda is of another version than the kernel's driver: restart after a driver update, and take CUDA's "
    "compat folder out of LD_LIBRARY_PATH",
    "(804)": "this GPU cannot use the cuda-compat package: take it out of LD_LIBRARY_PATH",
    "(999)": "sudo modprobe nvidia_uvm, or restart the machine",
}
"""By the code in what `cuInit` failed with."""


def check_software(facts: Facts) -> list[Finding]:
    """Judge driver, libraries and TensorFlow; for a CPU TensorFlow alone."""
    if facts.device == "cpu":
        return list(_tensorflow(facts))
    return [*_driver(facts), *_tensorflow(facts), *_libraries(facts), *_devices(facts), *_all_reduce(facts)]


def _driver(facts: Facts) -> Iterator[Finding]:
    driver, machine = facts.driver, facts.machine
    if driver.problem is not None:
        yield Finding(
            level=Level.BLOCKER,
            code="no_driver",
            subject="driver",
            seen=f"no NVIDIA driver ({driver.problem})",
            why="no case can run on a GPU",
            fix=_driver_fix(machine),
        )
        return
    if driver.cuda_problem is not None:
        known = (fix for code, fix in CUDA_FIXES.items() if driver.cuda_problem.endswith(code))
        yield Finding(
            level=Level.BLOCKER,
            code="cuda_not_ready",
            subject="driver",
            seen=f"CUDA does not start ({driver.cuda_problem})",
            why="nvidia-smi works without CUDA, TensorFlow does not",
            fix=next(known, "restart the machine; in a container check --gpus all and NVIDIA_DRIVER_CAPABILITIES"),
        )
    elif not any(gpu.problem is None for gpu in driver.gpus):
        yield Finding(
            level=Level.BLOCKER,
            code="no_gpu",
            subject="driver",
            seen=f"driver {driver.version}, but no GPU answers",
            why="no case can run on a GPU",
            fix="start the container with --gpus all" if machine.container else "sudo dmesg | grep -i nvrm",
        )


def _driver_fix(machine: MachineFacts) -> str:
    on_bus = f"{len(machine.pci_gpus)} NVIDIA GPU{'s are' if len(machine.pci_gpus) > 1 else ' is'} on the PCI bus"
    if machine.container and machine.pci_gpus:
        return f"{on_bus}: start the container with --gpus all (the host needs the NVIDIA container toolkit)"
    if machine.kernel_driver is not None:
        return "the kernel's driver and its library differ: restart the machine after a driver update"
    if machine.pci_gpus:
        return f"{on_bus}: install the driver, and load it with sudo modprobe nvidia"
    hidden = ", or start the container with --gpus all if its host has one" if machine.container else ""
    return f"use a machine with an NVIDIA GPU{hidden}; python -m tfbench.doctor --device=cpu looks at the CPU only"


def _tensorflow(facts: Facts) -> Iterator[Finding]:
    trial = facts.trial
    if trial.problem is not None:
        imported = trial.tensorflow is not None
        yield Finding(
            level=Level.BLOCKER,
            code="tensorflow_failed",
            subject="TensorFlow",
            seen=f"TensorFlow {trial.problem}",
            why="cases would end the same way",
            fix=_trial_fix(trial.problem, facts.device)
            if imported
            else "install TensorFlow again, or use this project's image",
            gpu_only=imported,
        )
    elif trial.tensorflow is None:
        yield Finding(
            level=Level.BLOCKER,
            code="no_tensorflow",
            subject="TensorFlow",
            seen="TensorFlow printed nothing",
            why="no case can run",
            fix="install TensorFlow, or use this project's image",
            gpu_only=False,
        )
    if trial.wrong:
        yield Finding(
            level=Level.BLOCKER,
            code="wrong_product",
            subject=", ".join(trial.wrong),
            seen=f"a small matrix product on {', '.join(trial.wrong)} was wrong, or computed elsewhere",
            why="its numbers would be worthless",
            fix="replace the card, or leave it out with CUDA_VISIBLE_DEVICES" if facts.device == "gpu" else None,
            gpu_only=facts.device == "gpu",
        )


def _trial_fix(problem: str, device: str) -> str:
    if NAMES["all_reduce"] in problem:
        return "NCCL_DEBUG=INFO python -m tfbench.doctor.trial gpu shows why; with NCCL_P2P_DISABLE=1 it may work"
    return f"TF_CPP_MIN_LOG_LEVEL=0 python -m tfbench.doctor.trial {device} shows why; nvidia-smi -q the GPUs' state"


def _libraries(facts: Facts) -> Iterator[Finding]:
    """Name what TensorFlow opens and cannot; which names it opens depends on its build."""
    trial = facts.trial
    if trial.tensorflow is None:
        return
    if trial.cuda is None:
        yield Finding(
            level=Level.BLOCKER,
            code="cpu_build",
            subject="TensorFlow",
            seen=f"TensorFlow {trial.tensorflow} is a build without CUDA",
            why="it uses no GPU",
            fix="pip install 'tensorflow[and-cuda]', or one of this project's CUDA images",
        )
        return
    wanted = opened_libraries(trial.tensorflow, trial.cuda, trial.cudnn)
    stems = {name.partition(".so")[0] for name in wanted}
    missing = [item for item in facts.libraries if item.file is None and _stem(item) in stems]
    if missing:
        yield Finding(
            level=Level.DOUBT if trial.gpus else Level.BLOCKER,
            code="libraries_missing",
            subject="CUDA libraries",
            seen=f"{', '.join(item.name for item in missing)} cannot be loaded ({missing[0].problem})",
            why="TensorFlow accepts no GPU where one of its libraries is missing",
            fix="pip install 'tensorflow[and-cuda]' installs them next to TensorFlow; else set LD_LIBRARY_PATH",
        )
    empty = [item.name for item in facts.libraries if item.file is not None and item.problem is not None]
    if empty:
        yield Finding(
            level=Level.NOTE,
            code="libraries_empty",
            subject="CUDA libraries",
            seen=f"{', '.join(empty)}: empty stand-ins without functions",
            why="what calls them fails; no network of tfbench does",
            fix="SLIM=full builds an image with NVIDIA's own",
        )
    if any(item.name == "ptxas" and item.path is None for item in facts.libraries):
        yield Finding(
            level=Level.NOTE,
            code="no_ptxas",
            subject="ptxas",
            seen="ptxas was not found",
            why="XLA (--xla) compiles by the driver instead, or fails",
            fix="pip install nvidia-cuda-nvcc-cu12",
        )


_STEMS = {
    "CUDA runtime": "libcudart",
    "cuBLASLt": "libcublasLt",
    "cuBLAS": "libcublas",
    "cuDNN": "libcudnn",
    "NCCL": "libnccl",
    "cuFFT": "libcufft",
    "cuSPARSE": "libcusparse",
    "cuSOLVER": "libcusolver",
}


def _stem(item: Library) -> str | None:
    return _STEMS.get(item.name)


def _devices(facts: Facts) -> Iterator[Finding]:
    """Compare what TensorFlow sees with what the driver has."""
    trial, driver = facts.trial, facts.driver
    if trial.gpus is None or trial.cuda is None or driver.problem is not None:
        return
    expected = len(driver.cuda_devices)
    if len(trial.gpus) < expected:
        yield Finding(
            level=Level.DOUBT if trial.gpus else Level.BLOCKER,
            code="gpus_not_seen",
            subject="TensorFlow",
            seen=f"TensorFlow sees {len(trial.gpus)} of {expected} GPUs that CUDA offers",
            why="cases on more GPUs end with no_gpu",
            fix="TF_CPP_MIN_LOG_LEVEL=0 python -m tfbench.doctor.trial gpu shows which library is missing",
        )
    capabilities: Sequence[str | None] = [gpu.compute_capability for gpu in driver.gpus if gpu.problem is None]
    old = sorted({c for c in capabilities if c and needs_ptx_jit(c, trial.capabilities)})
    if old:
        yield Finding(
            level=Level.DOUBT,
            code="ptx_jit",
            subject="TensorFlow",
            seen=f"TensorFlow {trial.tensorflow} has no machine code for compute capability {', '.join(old)}",
            why="the driver compiles its kernels from PTX at the first use: minutes, and they may be slower"
            + (f"; the cache {facts.machine.cache_problem}" if facts.machine.cache_problem else ""),
            fix="use a TensorFlow that was built for this GPU (python -m orchestrate images list)",
        )


def _all_reduce(facts: Facts) -> Iterator[Finding]:
    trial = facts.trial
    if trial.all_reduce is False:
        yield Finding(
            level=Level.BLOCKER,
            code="all_reduce_wrong",
            subject="NCCL",
            seen=f"an all-reduce over {len(trial.gpus or ())} GPUs gave a wrong sum: {trial.all_reduce_reason}",
            why="training on several GPUs would be wrong",
            fix="NCCL_P2P_DISABLE=1 python -m tfbench.doctor; where that helps, disable ACS and the IOMMU in the BIOS",
        )
