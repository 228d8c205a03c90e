"""Facts that a host reports before anything is measured on it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

from pydantic import AfterValidator

from orchestrate.errors import LaunchFailed
from orchestrate.text import plain_text, plain_values, read_json
from results.runs.reading import checked
from results.schema import GPU, Status
from results.schema.health import GPUFacts, driver_fix

MAX_PROBE_BYTES = 256 * 1024

Measured = Annotated[
    float | None, AfterValidator(lambda value: value if value is not None and 1e-6 <= value <= 1e18 else None)
]
"""A rate or duration that plans calculate with; an impossible value counts as not reported."""


@dataclass(frozen=True, kw_only=True)
class Image:
    """An image for a host, and whether it can be started there.

    Attributes:
        variant: Row of `containers/images.toml`; None: a custom image.
        reference: E.g. `REGISTRY/tfbench:VERSION-VARIANT`.
        reason: Why it was chosen, or why it cannot be started.
        status: `ok`, or the status of every repeat with it: `unsupported`, `driver_too_old`, `pull_failed`, …
        digest: `sha256:…` of the resolved tag; None: unknown.
    """

    variant: str | None
    reference: str
    reason: str
    status: Status = Status.OK
    digest: str | None = None


@dataclass(frozen=True, kw_only=True)
class Facts:
    """The facts of a host: what `python -m tfbench.probe` reports, which is not trusted; None: not reported.

    Attributes:
        cpu_limit: CPUs that a benchmark may use; may be fractional.
        gpus: In the driver's order, with its indices.
        gpu_problems: Unusable GPUs, e.g. `7 of 8 GPUs answer: GPU 3 (0000:3B:00.0) is lost`.
        gpu_states: States of `gpus` during the probe, in the same order; empty: not reported.
        driver_problem: Why an installed NVIDIA driver does not answer, in its own words.
        disk_free_bytes: Free space for containers.
        cpu_flops_per_second: fp32 matrix products on all cores, measured by the probe on hosts without GPUs.
        cpu_loop_seconds: Duration of the probe's loop of Python code.
        cpu_vector_bits: Width of the CPU's vector instructions, 256 or 512.
        other_cpu_share: Share of its CPUs that other programs used during the probe.
        load: Mean number of processes that ran or waited for a CPU in the last minute.
        boot_id: The same for all hosts of `hosts.yml` that are one machine, in containers or not.
        architecture: As in image registries, e.g. `amd64`; this and all below is never the probe's.
        engine: Name and version of the Docker engine; None without one.
        gpu_runtime: How the engine passes GPUs to containers; None: it cannot, or there is no engine.
        images: Images for benchmarks; empty without Docker.
    """

    cpu: str | None = None
    cpu_count: int | None = None
    cpu_limit: float | None = None
    memory_bytes: int | None = None
    driver: str | None = None
    gpus: tuple[GPU, ...] = ()
    gpu_states: tuple[GPUFacts, ...] = ()
    gpu_problems: tuple[str, ...] = ()
    driver_problem: str | None = None
    disk_free_bytes: int | None = None
    cpu_flops_per_second: Measured = None
    cpu_loop_seconds: Measured = None
    cpu_vector_bits: int | None = None
    other_cpu_share: float | None = None
    load: float | None = None
    boot_id: str | None = None
    architecture: str | None = None
    engine: str | None = None
    gpu_runtime: str | None = None
    images: tuple[Image, ...] = ()

    @property
    def problem(self) -> str | None:
        """Why nothing can be measured on the host, or None."""
        if not self.images or any(image.status is Status.OK for image in self.images):
            return None
        return self.images[0].reason

    def gpu_memory_bytes(self, indices: Sequence[int] | None) -> int | None:
        """Return the memory of the smallest of these GPUs; None: of all."""
        chosen = [gpu for gpu in self.gpus if indices is None or gpu.index in indices]
        return min((gpu.memory_bytes for gpu in chosen if gpu.memory_bytes), default=None)


ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}
"""Names of architectures in image registries, by those of kernels."""


NOT_PROBED = {"architecture", "engine", "gpu_runtime", "images"}
"""Facts that do not come from the probe, whatever it says."""


def facts_from_probe(text: str | bytes, *, wants_gpus: bool = True) -> Facts:
    """Parse the output of a probe.

    Args:
        text: The output, untrusted.
        wants_gpus: Whether GPUs of the host may be used; then an installed driver has to answer.

    Raises:
        LaunchFailed: The output is malformed, or the driver does not work: with its own words and a remedy.
    """
    try:
        document = plain_values(read_json(text, MAX_PROBE_BYTES), 500)
        if not isinstance(document, dict) or "gpus" not in document:
            raise ValueError("no object with gpus")
        facts = checked(Facts, {name: value for name, value in document.items() if name not in NOT_PROBED})
    except ValueError as error:
        raise LaunchFailed(f"the answer of the probe is malformed: {plain_text(str(error), 300)}") from error
    if wants_gpus and (problem := facts.driver_problem) is not None and not facts.gpus:
        raise LaunchFailed(
            f"the NVIDIA driver does not work: {problem}. To fix it: {driver_fix(problem)}. To measure the CPU on "
            "purpose, set device: cpu",
            Status.NO_GPU,
        )
    return facts
