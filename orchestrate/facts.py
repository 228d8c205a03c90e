"""What a host says about itself, before anything is measured on it."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from orchestrate.text import plain_text
from results.schema import GPU, RecordError, Status, from_dict

MAX_PROBE_BYTES = 256 * 1024


@dataclass(frozen=True, kw_only=True)
class Image:
    """An image for a host, and whether it can be started there.

    Attributes:
        variant: Row of `containers/images.toml`; None: an image of the user's own.
        reference: As asked for: `REGISTRY/tfbench:VERSION-VARIANT`.
        reason: Why this one.
        status: `ok`, or how every repeat with it ends: `unsupported`, `driver_too_old`, `pull_failed`, …
        problem: Why it cannot be started; None when it can.
        digest: `sha256:…` of what the tag means now; None: not known.
    """

    variant: str | None
    reference: str
    reason: str
    status: Status = Status.OK
    problem: str | None = None
    digest: str | None = None


@dataclass(frozen=True, kw_only=True)
class Facts:
    """What a host offers; what it does not tell is None.

    Attributes:
        cpu_limit: CPUs that a benchmark may use; may be fractional.
        gpus: In the driver's order.
        engine: Name and version of the Docker engine; None without one.
        gpu_runtime: How the engine gives GPUs to containers; None: it cannot, or there is no engine.
        clock_skew_seconds: How far the host's clock is ahead of ours.
        disk_free_bytes: Where containers write.
        images: What benchmarks start from; empty without Docker.
    """

    cpu: str | None = None
    cpu_count: int | None = None
    cpu_limit: float | None = None
    memory_bytes: int | None = None
    kernel: str | None = None
    operating_system: str | None = None
    driver: str | None = None
    gpus: tuple[GPU, ...] = ()
    engine: str | None = None
    gpu_runtime: str | None = None
    clock_skew_seconds: float | None = None
    disk_free_bytes: int | None = None
    images: tuple[Image, ...] = ()

    @property
    def problem(self) -> str | None:
        """Why nothing can be measured here; None when something can."""
        if not self.images or any(image.status is Status.OK for image in self.images):
            return None
        return self.images[0].problem


def facts_from_dict(document: dict[str, Any]) -> Facts:
    """Read facts back from `plan.json`.

    Raises:
        KeyError, TypeError, ValueError, RecordError: They are damaged.
    """
    gpus = tuple(from_dict(GPU, gpu) for gpu in document["gpus"])
    images = tuple(Image(**{**image, "status": Status(image["status"])}) for image in document["images"])
    return Facts(**{**document, "gpus": gpus, "images": images})


def facts_from_probe(text: str | bytes) -> Facts:
    """Read what `python -m tfbench.probe` printed; nothing in it is trusted.

    Raises:
        ValueError: Not the probe's JSON.
    """
    if len(text) > MAX_PROBE_BYTES:
        raise ValueError(f"the probe printed more than {MAX_PROBE_BYTES} bytes")
    document = json.loads(text)
    if not isinstance(document, dict) or not isinstance(document.get("gpus"), list):
        raise ValueError("the probe printed no object with gpus")
    try:
        gpus = tuple(from_dict(GPU, gpu) for gpu in document["gpus"])
    except RecordError as error:
        raise ValueError(f"the probe's gpus are malformed: {error}") from error
    return Facts(
        cpu=_text(document, "cpu"),
        cpu_count=_integer(document, "cpu_count"),
        cpu_limit=_number(document, "cpu_limit"),
        memory_bytes=_integer(document, "memory_bytes"),
        kernel=_text(document, "kernel"),
        operating_system=_text(document, "operating_system"),
        driver=_text(document, "driver"),
        disk_free_bytes=_integer(document, "disk_free_bytes"),
        gpus=gpus,
    )


def _text(document: dict[str, Any], key: str) -> str | None:
    value = document.get(key)
    return plain_text(value, 200) if isinstance(value, str) else None


def _integer(document: dict[str, Any], key: str) -> int | None:
    value = document.get(key)
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def _number(document: dict[str, Any], key: str) -> float | None:
    value = document.get(key)
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None
