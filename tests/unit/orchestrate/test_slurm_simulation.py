"""Twelve hundred repeats in a queue cost the controller no more each than two hundred."""

from __future__ import annotations

import pytest

from tests.benchmarks.queue_cost import Cost
from tests.benchmarks.slurm.bench_slurm import measure

LANES = 200


def cost(repeats: int) -> Cost:
    """Measure a run over stand-ins for Slurm's commands."""
    measured = measure(repeats, lanes=LANES, seconds=1.0, poll_seconds=1.0)
    assert measured.faults == ()
    return measured


@pytest.mark.slow
def test_what_a_repeat_costs_does_not_grow_with_their_number():
    few, many = cost(200), cost(1200)
    assert (few.calls["sbatch"], many.calls["sbatch"]) == (1, 2), "an array has at most a thousand tasks"
    assert many.calls.total() / many.repeats <= few.calls.total() / few.repeats
    assert many.cpu_seconds / many.repeats <= 1.3 * few.cpu_seconds / few.repeats
