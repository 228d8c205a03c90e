"""The deep check of hosts: one case per host, run by the usual launchers, then a verdict on each.

A GPU's health is judged by the rows of `results.schema.health`, its speed by the rates here: against the median of its
fleet, its own earlier checks, and its specification.
"""

from __future__ import annotations

import dataclasses
import enum
import json
import math
import statistics
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from orchestrate.inventory.hosts import Host, HostPlace
from orchestrate.planning.facts import Facts
from orchestrate.planning.plan import Job, Plan, make_plan
from orchestrate.suites import CaseBlock, Suite
from results.reference.gpus import specifications, specified_gpus
from results.runs.store import RunFolder
from results.schema import Device, DeviceResult, Record, Status
from results.schema.health import PRODUCT_SHORTFALL, GPUFacts, Moment, health_warnings
from results.text_table import Grid

FOLDER = "checks"
"""Folder of the deep checks, within the folder of the runs."""

MOST_GPUS = 16
"""Maximum number of GPUs of a host that are checked together."""

CHECK_SECONDS = 600.0
"""Time limit of a check, five times its usual duration; detects GPUs that hang."""

MAX_EARLIER = 10
"""Number of latest checks with which a host is compared."""

FAULTS_OF_THE_HOST = frozenset({Status.INVALID, Status.NO_GPU, Status.LOST, Status.TIMEOUT})
"""Statuses of a check that reject a host: wrong numbers, a lost GPU, or a hang. Other failures are warnings."""

PRODUCT_CHECK = "product_of_device_"
"""Prefix of the names of checks of a device's products, followed by its index."""

SUITE = Suite(
    "deep-check",
    "each device alone, then all under load",
    1,
    (CaseBlock.model_validate({"model": "device", "num_gpus": list(range(1, MOST_GPUS + 1)), "deep_check": True}),),
)


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


def judge_records(plan: Plan, folder: RunFolder, runs_dir: Path) -> list[HostVerdict]:
    """Judge the hosts of a plan by their records, in the order of `hosts.yml`.

    A host whose check failed is rejected if it is at fault, and gets a warning otherwise.
    """
    hosts = []
    for entry in plan.hosts:
        host = HostVerdict(fleet=entry.host.fleet, host=entry.host.name)
        record = folder.read_record(entry.jobs[0].id) if entry.jobs else None
        if record is not None and record.device_results:
            host = figures_of(record, entry.jobs[0])
        if record is None or record.status is not Status.OK:
            text = f"{record.status}: {record.cause}" if record else entry.problem or "not checked"
            is_at_fault = record is not None and record.status in FAULTS_OF_THE_HOST
            failure = HostFinding(Acceptance.REJECT if is_at_fault else Acceptance.WARNING, None, "check", text)
            host = dataclasses.replace(host, findings=(failure,))
        hosts.append(host)
    return judge(hosts, earlier_figures(runs_dir, folder.run_id))


def earlier_figures(runs_dir: Path, without: str) -> dict[tuple[str, str], list[HostVerdict]]:
    """Return the figures of the latest earlier checks, by fleet and host.

    Args:
        runs_dir: Folder of the runs.
        without: Id of the current check.
    """
    found: dict[tuple[str, str], list[HostVerdict]] = {}
    for path in sorted((runs_dir / FOLDER).glob("*/records")):
        for stored in RunFolder(path.parent).records() if path.parent.name != without else ():
            record = stored.record
            if record is not None and record.status is Status.OK and record.case.deep_check:
                figures = figures_of(record)
                found.setdefault((figures.fleet, figures.host), []).append(figures)
    return {key: values[-MAX_EARLIER:] for key, values in found.items()}


def figures_of(record: Record, job: Job | None = None) -> HostVerdict:
    """Return a host with its figures, not judged yet, from the record of its deep check.

    Products are those under load on all devices, or if there are none, those of the device alone.

    Args:
        record: With indices as in its container, which may have only some of the host's GPUs.
        job: What was started: its GPUs have the host's indices, by UUID; None: keep those of the record.
    """
    origin, on_gpus = record.origin, record.case.device is Device.GPU
    results = [result for result in record.device_results if result.value is not None]
    gpus = record.device_observations
    if not gpus and record.environment:
        gpus = [
            GPUFacts(place=place, index=gpu.index, name=gpu.name, uuid=gpu.uuid)
            for place, gpu in enumerate(record.environment.gpus)
        ]
    if job and {gpu.uuid for gpu in gpus} <= set(job.gpu_uuids) and len(job.gpu_uuids) == len(job.gpus):
        of_host: dict[str | None, int] = dict(zip(job.gpu_uuids, job.gpus, strict=True))
        gpus = [dataclasses.replace(gpu, index=of_host[gpu.uuid]) for gpu in gpus]
    return HostVerdict(
        fleet=origin.fleet if origin else "-",
        host=origin.host if origin else "-",
        gpus=tuple(_gpu(gpu, record, results) for gpu in gpus) if on_gpus else (),
        rates=_rates(OF_HOST, [result for result in results if result.gpu is None or not on_gpus]),
    )


def _gpu(gpu: GPUFacts, record: Record, results: Iterable[DeviceResult]) -> GPUFigures:
    checks = record.validity.checks if record.validity else []
    return GPUFigures(
        **vars(gpu),
        rates=_rates(OF_GPU, [result for result in results if result.gpu == gpu.place]),
        products_right=next((check.passed for check in checks if check.name == f"{PRODUCT_CHECK}{gpu.place}"), None),
    )


def _rates(rates: Sequence[Rate], results: Sequence[DeviceResult]) -> dict[str, float]:
    """Return every rate that was measured.

    The last result counts, because load follows measurements of single devices; of all-reduces, which are measured at
    several sizes, the best.
    """
    found = {}
    for rate in rates:
        for metric in rate.metrics:
            values = [r.value for r in results if (r.metric, r.arithmetic) == (metric, rate.arithmetic) and r.value]
            if values and rate.name not in found:
                found[rate.name] = max(values) if metric == "all_reduce" else values[-1]
    return found


def verdict_grid(verdicts: Sequence[HostVerdict]) -> Grid:
    """Return a grid with a row per host and GPU, and a line below for each finding."""
    rows: list[list[str]] = []
    notes: list[str] = []
    for host in verdicts:
        name = f"{host.fleet}/{host.host}"
        rows.append([name, "", str(host.verdict), *([""] * (len(OF_GPU) + 4)), *_cells(OF_HOST, host.rates)])
        for gpu in host.gpus:
            link = "" if gpu.pcie_width is None else f"{gpu.pcie_generation or '?'} x{gpu.pcie_width}"
            readings = (gpu.sm_clock_mhz, gpu.power_watts, gpu.temperature_celsius)
            shown = ["" if reading is None else f"{reading:.0f}" for reading in readings]
            label, verdict = f"GPU {gpu.index} {gpu.name or ''}", str(host.verdict_on(gpu))
            rows.append(["", label, verdict, *_cells(OF_GPU, gpu.rates), link, *shown, *([""] * len(OF_HOST))])
        labels: dict[int | None, str] = {gpu.index: f", {gpu.label}" for gpu in host.gpus}
        for finding in host.findings:
            where = labels.get(finding.gpu, "")
            notes.append(f"{name}{where}: {finding.verdict}: {finding.figure}: {finding.text}")
    of_gpu, of_host = ([f"{rate.name} {rate.unit}>" for rate in rates] for rates in (OF_GPU, OF_HOST))
    columns = ["host", "device", "verdict", *of_gpu, "link", "clock MHz>", "power W>", "°C>", *of_host]
    return Grid("Deep check", columns, rows, notes).without_empty_columns()


def _cells(rates: Sequence[Rate], figures: Mapping[str, float]) -> list[str]:
    values = [rate.shown(figures[rate.name]) if rate.name in figures else None for rate in rates]
    return ["" if value is None else f"{value:,.3g}" if value < 1000 else f"{value:,.0f}" for value in values]


def verdicts_json(verdicts: Sequence[HostVerdict]) -> str:
    """Return the verdicts and the figures as JSON."""
    documents = [
        {
            "verdict": host.verdict,
            **dataclasses.asdict(host),
            "gpus": [{"verdict": host.verdict_on(gpu), **dataclasses.asdict(gpu)} for gpu in host.gpus],
        }
        for host in verdicts
    ]
    return json.dumps({"version": 3, "hosts": documents}, indent=2) + "\n"


class Acceptance(enum.StrEnum):
    """What to do with a host or a GPU, from best to worst."""

    ACCEPT = "accept"
    WARNING = "warning"
    REJECT = "reject"


@dataclass(frozen=True, kw_only=True)
class GPUFigures(GPUFacts):
    """A GPU's rates and state under load.

    Attributes:
        rates: By name of `OF_GPU`, in the record's units; only those that were measured.
        products_right: Whether its matrix products equal NumPy's.
    """

    rates: Mapping[str, float] = field(default_factory=dict)
    products_right: bool | None = None


@dataclass(frozen=True)
class HostFinding:
    """Why a host or GPU is not accepted.

    Attributes:
        verdict: The verdict from this finding alone.
        gpu: Index of the GPU; None: the host.
        figure: Name of a rate, or the code of a health rule.
        text: The figure, its reference, and the difference.
    """

    verdict: Acceptance
    gpu: int | None
    figure: str
    text: str


@dataclass(frozen=True, kw_only=True)
class HostVerdict:
    """A host's rates and GPUs, and their judgement.

    Attributes:
        gpus: None if nothing was measured, or on its processor.
        rates: By name of `OF_HOST`, likewise; none if nothing was measured.
        findings: The worst first.
    """

    fleet: str
    host: str
    gpus: tuple[GPUFigures, ...] = ()
    rates: Mapping[str, float] = field(default_factory=dict)
    findings: tuple[HostFinding, ...] = ()

    @property
    def is_measured(self) -> bool:
        """Whether there are figures."""
        return bool(self.gpus or self.rates)

    @property
    def verdict(self) -> Acceptance:
        """The verdict of the worst finding."""
        return _worst(self.findings)

    def verdict_on(self, gpu: GPUFigures) -> Acceptance:
        """Return the verdict on a GPU."""
        return _worst(finding for finding in self.findings if finding.gpu == gpu.index)


@dataclass(frozen=True)
class Rate:
    """A rate: where records have it, and its limits; higher is better.

    Attributes:
        name: Display name.
        metrics: Metrics of the record's device results; the first that was measured counts.
        arithmetic: Arithmetic of these results.
        unit: Display unit; see `SCALES`.
        warning: Relative shortfall against equal devices' median, or its own earlier figure, that gives a warning.
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

    def shown(self, value: float) -> float:
        """Return a figure in its display unit."""
        return value * SCALES[self.unit]


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


_PRODUCT, _SUSTAINED = ("matrix_product", "sustained_product"), ("sustained_product",)
OF_GPU = (
    Rate("fp32 products", _SUSTAINED, "fp32", "TFLOP/s", PRODUCT_SHORTFALL, "fp32", PRODUCT_OF_SPECIFICATION),
    Rate("tf32 products", _SUSTAINED, "tf32", "TFLOP/s", PRODUCT_SHORTFALL, "tf32_tensor", PRODUCT_OF_SPECIFICATION),
    Rate(
        *("fp16 products", _SUSTAINED, "fp16", "TFLOP/s", PRODUCT_SHORTFALL),
        *("fp16_tensor_fp32_accumulate", PRODUCT_OF_SPECIFICATION),
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

_WORSE = tuple(Acceptance)


def judge(
    hosts: Sequence[HostVerdict], earlier: Mapping[tuple[str, str], Sequence[HostVerdict]] | None = None
) -> list[HostVerdict]:
    """Judge hosts against their specification, the other hosts of their fleet, and their own earlier checks.

    Args:
        hosts: Of any number of fleets; their findings stay.
        earlier: Earlier figures of the same hosts, by fleet and host.
    """
    verdicts = []
    for host in hosts:
        mates = [other for other in hosts if other.fleet == host.fleet]
        before = (earlier or {}).get((host.fleet, host.host), ())
        findings = list(_slow_rates(OF_HOST, host, mates, before))
        most = max(len(mate.gpus) for mate in mates)
        if len(host.gpus) < most and host.is_measured:
            verdict = Acceptance.REJECT if len(host.gpus) * 2 <= most else Acceptance.WARNING
            text = f"{len(host.gpus)} GPUs answer, others of the fleet have {most}"
            findings.append(HostFinding(verdict, None, "GPUs", text))
        for gpu in host.gpus:
            if gpu.products_right is False:
                text = "a matrix product is wrong: the GPU computes incorrectly"
                findings.append(HostFinding(Acceptance.REJECT, gpu.index, "products", text))
            equal = [other for mate in mates for other in mate.gpus if other.name == gpu.name]
            own = [other for check in before for other in check.gpus if _is_same(gpu, other)]
            findings += _slow_rates(OF_GPU, gpu, equal, own)
            for warning in health_warnings(gpu, Moment.LOAD):
                verdict = Acceptance.REJECT if warning.rejects else Acceptance.WARNING
                findings.append(HostFinding(verdict, gpu.index, warning.code, f"{warning.seen}. {warning.fix}"))
        findings.sort(key=lambda found: (-_WORSE.index(found.verdict), found.gpu is None, found.gpu or 0))
        verdicts.append(dataclasses.replace(host, findings=(*host.findings, *findings)))
    return verdicts


def _is_same(gpu: GPUFacts, other: GPUFacts) -> bool:
    """Return whether both are one GPU of a host: a replaced one has no earlier figures."""
    if gpu.uuid and other.uuid:
        return gpu.uuid == other.uuid
    return (gpu.index, gpu.name) == (other.index, other.name)


def _worst(findings: Iterable[HostFinding]) -> Acceptance:
    return max((found.verdict for found in findings), key=_WORSE.index, default=Acceptance.ACCEPT)


def _slow_rates(
    rates: Sequence[Rate],
    device: HostVerdict | GPUFigures,
    equal: Sequence[HostVerdict | GPUFigures],
    own: Sequence[HostVerdict | GPUFigures],
) -> Iterator[HostFinding]:
    """Find the rates of a device that are below a bound; of several, the first counts.

    Args:
        rates: Those that such devices have.
        device: A host or a GPU.
        equal: Devices of its kind in its fleet, itself included.
        own: Its earlier figures.
    """
    gpu = device if isinstance(device, GPUFigures) else None
    reject = math.inf if gpu is None else REJECT
    for rate in rates:
        of_equal, before = ([one.rates[rate.name] for one in some if rate.name in one.rates] for some in (equal, own))
        bounds = []
        if len(of_equal) >= FEWEST_MATES:  # the mean of the middle two would hide that half of the fleet is slow
            bounds.append((statistics.median_high(of_equal), "the fleet's median", rate.warning, reject))
        if before:
            bounds.append((statistics.median(before), "its earlier checks", rate.warning, reject))
        if gpu is not None and rate.of_specification is not None and (specified := _specified(gpu, rate)) is not None:
            bounds.append((*specified, 1 - rate.of_specification, math.inf))
        value = device.rates.get(rate.name, math.inf)
        for usual, name, warning, worst in bounds:
            if not value >= usual * (1 - warning):  # nor a number
                short = 1 - value / usual
                verdict = Acceptance.REJECT if short > max(worst, warning) else Acceptance.WARNING
                text = f"{_shown(value, rate)}, {short:.0%} below {name} ({_shown(usual, rate)})"
                yield HostFinding(verdict, None if gpu is None else gpu.index, rate.name, text)
                break


def _specified(gpu: GPUFigures, rate: Rate) -> tuple[float, str] | None:
    """Return the specified rate and its source, the lowest of all GPUs that match the name; None: unknown."""
    if rate.specified is None:
        lane = LANE_BYTES_PER_SECOND.get(gpu.pcie_generation or 0)
        if lane is None or not gpu.pcie_width:
            return None
        return lane * gpu.pcie_width, f"the rate of PCIe {gpu.pcie_generation} x{gpu.pcie_width}"
    names = specified_gpus(gpu.name or "")
    known = [figures[rate.specified] for name in names if rate.specified in (figures := specifications()[name])]
    return (min(known) / SCALES[rate.unit], "the specification") if known else None


def _shown(value: float, rate: Rate) -> str:
    return f"{rate.shown(value):.3g} {rate.unit}"
