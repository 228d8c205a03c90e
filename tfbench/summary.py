"""What a person wants to know first of a record."""

from __future__ import annotations

from results.schema import Case, DeviceResult, InputLimit, Latency, Measurement, Record


def summary(record: Record) -> str:
    """Write the figures of a measured record in a few lines; empty where it has none."""
    if record.device_results:
        return "\n".join(map(_device_line, record.device_results))
    if record.measurement is None:
        return ""
    lines = _step_lines(record.case, record.measurement)
    if record.measurement.latency is not None:
        lines.append(_latency_line(record.measurement.latency))
    if record.measurement.input_limit is not None:
        lines.append(_input_line(record.measurement.input_limit))
    return "\n".join([*lines, *(f"  warning {warning.code}: {warning.message}" for warning in record.warnings)])


def _step_lines(case: Case, m: Measurement) -> list[str]:
    spread = "" if m.step_cv is None else f", CV {m.step_cv:.1%}"
    return [
        f"{case.name}: {m.samples_per_second:.1f} {m.unit}/s",
        f"  {m.num_steps} steps of {m.replicas} x {m.batch_per_gpu} {m.unit} in {m.seconds:.2f} s",
        f"  step {m.step_p50_seconds * 1000:.1f} ms (p95 {m.step_p95_seconds * 1000:.1f} ms{spread})",
        f"  build {m.build_seconds:.1f} s, compile {m.compile_seconds:.1f} s, warm-up {m.warmup_seconds:.1f} s",
    ]


def _latency_line(latency: Latency) -> str:
    seconds = (latency.p50_seconds, latency.p95_seconds, latency.p99_seconds)
    p50, p95, p99 = (f"{value * 1000:.2f} ms" for value in seconds)
    return f"  latency at batch 1: p50 {p50}, p95 {p95}, p99 {p99}"


def _input_line(limit: InputLimit) -> str:
    bottleneck = "the input" if limit.limited else "the device"
    return (
        f"  bottleneck: {bottleneck}; a step takes {limit.step_ratio:.2f} times one with synthetic data, "
        f"{limit.read_bytes_per_second / 1e6:.1f} MB/s read"
    )


def _device_line(result: DeviceResult) -> str:
    """Write one micro-benchmark for a person."""
    name = " ".join([result.metric, *([result.arithmetic] if result.arithmetic else [])])
    if result.compiled:
        name += " by XLA"
    if result.devices > 1:
        name += f" over {result.devices}"
    if result.value is None:
        return f"{name:<24} not measured: {result.reason}"
    if result.gpu is not None:
        name += f", device {result.gpu}" if result.peer is None else f", devices {result.gpu} and {result.peer}"
    if result.size is None:
        return f"{name:<24} {result.value:10.4g} {result.unit}"
    size = f"n = {result.size}" if result.metric.endswith("_product") else f"{result.size:,} bytes"
    return f"{name:<24} {result.value / 1e9:10.2f} G{result.unit}  ({size})"
