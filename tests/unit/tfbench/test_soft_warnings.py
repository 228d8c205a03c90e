import dataclasses
import re
from pathlib import Path

import pytest

import tfbench.measuring.soft_warnings
from results.schema import GPU, Case, Data, Device, Precision, Telemetry
from results.schema.enums import SUSPECT
from results.schema.health import RULES, GPUFacts, Moment
from results.table.fleets import WARNINGS, warning_notes
from results.table.merge import merge_records
from tests.unit.results.factory import make_environment, make_measurement, make_record, repeats, stored
from tfbench.measuring.soft_warnings import drift_limit, gpu_warnings, needs_ptx_jit, soft_warnings
from tfbench.measuring.timing import drift
from tfbench.peers import Peers

RTX_5090 = GPU(index=0, name="RTX 5090", compute_capability="12.0")
ENVIRONMENT = make_environment(tf32_observed=False)
MEASUREMENT = dataclasses.replace(
    make_measurement(Case(model="resnet50"), 100.0),
    warmup_settled=True,
    flops_utilisation=0.3,
    bandwidth_bound_samples_per_second=500.0,
)


def codes(case=None, environment=None, measurement=None, telemetry=None):
    found = soft_warnings(
        case or Case(model="resnet50"),
        dataclasses.replace(ENVIRONMENT, **(environment or {})),
        dataclasses.replace(MEASUREMENT, **(measurement or {})),
        Telemetry(**(telemetry or {})),
    )
    assert all(warning.message for warning in found)
    return [warning.code for warning in found]


def test_a_clean_measurement_has_no_warning():
    assert codes(telemetry={"energy_joules": 100.0, "energy_integrated_joules": 109.0}) == []
    assert drift_limit(Device.GPU, [1.0, 1.0, 2.0]) == 0.02 and drift_limit(Device.CPU, []) == 0.05
    assert codes(case=Case(model="resnet50", precision=Precision.TF32)) == ["tf32_not_as_asked"]


@pytest.mark.parametrize(
    ("part", "values", "code"),
    [
        ("measurement", {"step_cv": 0.3}, "high_cv"),
        ("measurement", {"warmup_settled": False}, "warmup_not_settled"),
        ("telemetry", {"energy_joules": 100.0, "energy_integrated_joules": 150.0}, "energy_differs"),
        ("environment", {"tf32_observed": True}, "tf32_not_as_asked"),
        ("environment", {"gpus": [RTX_5090], "wheel_compute_capabilities": ["sm_90", "compute_90"]}, "ptx_jit"),
    ],
)
def test_each_finding_has_its_own_warning(part, values, code):
    assert codes(**{part: values}) == [code]


@pytest.mark.parametrize("other", [{"device": Device.CPU}, {"num_gpus": 2}, {"data": Data.HOST}])
def test_only_one_gpu_with_synthetic_input_can_wait_for_the_host(other):
    assert codes(case=Case(model="resnet50", **other), measurement={"lead_p50_seconds": 0.0}) == []


@pytest.mark.parametrize(
    ("changes", "words", "hint"),
    [
        ({"step_drift": 0.5}, "50.0% slower", "--warmup_steps=40"),
        ({"warmup_settled": False}, "had not settled after 20 steps", "--max_warmup_steps=80"),
    ],
)
def test_a_warm_up_that_was_too_short_has_a_longer_one_as_its_hint(changes, words, hint):
    measurement = dataclasses.replace(MEASUREMENT, warmup_steps=20, **changes)
    (found,) = soft_warnings(Case(model="resnet50"), ENVIRONMENT, measurement, Telemetry())
    assert words in found.message and found.hint == hint


class TwoRanks(Peers):
    """Another host reports what this one does."""

    size = 2

    def gather(self, what, value):
        return [value, value]


def test_warnings_of_gpus_name_the_gpu_and_of_several_hosts_the_rank():
    gpu = GPUFacts(index=3, throttle_thermal_share=0.5, temperature_celsius=91.0)
    (warning,) = gpu_warnings(Peers(), [], [gpu, GPUFacts(index=4)])
    assert (warning.code, warning.value, warning.limit) == ("throttled_thermal", 0.5, 0.05)
    assert warning.message.startswith("GPU 3: held back by heat in 50% of the readings, 91 °C: ")
    assert [found.message.partition(":")[0] for found in gpu_warnings(TwoRanks(), [], [gpu])] == ["rank 0", "rank 1"]


CPU_CASE = Case(model="resnet50", device=Device.CPU)


def spread_steps(count, cv, drifting=0.0):
    """Steps around 1 s whose spread is `cv`, alternating, and whose last third is longer by `drifting`."""
    third = count // 3
    return [1.0 + (cv if step % 2 else -cv) + (drifting if step >= count - third else 0.0) for step in range(count)]


@pytest.mark.parametrize(
    ("count", "cv", "drifting", "expected"),
    [
        (10, 0.04, 0.06, []),  # three steps against three that vary by 4 % are no evidence of 6 %
        (66, 0.04, 0.06, ["drift"]),
        (66, 0.04, 0.04, []),  # certain, and too small to matter on a processor
        (10, 0.001, 0.06, ["drift"]),
    ],
)
def test_a_drift_matters_and_is_more_than_the_spread_of_the_steps(count, cv, drifting, expected):
    steps = spread_steps(count, cv, drifting)
    assert codes(case=CPU_CASE, measurement={"step_seconds": steps, "step_drift": drift(steps)}) == expected


def test_every_warning_is_explained_below_the_table():
    sources = Path(tfbench.measuring.soft_warnings.__file__).parent
    found = {code for path in sources.glob("*.py") for code in re.findall(r'code="(\w+)"', path.read_text())}
    found |= {code for code, rule in RULES.items() if Moment.TIMING in rule.moments}
    assert found >= {"high_cv", "throttled_power", "gpu_unusable"}
    assert found | {SUSPECT} == set(WARNINGS)
    rows = merge_records(stored(make_record(warnings=("drift", "high_cv")), *repeats(10.0, warnings=("drift",)))).rows
    assert warning_notes(rows) == [
        f"drift: {WARNINGS['drift']}",
        f"high_cv: {WARNINGS['high_cv']}",
    ]


@pytest.mark.parametrize(
    ("capability", "built_for", "needed"),
    [
        ("8.6", ["sm_80", "compute_90"], False),
        ("8.0", ["sm_86"], True),
        ("9.0", ["sm_80", "compute_90"], False),
        ("10.0", ["sm_80", "compute_90"], True),
        ("12.0", ["sm_90a", "compute_90"], True),
        ("8.6", [], False),
        (None, ["sm_80"], False),
    ],
)
def test_machine_code_runs_on_its_own_generation_only(capability, built_for, needed):
    assert needs_ptx_jit(capability, built_for) is needed
