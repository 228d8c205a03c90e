"""Estimates of duration and cost for plans, budgets, time limits in queues and the remaining time.

The duration of a repeat is the median of recent runs, otherwise computed from the network's work (`results.reference`)
and the host's speed, otherwise a guess.
"""

from __future__ import annotations

import contextlib
import json
import statistics
import time
from collections import Counter, defaultdict
from dataclasses import dataclass
from pathlib import Path

from orchestrate.inventory.hosts import Host
from orchestrate.planning.facts import Facts
from orchestrate.planning.plan import HostPlan, Plan
from results.reference.gpus import loosest_figures, specified_gpus
from results.reference.networks import work_of
from results.schema import Case, Device, Precision

GUESSED_REPEAT_SECONDS = 150.0
"""Default for an unknown repeat: start, compilation, warm-up and 100 steps on a current GPU (a guess)."""

MAX_EARLIER_RUNS = 20

CPU_UTILISATION, AVX2_UTILISATION = 1.5, 0.5
"""Rates of training relative to NumPy's matrix products: 1.45 to 1.62 for four networks on two cores of an AMD EPYC,
where oneDNN's convolutions use instructions that NumPy's library does not; 0.39 to 0.60 on one without AVX-512."""

CORE_FLOPS = 5e10
"""Default for a core that was not probed: 16 fp32 operations per cycle at 3 GHz."""

GPU_UTILISATION, GPU_BANDWIDTH_SHARE = 0.8, 0.7
"""Shares of a GPU's peak and of its bandwidth. A step takes the sum of both times, because some of its layers are bound
by one and some by the other. Best fit of a grid search to 174 published rows of one GPU: half of them are within a
factor of 1.23, 90 % within 1.6, as a test checks."""

PEAK_OF = {Precision.FP32: "fp32", Precision.TF32: "tf32_tensor"}
HALF_PEAK = "fp16_tensor_fp32_accumulate"

LOOP_SECONDS = 0.068
"""Duration of the probe's loop on the machine where the following values were measured."""

START_SECONDS = 6.0
"""Overhead of a process on a CPU: Python, TensorFlow, writing and collecting the record."""

GPU_START_SECONDS = 15.0
"""Overhead of a process on a GPU: also the container, CUDA, its libraries and their first kernels (a guess)."""

LAYER_BUILD_SECONDS = 0.012
LAYER_COMPILE_SECONDS = 0.019
"""Per layer: building the model; tracing and optimising its step."""

CPU_PEAKS_SECONDS, GPU_PEAKS_SECONDS = 6.0, 8.0
"""Measuring a device's peaks, once per host, run and precision."""

DEVICE_CASE_SECONDS = 90.0
"""Duration of a case with mode `device`: about thirty benchmarks of 0.4 s to 4 s, and their start."""

SETTLING = 1.5
"""Actual warm-up steps per requested step, if windows are compared (10 or more)."""

IMAGE_BYTES = {"cpu": 0.45e9, "cuda": 1.9e9}
PULL_BYTES_PER_SECOND = 30e6
"""Rate of a pull, including unpacking, relative to the compressed size (a guess)."""


Durations = dict[tuple[str, str], tuple[float, str]]
"""Seconds of a repeat and where they are from, in words, by fleet and case name."""

GUESS = (GUESSED_REPEAT_SECONDS, "guessed")
"""Of a repeat whose duration is unknown."""


def known_durations(plan: Plan, runs_dir: Path) -> Durations:
    """Return the durations of a plan's repeats, from the runs of a folder or else computed."""
    return computed_durations(plan) | earlier_durations(runs_dir)


def earlier_durations(runs_dir: Path) -> Durations:
    """Return the median durations of repeats in the latest runs.

    Truncated lines of journals, and those of another version, are ignored.
    """
    seconds = defaultdict[tuple[str, str], list[float]](list)
    journals = sorted(runs_dir.glob("*/events.jsonl"), key=lambda path: path.stat().st_mtime, reverse=True)
    for journal in journals[:MAX_EARLIER_RUNS]:
        with journal.open(encoding="utf-8", errors="replace") as lines:
            for line in lines:
                if '"job_result"' in line:  # a large run has 250,000 other lines
                    with contextlib.suppress(ValueError, KeyError, TypeError, AttributeError):
                        event = json.loads(line)
                        if event["status"] == "ok":
                            seconds[event["fleet"], event["case"]].append(float(event["seconds"]))
    return {key: (statistics.median(values), "from earlier runs") for key, values in seconds.items()}


def computed_durations(plan: Plan) -> Durations:
    """Return the computed durations of a plan's repeats on the slowest host.

    Repeats with an unknown GPU or network are excluded.
    """
    found, source = Durations(), "computed from the networks' work and the hosts' speed"
    for entry in plan.hosts:
        for case in {job.case.name: job.case for job in plan.jobs_on(entry.host)}.values():
            if (seconds := repeat_seconds(case, entry.host, entry.facts)) is not None:
                key = entry.host.fleet, case.name
                found[key] = max((seconds, source), found.get(key, (0.0, source)))
    return found


def host_seconds(entry: HostPlan) -> float:
    """Return the seconds that a host spends once per run, on pulling images and measuring its devices' peaks."""
    jobs = [job for job in entry.jobs if job.blocked is None]
    variants = {job.origin.variant for job in jobs if job.origin.image is not None}
    pulled = sum(IMAGE_BYTES["cpu" if variant == "cpu" else "cuda"] for variant in variants) / PULL_BYTES_PER_SECOND
    kinds = {(job.case.device, job.case.precision) for job in jobs}
    return pulled + sum(CPU_PEAKS_SECONDS if device is Device.CPU else GPU_PEAKS_SECONDS for device, _ in kinds)


def repeat_seconds(case: Case, host: Host, facts: Facts | None) -> float | None:
    """Return the time of a repeat from its start to its record; None: unknown."""
    slowness = ((facts and facts.cpu_loop_seconds) or LOOP_SECONDS) / LOOP_SECONDS
    if case.model == "device":
        return DEVICE_CASE_SECONDS * slowness
    work, step = work_of(case), step_seconds(case, host, facts)
    if work is None or step is None:
        return None
    traced = work[2] * (LAYER_BUILD_SECONDS + LAYER_COMPILE_SECONDS * (2 if case.replicas > 1 else 1))
    start = START_SECONDS if case.device is Device.CPU else GPU_START_SECONDS
    warm = case.warmup_steps * (SETTLING if case.warmup_steps >= 10 else 1.0)
    timed = max(case.num_steps * step, (case.min_seconds or 0.0) + 1.5 * step)
    return (start + traced) * slowness + (2 + warm) * step + timed


def step_seconds(case: Case, host: Host, facts: Facts | None) -> float | None:
    """Return the time of a step; None: the network or GPU is not in the reference, or the host was not probed."""
    work = work_of(case)
    if facts is None or work is None:
        return None
    flops, traffic, _ = work
    if case.device is Device.CPU:
        cores = facts.cpu_limit or 1.0
        peak = facts.cpu_flops_per_second or CORE_FLOPS * cores
        share = min(1.0, (host.cpus or cores) / cores)
        utilisation = AVX2_UTILISATION if facts.cpu_vector_bits == 256 else CPU_UTILISATION
        return case.num_gpus * flops / (peak * utilisation * share)  # logical devices share one processor
    members = specified_gpus(facts.gpus[0].name) if facts.gpus else ()
    figures = loosest_figures(members) if members else {}
    compute, bandwidth = figures.get(PEAK_OF.get(case.precision, HALF_PEAK)), figures.get("memory_bandwidth")
    if compute is None or bandwidth is None:
        return None
    return flops / (compute * 1e12 * GPU_UTILISATION) + traffic / (bandwidth * 1e9 * GPU_BANDWIDTH_SHARE)


@dataclass(frozen=True)
class RunEstimate:
    """Estimated duration and cost of a run or a part of it.

    Attributes:
        seconds: Until the slowest host is done.
        usd: All hosts together, without the time in which they wait for others; None: not every host has a price.
        basis: Number of repeats by where their durations are from, in words.
    """

    seconds: float
    usd: float | None
    basis: Counter[str]


def estimate(plan: Plan, durations: Durations) -> RunEstimate:
    """Estimate duration and cost of a plan."""
    seconds, usd, basis = list[float](), list[float](), Counter[str]()
    for entry in plan.hosts:
        keys = [(job.origin.fleet, job.case.name) for job in plan.jobs_on(entry.host) if job.blocked is None]
        slots = max(1, min(entry.host.slots, len(keys)))  # of a queue, which share the time of its repeats
        seconds.append(host_seconds(entry) + sum(durations.get(key, GUESS)[0] for key in keys) / slots)
        if (hourly := hourly_usd(entry)) is not None:
            usd.append(seconds[-1] * slots * hourly / 3600)
        basis.update(durations.get(key, GUESS)[1] for key in keys)
    return RunEstimate(max(seconds), sum(usd) if len(usd) == len(seconds) else None, basis)


def usd_text(usd: float) -> str:
    """Format an amount in USD with two digits that are not zero: `12.50`, `0.17`, `0.0042`."""
    return f"{usd:.2f}" if usd >= 0.1 or usd == 0 else f"{usd:.2g}"


def hourly_usd(entry: HostPlan, gpu_count: int = 0) -> float | None:
    """Return the cost of a host per hour: all its GPUs, because a machine is rented as a whole; None: no price.

    Args:
        entry: The host's part of the plan.
        gpu_count: Its number of GPUs, if the plan has no facts.
    """
    price = entry.host.usd_per_gpu_hour
    if price is None:
        return None
    gpus = len(entry.facts.gpus) if entry.facts else gpu_count
    return price * max(1, gpus)


def clock_seconds() -> float:
    """Return the seconds of a clock that goes on while this machine sleeps, as benchmarks and costs do."""
    return time.clock_gettime(getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC))
