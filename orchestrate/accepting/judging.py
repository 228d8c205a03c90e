"""Judges what a deep check measured: accept, doubtful or reject, for each GPU and host, by pure code over figures."""

from __future__ import annotations

import enum
import statistics
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from orchestrate.accepting import limits
from orchestrate.accepting.figures import GPUFigures, HostFigures
from orchestrate.accepting.limits import Rate
from results.reference.gpus import specifications, specified_gpus


class Verdict(enum.StrEnum):
    """What to do with a host or a GPU; the later, the worse."""

    ACCEPT = "accept"
    DOUBTFUL = "doubtful"
    REJECT = "reject"


@dataclass(frozen=True)
class Finding:
    """Why something is not accepted.

    Attributes:
        verdict: What follows from it alone.
        gpu: Index of the GPU; None: the host.
        figure: What was measured.
        text: The figure, what it was judged by and how far it is from that.
    """

    verdict: Verdict
    gpu: int | None
    figure: str
    text: str


@dataclass(frozen=True)
class HostVerdict:
    """The judgement of a host.

    Attributes:
        gpus: Verdict of each GPU by its index.
        findings: The worst first.
    """

    fleet: str
    host: str
    verdict: Verdict
    gpus: Mapping[int, Verdict]
    findings: tuple[Finding, ...]


_WORSE = tuple(Verdict)


def judge(
    hosts: Sequence[HostFigures], earlier: Mapping[tuple[str, str], Sequence[HostFigures]] | None = None
) -> list[HostVerdict]:
    """Judge hosts against their specification, the others of their fleet, and their own earlier checks.

    Args:
        hosts: Of any number of fleets.
        earlier: What the same hosts measured before, by fleet and host.
    """
    verdicts = []
    for host in hosts:
        mates = [other for other in hosts if other.fleet == host.fleet]
        before = (earlier or {}).get((host.fleet, host.host), ())
        findings = [
            *_of_host(host, mates, before),
            *(found for gpu in host.gpus for found in _of_gpu(gpu, _like(gpu, mates), _same(gpu, before))),
        ]
        findings.sort(key=lambda found: (-_WORSE.index(found.verdict), found.gpu is None, found.gpu or 0))
        of_gpus = {gpu.index: _worst(found for found in findings if found.gpu == gpu.index) for gpu in host.gpus}
        verdicts.append(HostVerdict(host.fleet, host.host, _worst(findings), of_gpus, tuple(findings)))
    return verdicts


def worse(first: Verdict, second: Verdict) -> Verdict:
    """Return the worse of two verdicts."""
    return max(first, second, key=_WORSE.index)


def _worst(findings: Iterable[Finding]) -> Verdict:
    return max((found.verdict for found in findings), key=_WORSE.index, default=Verdict.ACCEPT)


def _like(gpu: GPUFigures, mates: Sequence[HostFigures]) -> list[GPUFigures]:
    """Return all GPUs of the fleet of the same name, the judged one among them."""
    return [other for mate in mates for other in mate.gpus if other.name == gpu.name]


def _same(gpu: GPUFigures, before: Sequence[HostFigures]) -> list[GPUFigures]:
    """Return a GPU's own earlier figures; a card that was exchanged has none."""
    return [other for host in before for other in host.gpus if (other.index, other.name) == (gpu.index, gpu.name)]


def _of_host(host: HostFigures, mates: Sequence[HostFigures], before: Sequence[HostFigures]) -> Iterator[Finding]:
    for rate, value_of in limits.OF_HOST:
        value = value_of(host)
        known, own = _known(map(value_of, mates)), _known(map(value_of, before))
        if value is not None:
            yield from _below(None, rate, value, known, own, rejects=False)
    most = max((len(mate.gpus) for mate in mates), default=0)
    if len(host.gpus) < most:
        text = f"{len(host.gpus)} GPUs answer, others of the fleet have {most}"
        yield Finding(Verdict.REJECT if len(host.gpus) * 2 <= most else Verdict.DOUBTFUL, None, "GPUs", text)
    yield from _of_pairs(host)


def _of_pairs(host: HostFigures) -> Iterator[Finding]:
    """Name pairs of GPUs whose all-reduce is far below that of the other pairs."""
    if len(host.pairs) < limits.FEWEST_MATES:
        return
    usual = statistics.median(host.pairs.values())
    for (first, second), value in sorted(host.pairs.items()):
        if value < usual * (1 - limits.REJECT):
            text = f"{value / 1e9:.3g} GB/s between GPU {first} and GPU {second}, {usual / 1e9:.3g} between most pairs"
            yield Finding(Verdict.DOUBTFUL, None, "all-reduce of two GPUs", text)


def _of_gpu(gpu: GPUFigures, mates: Sequence[GPUFigures], before: Sequence[GPUFigures]) -> Iterator[Finding]:
    if gpu.products_right is False:
        yield Finding(
            Verdict.REJECT, gpu.index, "products", "a matrix product is wrong: the GPU computes other numbers"
        )
    for rate, value_of in limits.OF_GPU:
        value = value_of(gpu)
        if value is not None:
            known, own = _known(map(value_of, mates)), _known(map(value_of, before))
            found = list(_below(gpu.index, rate, value, known, own, rejects=True))
            yield from found or _below_specification(gpu, rate, value)
    yield from _of_link(gpu)
    yield from _of_clocks(gpu)
    yield from _of_memory_errors(gpu)


def _known(values: Iterable[float | None]) -> list[float]:
    return [value for value in values if value is not None]


def _below(
    gpu: int | None, rate: Rate, value: float, mates: Sequence[float], own: Sequence[float], *, rejects: bool
) -> Iterator[Finding]:
    """Compare a rate with the median of equal devices, and with what the same one reached before."""
    for name, figures, fewest in (("the fleet's median", mates, limits.FEWEST_MATES), ("its earlier checks", own, 1)):
        if len(figures) < fewest:
            continue
        usual = statistics.median(figures)
        if value < usual * (1 - rate.doubt):
            short = 1 - value / usual
            verdict = Verdict.REJECT if rejects and short > max(limits.REJECT, rate.doubt) else Verdict.DOUBTFUL
            yield Finding(
                verdict, gpu, rate.name, f"{_shown(value, rate)}, {short:.0%} below {name} ({_shown(usual, rate)})"
            )
            return


def _below_specification(gpu: GPUFigures, rate: Rate, value: float) -> Iterator[Finding]:
    limit = _specified(gpu, rate)
    if limit is not None and rate.of_specification is not None and value < limit[0] * rate.of_specification:
        text = f"{_shown(value, rate)} is {value / limit[0]:.0%} of {limit[1]} ({_shown(limit[0], rate)})"
        yield Finding(Verdict.DOUBTFUL, gpu.index, rate.name, f"{text}; at least {rate.of_specification:.0%} is usual")


def _specified(gpu: GPUFigures, rate: Rate) -> tuple[float, str] | None:
    """Return what a rate is at most, and what states it: the least of all cards that the name fits; None: not known."""
    if rate in (limits.TO_DEVICE, limits.TO_HOST):
        lane = limits.LANE_BYTES_PER_SECOND.get(gpu.pcie_generation or 0)
        if lane is None or not gpu.pcie_width:
            return None
        return lane * gpu.pcie_width, f"what PCIe {gpu.pcie_generation} x{gpu.pcie_width} carries"
    quantity, unit = limits.SPECIFIED[rate.name]
    members = [specifications()[name] for name in specified_gpus(gpu.name)]
    known = [figures[quantity] for figures in members if quantity in figures]
    return (min(known) * unit, "the specification") if known else None


def _shown(value: float, rate: Rate) -> str:
    return f"{value * rate.scale:.3g} {rate.unit}"


def _of_link(gpu: GPUFigures) -> Iterator[Finding]:
    width, most = gpu.pcie_width, gpu.pcie_width_max
    if width is None or most is None or width >= most:
        return
    verdict = Verdict.REJECT if width * 4 <= most else Verdict.DOUBTFUL
    yield Finding(verdict, gpu.index, "PCIe link", f"{width} of {most} lanes under load: reseat the card or its riser")


def _of_clocks(gpu: GPUFigures) -> Iterator[Finding]:
    causes = (("heat", gpu.throttle_thermal_share), ("a power brake or hardware slowdown", gpu.throttle_hardware_share))
    for cause, share in causes:
        if share is not None and share > limits.THROTTLE_DOUBT:
            clock = "" if gpu.clock_mhz is None else f", {gpu.clock_mhz:.0f} MHz on average"
            hot = "" if gpu.temperature_celsius is None else f", {gpu.temperature_celsius:.0f} °C"
            verdict = Verdict.REJECT if share > limits.THROTTLE_REJECT else Verdict.DOUBTFUL
            text = f"{cause} held the clock down in {share:.0%} of the time under load{clock}{hot}"
            yield Finding(verdict, gpu.index, "clock", text)
    limit, usual = gpu.power_limit_watts, gpu.power_limit_default_watts
    if limit is not None and usual is not None and limit < usual * limits.POWER_CAP_DOUBT:
        text = f"capped at {limit:.0f} W (default {usual:.0f} W)"
        yield Finding(Verdict.DOUBTFUL, gpu.index, "power limit", text)


def _of_memory_errors(gpu: GPUFigures) -> Iterator[Finding]:
    if gpu.ecc_uncorrected_errors:
        text = f"{gpu.ecc_uncorrected_errors} uncorrected memory errors: replace the card"
        yield Finding(Verdict.REJECT, gpu.index, "ECC", text)
    if gpu.row_remap_failed:
        yield Finding(Verdict.REJECT, gpu.index, "ECC", "a faulty row of its memory could not be remapped: replace it")
    elif gpu.row_remap_pending:
        text = "a faulty row of its memory will be remapped at the next reset: reset the GPU"
        yield Finding(Verdict.DOUBTFUL, gpu.index, "ECC", text)
    errors = sorted(set(gpu.xid_errors or ()) & limits.FATAL_XIDS)
    if errors:
        verdict = Verdict.DOUBTFUL if set(errors) <= limits.REMAPPED_XIDS else Verdict.REJECT
        yield Finding(verdict, gpu.index, "Xid", f"the kernel log has Xid {', '.join(map(str, errors))} of this GPU")
