"""One network in training, outside of a benchmark, for the probes that look into its step."""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from results.schema import Case, Device, Precision
from tfbench.setup import gpu_settings


@dataclass(frozen=True, kw_only=True)
class Probed:
    """A network in training.

    Attributes:
        device: That all of it is to lie on.
        step: Takes one step and returns what the step returns.
        captured: Returns the variables and constants that the step uses.
    """

    case: Case
    device: str
    step: Callable[[], Any]
    captured: Callable[[], list[Any]]


def parse(description: str | None) -> argparse.Namespace:
    """Read the flags of such a probe."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument("--model", default="resnet50")
    parser.add_argument("--precision", choices=list(Precision), default="fp32")
    parser.add_argument("--batch_size", type=int, default=64)
    parser.add_argument("--image_size", type=int)
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument("--device", choices=["gpu", "cpu"], default="gpu")
    return parser.parse_args()


def build(options: argparse.Namespace) -> Probed:
    """Build it as a benchmark does, with one replica.

    On a CPU the replica lies on the second of two logical devices, so that what lies on the first, which is where
    TensorFlow puts what it puts on the host, can be reported from it.
    """
    case = Case(
        model=options.model,
        precision=Precision(options.precision),
        batch_per_gpu=options.batch_size,
        image_size=options.image_size,
        device=Device(options.device),
    )
    os.environ.setdefault("CUDA_DEVICE_ORDER", "PCI_BUS_ID")
    for name, value in gpu_settings(case).items():
        os.environ.setdefault(name, value)
    if case.device is Device.GPU:
        from tfbench.machine.cuda_libraries import prepare_gpu_libraries

        prepare_gpu_libraries()
    import tensorflow as tf

    from tfbench.machine.host import cpu_limit
    from tfbench.models import NETWORKS
    from tfbench.setup.devices import configure, create_strategy, threads_for
    from tfbench.training.inputs import batch_source
    from tfbench.training.step import Training
    from tfbench.training.tasks import TASKS

    configure(case, threads_for(cpu_limit()))
    if case.device is Device.GPU:
        strategy, device = create_strategy(case), "GPU:0"
    else:
        cpu = tf.config.list_physical_devices("CPU")[0]
        tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 2)
        strategy, device = tf.distribute.MirroredStrategy(["CPU:1"]), "CPU:1"
    network = NETWORKS[case.model]
    size, task = network.size(case), TASKS[network.task]
    training = Training(case, network.build(case.batch_norm, size, strategy), strategy, task=task)
    next_batch = batch_source(case, size, network.classes, strategy, task)

    def captured() -> list[Any]:
        return list(training.traced(next_batch()).captured_inputs)

    return Probed(case=case, device=device, step=lambda: training.step(next_batch()), captured=captured)
