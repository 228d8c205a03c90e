"""What a repeat ran on and with: the part of a row's identity that is neither place nor case, read from its record."""

from __future__ import annotations

import functools
from collections.abc import Collection
from dataclasses import dataclass, fields, replace
from operator import attrgetter
from typing import Any

from results.schema import Environment, Record
from results.text import printable


@dataclass(frozen=True)
class Software:
    """Software and hardware of a row; numbers are merged where all of it is equal, and each field is a column.

    A field is None where it is not known or does not apply; `COLUMNS` says when.

    Attributes:
        gpu: Names of the GPUs that train, each once.
        power_limit_watts: The lowest of their enforced limits.
        cpu_limit: CPUs that the process could use; may be fractional.
        variables: Environment variables that change what is measured, `NAME=value`.
        parameters: Trainable parameters of the network.
    """

    gpu: str | None = None
    power_limit_watts: float | None = None
    tensorflow: str | None = None
    keras: str | None = None
    cuda: str | None = None
    cudnn: str | None = None
    nccl: str | None = None
    cublas: str | None = None
    driver: str | None = None
    cuda_compat: str | None = None
    tf32: bool | None = None
    cpu: str | None = None
    cpu_limit: float | None = None
    variables: str | None = None
    launcher: str | None = None
    image_digest: str | None = None
    method_version: int | None = None
    parameters: int | None = None

    @functools.cached_property
    def _hash(self) -> int:
        return hash(tuple(getattr(self, name) for name in _names()))

    def __hash__(self) -> int:
        """Return a hash that is computed once: each of a million records looks its software up."""
        return self._hash

    @property
    def known_early(self) -> Software:
        """What a repeat that failed before its first step knows too: libraries are loaded in that step."""
        return replace(self, cudnn=None, nccl=None, cublas=None, cuda_compat=None, parameters=None)

    def only(self, columns: Collection[str]) -> Software:
        """Keep some columns and empty all others: two of these are equal where those columns are."""
        return Software(*(getattr(self, name) if name in columns else None for name in _names()))

    def shown(self) -> Software:
        """Return it with texts that are safe for a terminal: a host wrote them."""
        texts: dict[str, Any] = {
            name: printable(value) for name in _names() if isinstance(value := getattr(self, name), str)
        }
        return replace(self, **texts)


@functools.cache
def _names() -> tuple[str, ...]:
    return tuple(item.name for item in fields(Software))


_gpu_key = attrgetter("name", "power_limit_watts")
_environment_key = attrgetter(
    *("tensorflow", "keras", "cuda", "cudnn", "nccl", "cublas", "driver", "cuda_compat"),
    *("tf32_enabled", "cpu", "cpu_limit"),
)

_software = functools.lru_cache(maxsize=4096)(Software)
"""Makes each software once: a fleet has few, and many records."""


def software_of(record: Record) -> Software | None:
    """Return the software of a record; None where it has no environment, since it never started."""
    environment = record.environment
    if environment is None:
        return None
    origin, measurement = record.origin, record.measurement
    count = record.case.num_gpus if record.case.device == "gpu" else 0
    return _software(
        *_names_and_limit(tuple(map(_gpu_key, environment.gpus[:count]))),
        *_environment_key(environment),
        _variables(environment) if environment.variables else None,
        origin.launcher if origin else None,
        origin.image_digest if origin else None,
        record.method_version,
        measurement.parameters_trainable if measurement else None,
    )


def _variables(environment: Environment) -> str:
    return ",".join(f"{name}={value}" for name, value in sorted(environment.variables.items()))


@functools.lru_cache(maxsize=1024)  # a fleet has few kinds of hosts, and many records
def _names_and_limit(gpus: tuple[tuple[str, float | None], ...]) -> tuple[str | None, float | None]:
    """Return the names of the GPUs that train, each once, and their lowest power limit in watts."""
    limits = [limit for _, limit in gpus if limit is not None]
    return " + ".join(dict.fromkeys(name for name, _ in gpus)) or None, min(limits, default=None)
