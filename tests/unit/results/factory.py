"""Records as `tfbench` and `orchestrate` write them, made up for tests."""

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from results.runs.store import RunFolder, StoredRecord, read_stored
from results.schema import (
    GPU,
    Case,
    Check,
    Environment,
    Measurement,
    Origin,
    Record,
    SoftWarning,
    Status,
    Validity,
    kind_of,
)
from results.schema.record_json import to_json
from results.stats import Interval, estimate, ratio_of_estimates
from results.table.fleets import FleetRate, fleet_rates
from results.table.merge import merge_records

PARAMETERS = {"resnet50": 25_557_032, "resnet152": 60_192_808, "inception_v3": 23_834_568, "googlenet": 6_998_552}


def make_case(model: str = "resnet50", **changes: Any) -> Case:
    values = {"precision": "fp32", "batch_per_gpu": 8, "device": "cpu", "warmup_steps": 2, "num_steps": 4} | changes
    return Case(model=model, **{key: value if value is None else kind_of(key)(value) for key, value in values.items()})


def make_environment(gpus: int = 0, gpu: str = "NVIDIA RTX A4000", **changes: Any) -> Environment:
    versions = {"tfbench": "0.1.0", "python": "3.11.9", "tensorflow": "2.21.0", "keras": "3.15.1", "kernel": "6.1.0"}
    cores = {"cpu_count": 2, "cpu_limit": 2.0, "intra_op_threads": 2, "inter_op_threads": 2, "tf32_enabled": False}
    machine = {"operating_system": "Debian GNU/Linux 12", "cpu": "Test CPU", "memory_bytes": 8 * 2**30}
    card = {"name": gpu, "compute_capability": "8.6", "memory_bytes": 16 * 2**30, "power_limit_watts": 140.0}
    values: dict[str, Any] = {**versions, **cores, **machine, "gpus": [GPU(index=i, **card) for i in range(gpus)]}
    return Environment(**values | changes)


def make_measurement(case: Case, rate: float, parameters: int | None = None) -> Measurement:
    """Build a measurement of exactly `rate` samples per second."""
    samples = case.global_batch * case.num_steps
    seconds = samples / rate
    step = seconds / case.num_steps
    total = {"samples_per_second": samples / seconds, "samples": samples, "seconds": seconds}
    steps = {"num_steps": case.num_steps, "step_seconds": [step] * case.num_steps}
    spread = {"step_p50_seconds": step, "step_p95_seconds": step * 1.1, "step_cv": 0.01, "step_drift": 0.0}
    before = {"build_seconds": 1.0, "compile_seconds": 2.0, "warmup_steps": case.warmup_steps, "warmup_seconds": 1.0}
    batch = {name: getattr(case, name) for name in ("replicas", "batch_per_gpu", "global_batch")}
    parameters = parameters or PARAMETERS.get(case.model, 1000)
    return Measurement(
        unit="images",
        **{**total, **steps, **spread, **before, **batch},
        image_size=case.image_size or (299 if case.model == "inception_v3" else 224),
        parameters_trainable=parameters,
        parameters_total=parameters + 10,
        loss_first=6.9,
        loss_last=6.8,
    )


def make_origin(fleet: str = "a4000", host: str = "node-a", repeat: int = 1, **changes: Any) -> Origin:
    values = {"run_id": "run-1", "launcher": "process"} | changes
    return Origin(fleet=fleet, host=host, repeat=repeat, **values)


def make_record(
    rate: float = 100.0,
    *,
    case: Case | None = None,
    origin: Origin | None = None,
    environment: Environment | None = None,
    warnings: tuple[str, ...] = (),
    started_at: str = "2026-11-01T10:00:00Z",
    parameters: int | None = None,
    **changes: Any,
) -> Record:
    """Build a valid record; `rate` in samples per second."""
    case = case or make_case()
    return Record(
        status=Status.OK,
        case=case,
        started_at=started_at,
        finished_at=started_at,
        origin=origin or make_origin(),
        environment=environment or make_environment(),
        measurement=make_measurement(case, rate, parameters),
        validity=Validity(valid=True, checks=[Check(name="loss_finite", passed=True, detail="")]),
        warnings=[SoftWarning(code=code, message=code) for code in warnings],
        **changes,
    )


def make_failure(
    status: str = "oom",
    cause: str = "out of memory",
    *,
    case: Case | None = None,
    origin: Origin | None = None,
    environment: Environment | None = None,
) -> Record:
    """Build the record of a repeat that failed; without an environment, as the orchestrator writes it."""
    return Record(
        status=Status(status),
        cause=cause,
        case=case or make_case(),
        started_at="2026-11-01T10:00:00Z",
        finished_at="2026-11-01T10:00:01Z",
        origin=origin or make_origin(),
        environment=environment,
    )


def ratio_interval(a: Sequence[float], b: Sequence[float]) -> Interval:
    return ratio_of_estimates(estimate(a), estimate(b))


def stored(*records: Record) -> list[StoredRecord]:
    return [StoredRecord(Path(f"records/{i}.json"), record) for i, record in enumerate(records)]


def repeats(
    *rates: float, fleet: str = "a4000", host: str = "node-a", run_id: str = "run-1", **changes: Any
) -> list[Record]:
    """Build one record for each rate, repeats of one case on one host."""
    price = changes.pop("usd_per_gpu_hour", None)
    return [
        make_record(rate, origin=make_origin(fleet, host, i, run_id=run_id, usd_per_gpu_hour=price), **changes)
        for i, rate in enumerate(rates, 1)
    ]


def of_hosts(fleet: str, *rates: float, prefix: str | None = None, **changes: Any) -> list[Record]:
    """Build two repeats on each of as many hosts as there are rates."""
    return [
        record
        for number, rate in enumerate(rates)
        for record in repeats(rate, rate * 1.001, fleet=fleet, host=f"{prefix or fleet}{number}", **changes)
    ]


def rates_of(*records: Record, **options: Any) -> list[FleetRate]:
    """Return the fleets' rates of records; `options` are those of `fleet_rates`."""
    return fleet_rates(merge_records(stored(*records)).rows, **options)


def sides(*records: Record, a: str = "a", b: str = "b") -> tuple[list[FleetRate], list[FleetRate]]:
    """Return the rates of two fleets."""
    rates = rates_of(*records)
    return [rate for rate in rates if rate.fleet == a], [rate for rate in rates if rate.fleet == b]


def write_run(folder: Path, records: Iterable[Record], run_id: str = "run-1") -> RunFolder:
    """Write a run; its records are `job-0.json` and so on."""
    run = RunFolder.create(folder, run_id)
    for number, record in enumerate(records):
        run.write_record(f"job-{number}", record)
    return run


def write_file(folder: Path, name: str, record: Record) -> StoredRecord:
    path = folder / name
    path.write_text(to_json(record), encoding="utf-8")
    return read_stored(path)
