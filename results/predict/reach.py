"""What is near enough to what was measured to be predicted: by network, architecture, bandwidth and arithmetic."""

from __future__ import annotations

from collections.abc import Iterable

from results.predict.left_out import FEWEST_FAMILIES, too_few_families
from results.predict.rows import Setting, specification_name
from results.reference.gpus import compute_capability

REACH = 1.5
"""How many times more, or less, bandwidth or arithmetic a predicted GPU may have than any GPU with rows.

Source: GPUs that were left out and lie outside of all others, by up to 1.64 times (H100 SXM5: 3350 and 2039 GB/s), are
missed by less than the rest; see docs/method.md, section 10. Farther away nothing was left out to be tested.
"""

UNITS = {"bandwidth": "GB/s", "arithmetic": "TFLOP/s"}


def out_of_reach(setting: Setting, known: Iterable[Setting]) -> str:
    """Return why a setting is too far from those that were measured in its precision; empty: it is not."""
    same = [other for other in known if other.precision == setting.precision]
    families = len({other.family for other in same if other.network == setting.network})
    if families < FEWEST_FAMILIES:
        return f"{setting.network} in {setting.precision}: {too_few_families(families)}"
    own = capability(setting)
    if own not in {capability(other) for other in same}:
        return f"no row of its architecture (compute capability {own}) in {setting.precision}, measured or published"
    for name, unit in UNITS.items():
        if _factor(setting, same, name) > REACH:
            value, others = getattr(setting, name), [getattr(other, name) for other in same]
            return (
                f"its {value:g} {unit} are more than {REACH:g} times away from all GPUs measured in "
                f"{setting.precision} ({min(others):g} to {max(others):g})"
            )
    return ""


def factor_beyond(setting: Setting, known: Iterable[Setting]) -> float:
    """Return how many times more, or less, bandwidth or arithmetic a GPU has than all others; up to 1: no more."""
    same = [other for other in known if other.precision == setting.precision]
    return max(_factor(setting, same, name) for name in UNITS)


def capability(setting: Setting) -> str:
    """Return the compute capability of a setting's GPU, e.g. `8.6`."""
    return compute_capability(specification_name(setting.card) or "")


def _factor(setting: Setting, others: Iterable[Setting], name: str) -> float:
    values, own = [getattr(other, name) for other in others], getattr(setting, name)
    return float(max(own / max(values), min(values) / own))
