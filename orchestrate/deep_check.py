"""The deep check of hosts: one case per host, run by the usual launchers, then a verdict on each.

A GPU's health is judged by the rows of `results.schema.health`, its speed by the rates here: against the median of its
fleet and its specification.
"""

from __future__ import annotations

import dataclasses
import enum
import math
import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from orchestrate.inventory.hosts import Host, HostPlace
from orchestrate.planning.facts import Facts
from orchestrate.planning.plan import HostPlan, Plan, make_plan
from orchestrate.suites import CaseBlock, Suite
from results.reference.gpus import specifications, specified_gpus
from results.schema import Device, Record, Status
from results.schema.health import PRODUCT_SHORTFALL, GPUFacts, Moment, health_warnings
from results.table.comparable import grouped
from results.text_table import Grid

FOLDER = "checks"
"""Folder of the deep checks, within the folder of the runs."""

MOST_GPUS = 16
"""Maximum number of GPUs of a host that are checked together."""

CHECK_SECONDS = 600.0
"""Time limit of a check, five times its usual duration; detects GPUs that hang."""

FAULTS_OF_THE_HOST = frozenset({Status.INVALID, Status.NO_GPU, Status.LOST, Status.TIMEOUT})
"""Statuses of a check that reject a host: wrong numbers, a lost GPU, or a hang. Other failures are warnings."""

PRODUCT_CHECK = "product_of_device_"
"""Prefix of the names of checks of a device's products, followed by its index."""

_BLOCK = {"model": "device", "num_gpus": list(range(1, MOST_GPUS + 1)), "deep_check": True}
SUITE = Suite(cases=[CaseBlock.model_validate(_BLOCK)])
"""Each device alone, then all under load."""


def plan_deep_check(hosts: Sequence[Host], probed: Mapping[HostPlace, Facts | str], run_id: str) -> Plan:
    """Plan one case per host: over all of its GPUs, or its CPU."""
    plan = make_plan(hosts, probed, lambda _: SUITE, run_id=run_id, seed=1, repeats=1)
    entries = []
    for entry in plan.hosts:
        ordered = sorted(entry.jobs, key=lambda job: job.case.num_gpus)
        on_gpus = [job for job in ordered if job.case.device is Device.GPU]
        chosen = on_gpus[-1:] or ordered[:1]  # logical devices of a CPU share it
        jobs = tuple(dataclasses.replace(job, max_seconds=CHECK_SECONDS) for job in chosen)
        entries.append(dataclasses.replace(entry, jobs=jobs, excluded=()))
    return dataclasses.replace(plan, hosts=tuple(entries))


class Acceptance(enum.StrEnum):
    """What to do with a host or a GPU, from best to worst."""

    ACCEPT = "accept"
    WARNING = "warning"
    REJECT = "reject"


_WORSE = tuple(Acceptance)


@dataclass(frozen=True)
class HostFinding:
    """Why a host or GPU is not accepted.

    Attributes:
        verdict: The verdict from this finding alone.
        figure: Name of a rate, or the code of a health rule.
        text: The figure, its reference, and the difference.
    """

    verdict: Acceptance
    figure: str
    text: str


@dataclass(frozen=True, kw_only=True)
class CheckedDevice:
    """A host, or one of its GPUs.

    Attributes:
        gpu: State under load, with the host's index; None: the host itself.
        rates: By name of `OF_HOST` or `OF_GPU`, in the record's units; only those that were measured.
        gpus: The host's GPUs; empty if nothing was measured, or on its processor.
    """

    fleet: str
    host: str
    gpu: GPUFacts | None = None
    rates: Mapping[str, float] = field(default_factory=dict)
    findings: tuple[HostFinding, ...] = ()
    gpus: tuple[CheckedDevice, ...] = ()

    @property
    def is_measured(self) -> bool:
        """Whether there are figures."""
        return bool(self.gpus or self.rates)

    @property
    def verdict(self) -> Acceptance:
        """The worst verdict on it and its GPUs."""
        verdicts = [*(finding.verdict for finding in self.findings), *(gpu.verdict for gpu in self.gpus)]
        return max(verdicts, key=_WORSE.index, default=Acceptance.ACCEPT)

    def document(self) -> dict[str, Any]:
        """Return it for JSON."""
        gpus = [gpu.document() for gpu in self.gpus]
        return {"verdict": self.verdict, **dataclasses.asdict(self), "gpus": gpus}


def checked_host(entry: HostPlan, record: Record | None) -> CheckedDevice:
    """Return a host with its figures, not judged by them yet.

    A host whose check failed is rejected if it is at fault, and gets a warning otherwise.

    Args:
        entry: The host's part of the plan.
        record: Of its check, with indices as in its container, which may have only some of the host's GPUs; None: it
            was not checked.
    """
    failures: tuple[HostFinding, ...] = ()
    if record is None or record.status is not Status.OK:
        text = f"{record.status}: {record.cause}" if record else entry.problem or "not checked"
        verdict = Acceptance.REJECT if record and record.status in FAULTS_OF_THE_HOST else Acceptance.WARNING
        failures = (HostFinding(verdict, "check", text),)
    host = CheckedDevice(fleet=entry.host.fleet, host=entry.host.name, findings=failures)
    if record is None or not record.device_results:
        return host
    job, gpus = entry.jobs[0], []
    has_uuids = len(job.gpu_uuids) == len(job.gpus)
    of_host: dict[str | None, int] = dict(zip(job.gpu_uuids, job.gpus, strict=True)) if has_uuids else {}
    wrong = [check.name for check in record.validity.checks if check.passed is False] if record.validity else []
    on_gpus = record.case.device is Device.GPU
    observed = record.device_observations or [GPUFacts(place=at, index=index) for at, index in enumerate(job.gpus)]
    for gpu in observed if on_gpus else ():
        text = "a matrix product is wrong: the GPU computes incorrectly"
        found = (HostFinding(Acceptance.REJECT, "products", text),) if f"{PRODUCT_CHECK}{gpu.place}" in wrong else ()
        facts = dataclasses.replace(gpu, index=of_host.get(gpu.uuid, gpu.index))
        rates = _rates(OF_GPU, record, gpu.place)
        gpus.append(dataclasses.replace(host, gpu=facts, rates=rates, findings=found))
    return dataclasses.replace(host, rates=_rates(OF_HOST, record, None), gpus=tuple(gpus))


def _rates(rates: Sequence[Rate], record: Record, place: int | None) -> dict[str, float]:
    """Return every rate of a GPU, or of the host (None), that was measured.

    The last result counts, because load follows measurements of single devices; of all-reduces, which are measured at
    several sizes, the best.
    """
    on_gpus, found = record.case.device is Device.GPU, dict[str, float]()
    results = [result for result in record.device_results if (result.gpu if on_gpus else None) == place]
    for rate in rates:
        fitting = [one for one in results if one.metric in rate.metrics and one.arithmetic == rate.arithmetic]
        if values := [result.value for result in fitting if result.value]:
            found[rate.name] = max(values) if "all_reduce" in rate.metrics else values[-1]
    return found


def verdict_grid(hosts: Sequence[CheckedDevice]) -> Grid:
    """Return a grid with a row per host and GPU, and a line below for each finding."""
    rows: list[list[str]] = []
    notes: list[str] = []
    for host in hosts:
        for device in (host, *host.gpus):
            name, label, gpu = f"{host.fleet}/{host.host}", "", GPUFacts(index=0)
            where = name
            if device.gpu is not None:
                gpu, name, where = device.gpu, "", f"{name}, {device.gpu.label}"
                label = f"GPU {gpu.index} {gpu.name or ''}"
            link = "" if gpu.pcie_width is None else f"{gpu.pcie_generation or '?'} x{gpu.pcie_width}"
            readings = (gpu.sm_clock_mhz, gpu.power_watts, gpu.temperature_celsius)
            shown = ["" if reading is None else f"{reading:.0f}" for reading in readings]
            of_gpu, of_host = ([rate.shown(device.rates.get(rate.name)) for rate in of] for of in (OF_GPU, OF_HOST))
            rows.append([name, label, str(device.verdict), *of_gpu, link, *shown, *of_host])
            notes += [f"{where}: {finding.verdict}: {finding.figure}: {finding.text}" for finding in device.findings]
    of_gpu, of_host = ([f"{rate.name} {rate.unit}>" for rate in rates] for rates in (OF_GPU, OF_HOST))
    columns = ["host", "device", "verdict", *of_gpu, "link", "clock MHz>", "power W>", "°C>", *of_host]
    return Grid("Deep check", columns, rows, notes).without_empty_columns()


@dataclass(frozen=True)
class Rate:
    """A rate: where records have it, and its limits; higher is better.

    Attributes:
        name: Display name.
        metrics: Metrics of the record's device results, of which a device has one.
        arithmetic: Arithmetic of these results.
        unit: Display unit; see `SCALES`.
        warning: Relative shortfall against equal devices' median that gives a warning.
        specified: Quantity of `gpu_specs.csv`, or None.
        of_specification: Share of the specification below which there is a warning.
    """

    name: str
    metrics: tuple[str, ...]
    arithmetic: str | None
    unit: str
    warning: float
    specified: str | None = None
    of_specification: float | None = None

    def shown(self, value: float | None) -> str:
        """Return a figure in its display unit; empty: there is none."""
        if value is None:
            return ""
        scaled = value * SCALES[self.unit]
        return f"{scaled:.3g}" if scaled < 1000 else f"{scaled:,.0f}"


SCALES = {"TFLOP/s": 1e-12, "GFLOP/s": 1e-9, "GB/s": 1e-9, "million loops/s": 1e-6}
"""Factor from a record's figure to each display unit."""

REJECT = 0.25
"""Relative shortfall against equal GPUs' median that rejects a GPU: all replicas wait for the slowest one, so the
machine loses a quarter of its value."""

FEWEST_MATES = 3
"""Minimum number of equal GPUs or hosts for a median."""

MEMORY_WARNING = 0.05
"""The memory clock is fixed, so equal GPUs differ by less than 1 %; other processes cost more."""

COPY_WARNING = 0.20
"""Copies use host memory, and GPUs of a host may be attached to different sockets (our choice)."""

ALL_REDUCE_WARNING = 0.15
CPU_WARNING = 0.20
"""Turbo clocks and other tenants of the machine (our choice)."""

PRODUCT_OF_SPECIFICATION = 0.40
"""Share of the specification's FLOP/s. At their power limit healthy GPUs run below their boost clock, and
specifications with sparsity or without fp32 accumulation are twice as high; this limit is below both (our choice)."""

MEMORY_OF_SPECIFICATION = 0.65
"""Share of the specification's bandwidth when adding two arrays; ECC costs GDDR memory up to a tenth (our choice)."""

COPY_OF_LINK = 0.25
"""Share of the rate of a link of this width and generation. Copies from an H100 to pinned memory reached 0.72; only a
link far below its specification gets a warning (our choice)."""

LANE_BYTES_PER_SECOND = {1: 0.25e9, 2: 0.5e9, 3: 0.985e9, 4: 1.969e9, 5: 3.938e9, 6: 7.563e9}
"""Rate of a PCIe lane by generation, after line coding. Source: PCI Express base specifications 1 to 6."""


_PRODUCT = ("matrix_product", "sustained_product")
_SPECIFIED = {"fp32": "fp32", "tf32": "tf32_tensor", "fp16": "fp16_tensor_fp32_accumulate"}
OF_GPU = (
    *(
        Rate(f"{kind} products", _PRODUCT, kind, "TFLOP/s", PRODUCT_SHORTFALL, specified, PRODUCT_OF_SPECIFICATION)
        for kind, specified in _SPECIFIED.items()
    ),
    Rate("memory", ("memory_add",), None, "GB/s", MEMORY_WARNING, "memory_bandwidth", MEMORY_OF_SPECIFICATION),
    Rate("copies to the GPU", ("host_to_device",), None, "GB/s", COPY_WARNING, None, COPY_OF_LINK),
    Rate("copies from the GPU", ("device_to_host",), None, "GB/s", COPY_WARNING, None, COPY_OF_LINK),
)
"""Rates of a GPU."""

OF_HOST = (
    Rate("all-reduce", ("all_reduce",), None, "GB/s", ALL_REDUCE_WARNING),
    Rate("processor products", _PRODUCT, "fp32", "GFLOP/s", CPU_WARNING),
    Rate("processor, one core", ("python_loop",), None, "million loops/s", CPU_WARNING),
    Rate("host memory", ("memory_add",), None, "GB/s", CPU_WARNING),
)
"""Rates of a host."""


def judge(hosts: Sequence[CheckedDevice]) -> list[CheckedDevice]:
    """Judge hosts and their GPUs against their specification and their equals in the fleet; their findings stay."""
    devices = [device for host in hosts for device in (host, *host.gpus)]
    equal = grouped((_kind(device), device) for device in devices)

    def judged(device: CheckedDevice) -> CheckedDevice:
        mates = equal[_kind(device)]
        findings, most = [*device.findings, *_slow_rates(device, mates)], max(len(mate.gpus) for mate in mates)
        if len(device.gpus) < most and device.is_measured:
            verdict = Acceptance.REJECT if len(device.gpus) * 2 <= most else Acceptance.WARNING
            text = f"{len(device.gpus)} GPUs answer, others of the fleet have {most}"
            findings.append(HostFinding(verdict, "GPUs", text))
        for warning in health_warnings(device.gpu, Moment.LOAD) if device.gpu is not None else ():
            verdict = Acceptance.REJECT if warning.rejects else Acceptance.WARNING
            findings.append(HostFinding(verdict, warning.code, f"{warning.seen}. {warning.fix}"))
        findings.sort(key=lambda finding: finding.verdict is not Acceptance.REJECT)
        return dataclasses.replace(device, findings=tuple(findings), gpus=tuple(map(judged, device.gpus)))

    return list(map(judged, hosts))


def _kind(device: CheckedDevice) -> tuple[str, str]:
    """Return what equal devices have in common: their fleet, and the name of a GPU."""
    return device.fleet, "" if device.gpu is None else f"GPU {device.gpu.name}"


def _slow_rates(device: CheckedDevice, equal: Sequence[CheckedDevice]) -> Iterator[HostFinding]:
    """Find the rates of a device that are below a bound; of several, the first counts.

    Args:
        device: A host or a GPU.
        equal: Devices of its kind in its fleet, itself included.
    """
    for rate in OF_HOST if device.gpu is None else OF_GPU:
        of_equal = [one.rates[rate.name] for one in equal if rate.name in one.rates]
        bounds = []
        if len(of_equal) >= FEWEST_MATES:  # the mean of the middle two would hide that half of the fleet is slow
            reject = math.inf if device.gpu is None else max(REJECT, rate.warning)
            bounds.append((statistics.median_high(of_equal), "the fleet's median", rate.warning, reject))
        if device.gpu is not None and rate.of_specification and (specified := _specified(device.gpu, rate)) is not None:
            bounds.append((*specified, 1 - rate.of_specification, math.inf))
        value = device.rates.get(rate.name, math.inf)
        for usual, name, warning, reject in bounds:
            if not value >= usual * (1 - warning):  # nor a number
                short = 1 - value / usual
                verdict = Acceptance.REJECT if short > reject else Acceptance.WARNING
                text = f"{rate.shown(value)} {rate.unit}, {short:.0%} below {name} ({rate.shown(usual)} {rate.unit})"
                yield HostFinding(verdict, rate.name, text)
                break


def _specified(gpu: GPUFacts, rate: Rate) -> tuple[float, str] | None:
    """Return the specified rate and its source, the lowest of all GPUs that match the name; None: unknown."""
    if rate.specified is None:
        lane = LANE_BYTES_PER_SECOND.get(gpu.pcie_generation or 0)
        if lane is None or not gpu.pcie_width:
            return None
        return lane * gpu.pcie_width, f"the rate of PCIe {gpu.pcie_generation} x{gpu.pcie_width}"
    names = specified_gpus(gpu.name or "")
    known = [figures[rate.specified] for name in names if rate.specified in (figures := specifications()[name])]
    return (min(known) / SCALES[rate.unit], "the specification") if known else None
