"""Warnings about a valid measurement, each with a figure, the likely cause and a hint."""

from __future__ import annotations

import math
import re
import statistics
from collections.abc import Iterator, Sequence

from results.schema import Case, Data, Device, Environment, Measurement, Precision, SoftWarning, Telemetry
from results.schema.health import MAX_IDLE_UTILISATION, GPUFacts, Moment, health_warnings
from tfbench.peers import Peers

CV_LIMITS = {Device.GPU: 0.02, Device.CPU: 0.10}
"""Standard deviation of the steps over their mean above which other programs probably used the machine.

A CPU also runs the operating system: on an idle virtual machine of two cores, steps of four networks varied by 2.3 to
3.7 %; with as many other processes as cores, by 9 to 30 %.
"""

DRIFT_LIMITS = {Device.GPU: 0.02, Device.CPU: 0.05}
"""Change from the first third of the steps to the last above which drift is reported, by device."""

DRIFT_ERRORS = 4.0
"""A drift must exceed this many of its standard errors, so that the spread of a few steps does not count as drift: of
comparisons of 3 with 3 normal steps without drift, 1.6 % exceed it (t with 4 degrees of freedom)."""

HOST_LEAD_SHARE, MAX_HOST_LEAD_SECONDS = 0.25, 2e-3
"""A GPU waits for the host if a step ends this soon after its launch: by share of the step, and at most.

With two steps in flight, a step that the host did not delay ends about two steps after its launch, less what the launch
took; or, if CUDA's queue of about 1,000 launches was full, as long after it as these take, which is more than 2 ms.
"""

UTILISATION_LIMIT = 0.95
ENERGY_DIFFERENCE_LIMIT = 0.1


def soft_warnings(
    case: Case, environment: Environment, measurement: Measurement | None, telemetry: Telemetry
) -> list[SoftWarning]:
    """Return the warnings about a finished measurement.

    Args:
        case: What was measured.
        environment: Software and hardware.
        measurement: Figures of the network; None: only the devices were measured.
        telemetry: Observed while timing.
    """
    of_steps = []
    if measurement is not None:
        of_steps = [*_of_steps(case.device, measurement), *_of_bottlenecks(case, measurement)]
    waits_for_cpu = case.device is Device.CPU or any(warning.code in WAITS_FOR_CPU for warning in of_steps)
    return [*of_steps, *_of_telemetry(telemetry, waits_for_cpu), *_of_the_software(case, environment)]


def gpu_warnings(peers: Peers, of_machine: Sequence[SoftWarning], gpus: Sequence[GPUFacts]) -> list[SoftWarning]:
    """Evaluate the rules of `results.schema.health` for the GPUs of all hosts of a case.

    Args:
        peers: The other hosts; each of them calls this at the same time.
        of_machine: GPUs of this machine that no process can use.
        gpus: Those of the case on this host, over the timed steps.
    """
    own = list(of_machine)
    for gpu in gpus:
        for found in health_warnings(gpu, Moment.TIMING):
            message, figures = f"{gpu.label}: {found.seen}: {found.why}", {"value": found.value, "limit": found.limit}
            own.append(SoftWarning(code=found.code, message=message, hint=found.fix, **figures))
    reported = peers.gather("warnings", [vars(warning) for warning in own])
    if len(reported) == 1:
        return own
    return [
        SoftWarning(**{**values, "message": f"rank {rank}: {values['message']}"})
        for rank, of_rank in enumerate(reported)
        for values in of_rank
    ]


def _of_steps(device: Device, measurement: Measurement) -> Iterator[SoftWarning]:
    cv, limit = measurement.step_cv, CV_LIMITS[device]
    if cv is not None and cv > limit:
        message = f"step times vary by {cv:.1%} (CV): something else used the machine, or its clock moved"
        hint = "look for other processes with top and nvidia-smi; time for longer with --min_seconds"
        yield SoftWarning(code="high_cv", message=message, value=cv, limit=limit, hint=hint)
    change, limit = measurement.step_drift, drift_limit(device, measurement.step_seconds[:: measurement.steps_per_wait])
    if change is not None and abs(change) > limit:
        than = f"{abs(change):.1%} {'slower' if change > 0 else 'faster'} than the first"
        message = f"the last third of the steps was {than}: heat, or too short a warm-up"
        hint = f"--warmup_steps={2 * max(10, measurement.warmup_steps)}"
        yield SoftWarning(code="drift", message=message, value=change, limit=limit, hint=hint)
    if measurement.warmup_settled is False:
        message = f"step times had not settled after {measurement.warmup_steps} steps of warm-up"
        hint = f"--max_warmup_steps={4 * measurement.warmup_steps}"
        yield SoftWarning(code="warmup_not_settled", message=message, hint=hint)


def drift_limit(device: Device, step_seconds: Sequence[float]) -> float:
    """Return the drift from which on it is reported: large enough to matter, and not explained by the spread of steps.

    Args:
        device: What the steps ran on.
        step_seconds: Durations, in order, each of a wait of its own.
    """
    third = len(step_seconds) // 3
    if third < 2:
        return DRIFT_LIMITS[device]
    first, last = step_seconds[:third], step_seconds[-third:]
    error = math.sqrt((statistics.variance(first) + statistics.variance(last)) / third) / statistics.fmean(first)
    return max(DRIFT_LIMITS[device], DRIFT_ERRORS * error)


def _of_bottlenecks(case: Case, measurement: Measurement) -> Iterator[SoftWarning]:
    """Compare with the host's pace, the input's and the limits of the device.

    The host matters for one GPU that waits for no input: a step on several waits for each all-reduce, and ends soon
    after its launch.
    """
    lead, step = measurement.lead_p50_seconds, measurement.step_p50_seconds
    limit = min(HOST_LEAD_SHARE * step, MAX_HOST_LEAD_SECONDS)
    alone = case.device is Device.GPU and case.replicas == 1 and case.data is Data.SYNTHETIC
    if lead is not None and alone and lead < limit:
        ended = f"steps of {step * 1e3:.3g} ms ended {lead * 1e3:.2g} ms after the host had launched them"
        message = f"{ended}: the host sets the pace, and a faster GPU would be no faster here"
        hint = "a larger --batch_size, --xla=replica, or a host with faster or more CPUs"
        yield SoftWarning(code="host_bound", message=message, value=lead, limit=limit, hint=hint)
    share, limit = measurement.flops_utilisation, UTILISATION_LIMIT
    if share is not None and share > limit:
        of_peak = f"{share:.0%} of the matrix products' own speed on this device"
        message = f"{of_peak}: too good for a whole network; the peak was measured too low, or work is missing"
        hint = "measure again on an idle machine"
        yield SoftWarning(code="above_peak", message=message, value=share, limit=limit, hint=hint)
    rate, bound = measurement.samples_per_second, measurement.bandwidth_bound_samples_per_second
    if bound is not None and rate > bound:
        allowed = f"more than the memory bandwidth allows ({bound:.4g})"
        message = f"{rate:.4g} {measurement.unit}/s is {allowed} unless caches held the activations"
        hint = "raise --batch_size until the activations no longer fit the caches"
        yield SoftWarning(code="above_bandwidth", message=message, value=rate, limit=bound, hint=hint)
    found = measurement.input_limit
    if found is not None and found.limited:
        took = f"a step with real input took {found.step_ratio:.2f} times as long as with a batch on the device"
        waited = f"{found.wait_share:.0%} of the time went by waiting for the next batch"
        message = f"{took}, and {waited}: the input is the bottleneck"
        hint = "--data=synthetic measures the device alone; for the input, more CPUs or a faster disk"
        yield SoftWarning(code="input_limited", message=message, value=found.step_ratio, limit=found.limit, hint=hint)


WAITS_FOR_CPU = frozenset({"host_bound", "input_limited"})
"""Warnings of a GPU that waits for the CPU."""


def _of_telemetry(telemetry: Telemetry, waits_for_cpu: bool) -> Iterator[SoftWarning]:
    """Warn of other programs on the CPUs, where the CPU determines the speed, and of energy that is uncertain."""
    share, limit = telemetry.other_cpu_share, MAX_IDLE_UTILISATION
    if waits_for_cpu and share is not None and share > limit:
        message = f"other programs used {share:.0%} of the benchmark's CPUs while timing"
        hint = "top shows them: end them, and run one benchmark at a time on a host"
        yield SoftWarning(code="cpu_shared", message=message, value=share, limit=limit, hint=hint)
    counter, integrated = telemetry.energy_joules, telemetry.energy_integrated_joules
    difference = abs(integrated / counter - 1.0) if counter and integrated else 0.0
    if difference > ENERGY_DIFFERENCE_LIMIT:
        both = f"energy by counter ({counter:.4g} J) and by sampled power ({integrated:.4g} J)"
        message = f"{both} differ by {difference:.0%}: the interval is short for this GPU's power sensor"
        limit, hint = ENERGY_DIFFERENCE_LIMIT, "time at least 60 s with --num_steps"
        yield SoftWarning(code="energy_differs", message=message, value=difference, limit=limit, hint=hint)


def _of_the_software(case: Case, environment: Environment) -> Iterator[SoftWarning]:
    asked, observed = case.precision is Precision.TF32, environment.tf32_observed
    if observed is not None and observed != asked:
        seen = "does not round as TF32 does" if asked else "rounds as TF32 does"
        message = f"a matrix product on this device {seen}, but the precision is {case.precision}"
        hint = "TF32 needs a GPU of compute capability 8.0 or more; check NVIDIA_TF32_OVERRIDE"
        yield SoftWarning(code="tf32_not_as_asked", message=message, hint=hint)
    built_for = environment.wheel_compute_capabilities
    old = [gpu for gpu in environment.gpus if needs_ptx_jit(gpu.compute_capability, built_for)]
    if old and case.device is Device.GPU:
        no_code = f"{old[0].name} ({old[0].compute_capability}): this TensorFlow has no code for it"
        message = f"{no_code} and the driver compiled it from PTX, which takes minutes and may be slower"
        hint = "use an image whose TensorFlow was built for this architecture"
        yield SoftWarning(code="ptx_jit", message=message, hint=hint)


def needs_ptx_jit(compute_capability: str | None, built_for: list[str]) -> bool:
    """Return whether a build has no machine code for a GPU.

    Machine code for XY runs on compute capability X.Z with Z ≥ Y, not on another X.

    Args:
        compute_capability: e.g. `8.6`; None: unknown, and no warning.
        built_for: e.g. `["sm_80", "compute_90"]`; empty: unknown. TensorFlow's `compute_90` is machine code for 9.0,
            and PTX. Source: its configure.py, "Each capability can be specified as".
    """
    if compute_capability is None or not built_for:
        return False
    major, minor = (int(part) for part in compute_capability.split("."))
    codes = [re.fullmatch(r"(?:sm|compute)_(\d+)(\d)[a-z]?", name) for name in built_for]
    return not any(code and int(code[1]) == major and int(code[2]) <= minor for code in codes)
