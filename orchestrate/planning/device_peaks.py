"""Limits of a host's devices that a repeat has measured: the next ones of the run need not measure them again."""

from __future__ import annotations

import threading

from orchestrate.planning.plan import Job
from results.schema import Case, Device, Mode, Record, Status

DOUBTFUL = frozenset({"above_peak", "gpu_shared", "throttled_power", "throttled_thermal", "throttled_hardware"})
"""Warnings of a repeat whose limits are not to be passed on: the device did not reach what it can."""

_Key = tuple[Device, str, str, str | None]


class DevicePeaks:
    """What the devices of one host reached in this run, by device, precision and image. Callable from any thread."""

    def __init__(self) -> None:
        self._known: dict[_Key, tuple[float, float]] = {}
        self._lock = threading.Lock()

    def learn(self, job: Job, record: Record) -> None:
        """Take in the limits that a repeat has measured, where nothing held the device back."""
        measured = record.measurement
        if record.status is not Status.OK or measured is None or measured.peaks_reused:
            return
        flops, traffic = measured.peak_flops_per_second, measured.peak_bytes_per_second
        if not flops or not traffic or DOUBTFUL & {warning.code for warning in record.warnings}:
            return
        devices = devices_of(job.case)
        with self._lock:
            best = self._known.get(_key(job), (0.0, 0.0))  # one that was measured again was too low before
            self._known[_key(job)] = max(best[0], flops / devices), max(best[1], traffic / devices)

    def of(self, job: Job) -> tuple[float, float] | None:
        """Return the limits of a job's device as `Job.known_peaks` has them; None: not known, or not needed."""
        if job.case.mode is Mode.DEVICE or job.case.num_hosts > 1:
            return None
        with self._lock:
            return self._known.get(_key(job))


def devices_of(case: Case) -> int:
    """Return how many devices share a case's limits: logical CPU devices are one processor."""
    return case.replicas if case.device is Device.GPU else case.num_hosts


def _key(job: Job) -> _Key:
    first = next(iter((*job.gpu_uuids, *map(str, job.gpus))), "")
    return job.case.device, first, job.case.precision, job.origin.image_digest
