"""What is known of a repeat so far: a repeat that fails keeps what it had."""

from __future__ import annotations

from dataclasses import dataclass, field

from results.schema import Check, DeviceResult, Environment, Measurement, SoftWarning, Telemetry
from results.schema.health import GPUFacts
from tfbench.outcomes.phases import Phases


@dataclass
class Findings:
    """Filled step by step while a case is measured; becomes the record's parts."""

    environment: Environment | None = None
    measurement: Measurement | None = None
    telemetry: Telemetry | None = None
    checks: list[Check] = field(default_factory=list)
    warnings: list[SoftWarning] = field(default_factory=list)
    device_results: list[DeviceResult] = field(default_factory=list)
    gpus: list[GPUFacts] = field(default_factory=list)
    phases: Phases = field(default_factory=Phases)

    @property
    def valid(self) -> bool:
        """Say whether no gate failed and at least one passed."""
        return all(check.passed is not False for check in self.checks) and any(check.passed for check in self.checks)
