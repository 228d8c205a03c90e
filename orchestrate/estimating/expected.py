"""How long a repeat takes on a host where nothing like it ran: computing, moving, and its start."""

from __future__ import annotations

from dataclasses import dataclass

from orchestrate.inventory.hosts import Host
from orchestrate.planning.facts import Facts
from orchestrate.planning.plan import HostPlan, Plan
from results.reference.gpus import loosest_figures, specified_gpus
from results.reference.networks import work_of
from results.schema import Case, Device, Precision

CPU_UTILISATION = 1.5
"""Rate of training over that of NumPy's matrix products: 1.45 to 1.62 for four networks on two cores of an AMD EPYC.
There, oneDNN's convolutions use instructions that NumPy's library does not."""

CORE_FLOPS = 5e10
"""Of one core that was not probed: 16 fp32 operations a cycle at 3 GHz."""

GPU_UTILISATION, GPU_BANDWIDTH_SHARE = 0.8, 0.7
"""Shares of a card's peak and of its bandwidth; a step takes the sum of both times, because its layers take turns in
being bound by either. Of a grid, what suits 174 published rows of one GPU best: half of them are within a factor of
1.23, nine in ten within 1.6, and a test holds it to that."""

PEAK_OF = {Precision.FP32: "fp32", Precision.TF32: "tf32_tensor"}
HALF_PEAK = "fp16_tensor_fp32_accumulate"

LOOP_SECONDS = 0.068
"""What the probe's loop took on the machine that the following seconds were measured on."""

START_SECONDS = 6.0
"""Of a process on a CPU: Python, TensorFlow, the record and its collection."""

GPU_START_SECONDS = 15.0
"""Of a process on a GPU: also the container, CUDA, its libraries and their first kernels (not measured: a guess)."""

LAYER_BUILD_SECONDS = 0.012
LAYER_COMPILE_SECONDS = 0.019
"""Of each layer: building the model; tracing and optimising its step."""

CPU_PEAKS_SECONDS, GPU_PEAKS_SECONDS = 6.0, 8.0
"""Limits of a device: once on a host, run and precision."""

DEVICE_CASE_SECONDS = 90.0
"""Of a case that measures the devices alone: about thirty benchmarks of 0.4 s to 4 s, and their start."""

SETTLING = 1.5
"""Warm-up steps that are taken for each that is asked for, where warm-up seeks evidence (10 or more)."""

IMAGE_BYTES = {"cpu": 0.45e9, "cuda": 1.9e9}
PULL_BYTES_PER_SECOND = 30e6
"""Of a pull: compressed images of this size, unpacked as they come (a guess; what is there takes no time)."""


@dataclass(frozen=True)
class Speed:
    """How fast a host is.

    Attributes:
        flops_per_second: What training reaches, of one device.
        bytes_per_second: None: operations alone count.
        slowness: Time of Python code, over that on the machine whose seconds stand above.
    """

    flops_per_second: float
    bytes_per_second: float | None
    slowness: float


def expected_durations(plan: Plan) -> dict[tuple[str, str], float]:
    """Return how long each repeat of a plan takes, as computed: seconds by fleet and case name.

    What cannot be computed (an unknown card or network) is left out.
    """
    found: dict[tuple[str, str], list[float]] = {}
    for entry in plan.hosts:
        for job in {job.case.name: job for job in entry.jobs}.values():
            seconds = repeat_seconds(job.case, entry.host, entry.facts)
            if seconds is not None:
                found.setdefault((entry.host.fleet, job.case.name), []).append(seconds)
    for gang in plan.gangs:
        chief = next((entry for entry in plan.hosts if entry.host.place == gang.members[0].place), None)
        seconds = None if chief is None else repeat_seconds(gang.job.case, chief.host, chief.facts)
        if seconds is not None:
            found.setdefault((gang.job.origin.fleet, gang.job.case.name), []).append(seconds)
    return {key: max(values) for key, values in found.items()}


def host_seconds(entry: HostPlan) -> float:
    """Return what a host does once in a run, whatever its repeats: fetching images, and the limits of its devices."""
    jobs = [job for job in entry.jobs if job.blocked is None]
    variants = {job.origin.variant for job in jobs if job.origin.image is not None}
    pulled = sum(IMAGE_BYTES["cpu" if variant == "cpu" else "cuda"] for variant in variants) / PULL_BYTES_PER_SECOND
    kinds = {(job.case.device, job.case.precision) for job in jobs}
    return pulled + sum(CPU_PEAKS_SECONDS if device is Device.CPU else GPU_PEAKS_SECONDS for device, _ in kinds)


def repeat_seconds(case: Case, host: Host, facts: Facts | None) -> float | None:
    """Return how long a repeat takes from its start to its record; None: nobody can know."""
    slowness = 1.0 if facts is None or facts.cpu_loop_seconds is None else facts.cpu_loop_seconds / LOOP_SECONDS
    if case.model == "device":
        return DEVICE_CASE_SECONDS * slowness
    work, speed = work_of(case), speed_of(case, host, facts)
    if work is None or speed is None:
        return None
    flops, traffic, layers = work
    shared = case.num_gpus if case.device is Device.CPU else 1  # logical devices share one processor
    step = shared * flops / speed.flops_per_second
    if speed.bytes_per_second is not None:
        step += traffic / speed.bytes_per_second
    traced = layers * (LAYER_BUILD_SECONDS + LAYER_COMPILE_SECONDS * (2 if case.replicas > 1 else 1))
    start = START_SECONDS if case.device is Device.CPU else GPU_START_SECONDS
    warm = case.warmup_steps * (SETTLING if case.warmup_steps >= 10 else 1.0)
    timed = max(case.num_steps * step, (case.min_seconds or 0.0) + 1.5 * step)
    return (start + traced) * speed.slowness + (1 + warm) * step + timed


def speed_of(case: Case, host: Host, facts: Facts | None) -> Speed | None:
    """Return how fast a host trains a case; None: its card is not in the reference, or it reported nothing."""
    if facts is None:
        return None
    slowness = 1.0 if facts.cpu_loop_seconds is None else facts.cpu_loop_seconds / LOOP_SECONDS
    if case.device is Device.CPU:
        cores = facts.cpu_limit or 1.0
        peak = facts.cpu_flops_per_second or CORE_FLOPS * cores
        share = min(1.0, (host.cpus or cores) / cores)
        return Speed(peak * CPU_UTILISATION * share, None, slowness)
    members = specified_gpus(facts.gpus[0].name) if facts.gpus else ()
    figures = loosest_figures(members) if members else {}
    compute, bandwidth = figures.get(PEAK_OF.get(case.precision, HALF_PEAK)), figures.get("memory_bandwidth")
    if compute is None or bandwidth is None:
        return None
    return Speed(compute * 1e12 * GPU_UTILISATION, bandwidth * 1e9 * GPU_BANDWIDTH_SHARE, slowness)
