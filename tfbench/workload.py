"""What one process measures, and what it builds for it: the network, its step and its batches."""

from __future__ import annotations

import time
import typing
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from results.schema import BatchNorm, Case, Mode
from tfbench.flags import Options
from tfbench.inference.forward import Inference
from tfbench.keras_versions.types import Model, Strategy, Tensor
from tfbench.keras_versions.weights import draw_weights
from tfbench.machine.nvml import GPUs
from tfbench.measuring.input_limit import WaitingSource
from tfbench.models import Network
from tfbench.peers.links import Alone
from tfbench.ranks import Ranks
from tfbench.training.inputs import batch_source
from tfbench.training.step import Training
from tfbench.training.tasks import TASKS, Batch, Task
from tfbench.training.tfrecords import DataSet, open_data_set, tfrecord_source


@dataclass(frozen=True, kw_only=True)
class Repeat:
    """What one process measures, and with what.

    Attributes:
        case: What to measure.
        network: The case's.
        strategy: Over the case's replicas.
        options: How to measure it.
        gpus: Observed while timing; the null object on a CPU.
        peers: The other hosts that train the case.
        make_training: Tests plant faults here.
    """

    case: Case
    network: Network
    strategy: Strategy
    options: Options = field(default_factory=Options)
    gpus: GPUs = field(default_factory=lambda: GPUs(0))
    peers: Ranks = field(default_factory=Alone)
    make_training: Callable[..., Training] = Training

    @property
    def size(self) -> int:
        """Pixels or tokens of an example."""
        return self.network.size(self.case)

    @property
    def task(self) -> Task:
        """What the network learns."""
        return TASKS[self.network.task]

    @property
    def samples_per_step(self) -> int:
        """Samples of one step in the network's unit, over all replicas of all hosts."""
        return self.case.global_batch * self.network.samples_per_example(self.case)

    @property
    def quantity(self) -> str:
        """What a step leaves for the host, as checks name it."""
        return "outputs" if self.case.mode is Mode.INFER else "loss"


@dataclass(frozen=True, kw_only=True)
class Built:
    """A network that is ready for its first step.

    Attributes:
        model: The Keras model.
        workload: What a step does with it.
        next_batch: Gives a step the replicas' batches.
        data_set: Where real batches come from; None: they are synthetic.
        seconds: That building took.
    """

    model: Model
    workload: Training | Inference
    next_batch: Callable[[], Batch]
    data_set: DataSet | None
    seconds: float

    def step(self) -> Sequence[Tensor]:
        """Start a step with the next batch: see `tfbench.measuring.timing.Step`."""
        return self.workload.step(self.next_batch())


def build(repeat: Repeat) -> Built:
    """Build the network, its step and its batches.

    Raises:
        CaseFailedError: The data set is missing, empty or damaged.
    """
    case, network, strategy, seed = repeat.case, repeat.network, repeat.strategy, repeat.options.seed
    folder = repeat.options.data_dir
    data_set = None if folder is None else open_data_set(folder, network.classes)
    begin = time.perf_counter()
    model = network.build(typing.cast(BatchNorm, case.batch_norm), repeat.size, strategy)
    if seed is not None:
        draw_weights(model, seed)
    workload: Training | Inference
    if case.mode is Mode.INFER:
        workload = Inference(case, model, strategy)
    else:
        workload = repeat.make_training(case, model, strategy, task=repeat.task)
    next_batch: Callable[[], Batch]
    if data_set is None:
        next_batch = batch_source(case, repeat.size, network.classes, strategy, repeat.task, seed)
    else:
        next_batch = WaitingSource(tfrecord_source(case, data_set, repeat.size, strategy))
    seconds = time.perf_counter() - begin
    return Built(model=model, workload=workload, next_batch=next_batch, data_set=data_set, seconds=seconds)
