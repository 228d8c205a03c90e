"""The table of steps of a GPU validation, the most informative first."""

import dataclasses
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from results.reference.networks import fitting_batch
from results.schema import XLA, Case, Precision
from results.schema.networks import NETWORKS
from studies.tf_cnn_benchmarks import PAIRINGS, PROGRAM, cpu_flags, flags, variables

START = ("environment.doctor", "environment.tensorflow")
"""Test whether TensorFlow computes right on the GPUs; after one that has no figure, nothing else runs."""

TIMED, WARMUP = 50, 10
"""Steps of a run: enough for a spread of 1 %, with ResNet50 in well under a minute on a current GPU."""

BENCHMARK = ("{python}", "-m", "tfbench", "--output={record}", "--max_seconds={seconds}", "--max_cooling_seconds=0")
TIMING = (f"--num_steps={TIMED}", f"--warmup_steps={WARMUP}", f"--max_warmup_steps={2 * WARMUP}")
PROBE = ("{python}", "-m", "studies.gpu_validation.probe_tensorflow")
PYTORCH = ("{torch_python}", "-m", "studies.gpu_validation.probe_pytorch")
CONTAINER = (
    *("{python}", "-m", "studies.gpu_validation.probe_container"),
    *("--engine={engine}", "--image={image}", "--folder={out}/runs"),
)

TINY = ("--device=cpu", "--precision=fp32", "--batch_size=2", "--image_size=64")
SMALL = (*TINY, "--model=googlenet", "--warmup_steps=1", "--max_warmup_steps=1", "--num_steps=3", "--nopeaks")
"""Flags that make a case small enough for a CPU. They test the step; figures do not apply to a GPU."""

HALF, FULL, BERT = 256, 128, 64
BATCH = {"fp32": FULL, "tf32": FULL, "fp16": HALF, "bf16": HALF}
"""Images per step: the defaults of `python -m tfbench`."""


@dataclass(frozen=True, kw_only=True)
class Run:
    """One process of a step.

    Attributes:
        name: Name within the step; in a comparison the side.
        command: Arguments; `{…}` are replaced. Without `{record}` the record is its standard output.
        variables: Variables added to the environment.
        cpu: Flags appended on a machine without GPUs; None: it needs a GPU.
    """

    name: str = "run"
    command: tuple[str, ...]
    variables: dict[str, str] = field(default_factory=dict)
    cpu: tuple[str, ...] | None = None


@dataclass(frozen=True, kw_only=True)
class Step:
    """One row of the table.

    Attributes:
        name: `group.what`, also the name of its files.
        question: Question that its figure answers.
        answer: Name of the figure, or of the compared figure.
        runs: One run, or two that alternate, for the ratio of the first to the second.
        limit: Limit in seconds for all runs, then `timeout`.
        gpus: Number of GPUs needed, unless it can run on a CPU.
    """

    name: str
    question: str
    answer: str
    runs: tuple[Run, ...]
    limit: float = 180
    gpus: int = 1

    @property
    def on_cpu(self) -> bool:
        """Whether it can run on a machine without GPUs."""
        return all(run.cpu is not None for run in self.runs)

    @property
    def needs_peer(self) -> bool:
        """Whether it runs tf_cnn_benchmarks."""
        return any(PROGRAM in run.command for run in self.runs)

    @property
    def needs_torch(self) -> bool:
        """Whether it runs PyTorch."""
        return any(run.command[: len(PYTORCH)] == PYTORCH for run in self.runs)

    @property
    def needs_engine(self) -> bool:
        """Whether it runs containers."""
        return any(run.command[: len(CONTAINER)] == CONTAINER for run in self.runs)


def tfbench(*flags: str, name: str = "run", cpu: tuple[str, ...] | None = None, **environment: str) -> Run:
    """Return a run of one case."""
    return Run(name=name, command=(*BENCHMARK, *TIMING, *flags), variables=environment, cpu=cpu)


def case(network: str, precision: str, batch: int | None = None, *extra: str) -> tuple[str, ...]:
    """Return the flags of a case."""
    batch = batch or (BERT if network == "bert_large" else BATCH[precision])
    return (f"--model={network}", f"--precision={precision}", f"--batch_size={batch}", *extra)


def checks(precision: str) -> Step:
    """Return the step for the validity checks of ResNet50 in a precision."""
    run = tfbench(*case("resnet50", precision, 64, "--nopeaks"), cpu=SMALL if precision == "fp32" else None)
    question = f"resnet50 in {precision} passes its validity checks"
    return Step(name=f"checks.{precision}", question=question, answer="checks_passed", runs=(run,))


def throughput(
    network: str, precision: str, batch: int | None = None, xla: str = "off", cpu: tuple[str, ...] | None = None
) -> Step:
    """Return the step for the throughput of a network."""
    return Step(
        name=f"throughput.{network}-{precision}" + ("" if xla == "off" else f"-xla-{xla}"),
        question="throughput, power, utilisation",
        answer="throughput",
        runs=(tfbench(*case(network, precision, batch, f"--xla={xla}"), cpu=cpu),),
        limit=180 if xla == "off" else 300,
    )


def peer(network: str, precision: str, batch: int) -> Step:
    """Return the step for the ratio to tf_cnn_benchmarks."""
    pairing, tiny = PAIRINGS[network], network == "googlenet" and (precision, batch) == ("fp32", 64)
    small = ("--device=cpu", "--batch_size=2", "--warmup_steps=2", "--max_warmup_steps=2", "--num_steps=10")
    ours = case(network, precision, batch, "--nopeaks", f"--batch_norm={pairing.batch_norm}")
    theirs = Run(
        name="peer",
        command=("{peer_python}", PROGRAM, *flags(pairing, precision, batch, TIMED, WARMUP)),
        variables=variables(precision),
        cpu=(*cpu_flags(2, 2), "--batch_size=2", "--num_batches=10", "--num_warmup_batches=2") if tiny else None,
    )
    return Step(
        name=f"peer.{network}-{precision}-b{batch}",
        question="throughput of tfbench over that of tf_cnn_benchmarks",
        answer="throughput",
        runs=(tfbench(*ours, name="tfbench", cpu=small if tiny else None), theirs),
        limit=360,
    )


def pytorch(precision: str, compiled: bool = False) -> Step:
    """Return the step for the ratio to PyTorch, a yardstick for how much of the GPU TensorFlow uses; ResNet50."""
    tiny = precision == "fp32" and not compiled
    small = (
        "--device=cpu",
        "--batch_size=2",
        "--image_size=64",
        "--warmup_steps=1",
        "--max_warmup_steps=1",
        "--num_steps=3",
    )
    sizes = (f"--precision={precision}", f"--batch_size={BATCH[precision]}", *(["--compiled"] if compiled else []))
    theirs = Run(
        name="pytorch",
        command=(*PYTORCH, *sizes),
        cpu=("--device=cpu", "--batch_size=2", "--image_size=64", "--steps=2") if tiny else None,
    )
    xla = "--xla=replica" if compiled else "--xla=off"
    ours = tfbench(*case("resnet50", precision, None, "--nopeaks", xla), name="tfbench", cpu=small if tiny else None)
    return Step(
        name=f"pytorch.resnet50-{precision}" + ("-compiled" if compiled else ""),
        question="throughput of tfbench over that of PyTorch" + (", both compiled" if compiled else ""),
        answer="throughput",
        runs=(ours, theirs),
        limit=480,
    )


def container(action: str, question: str, answer: str, limit: float = 300) -> Step:
    """Return a step that runs containers of this machine's engine."""
    run = Run(command=(*CONTAINER, action), cpu=("--device=cpu",) if action != "networks" else None)
    return Step(name=f"container.{action}", question=question, answer=answer, runs=(run,), limit=limit)


def switch(
    name: str,
    *extra: str,
    network: str = "resnet50",
    precision: str = "fp16",
    batch: int | None = None,
    both: tuple[str, ...] = (),
    gpus: int = 1,
    **environment: str,
) -> Step:
    """Return the step for the throughput with a switch over that without; both sides get the flags `both`."""
    flags = case(network, precision, batch, "--nopeaks", "--xla=off", *([ALL_GPUS] if gpus > 1 else []), *both)
    cpu = SMALL if name == "switch.no-memory-growth" else None
    return Step(
        name=name,
        question=f"{' '.join((network, precision, *([f'batch {batch}'] if batch else []), *both))}: throughput with the switch over that without",
        answer="throughput",
        runs=(tfbench(*flags, *extra, name="switch", cpu=cpu, **environment), tfbench(*flags, name="default", cpu=cpu)),
        limit=480,
        gpus=gpus,
    )


ALL_GPUS = "--num_gpus={gpus}"
INFER, COMPILED, LONGER = ("--mode=infer",), ("--xla=replica",), ("--min_seconds=10",)


def replicas(what: str, question: str, answer: str, run: Run, limit: float = 240, gpus: int = 2) -> Step:
    """Return a step that needs `gpus` GPUs or more."""
    return Step(name=f"replicas.{what}", question=question, answer=answer, runs=(run,), limit=limit, gpus=gpus)


def latency(network: str) -> Step:
    """Return the step for inference of one sample."""
    cpu = SMALL if network == "resnet50" else None
    run = tfbench(*case(network, "fp16", 64, "--mode=infer"), cpu=cpu)
    return Step(name=f"latency.{network}-fp16", question="inference at batch 1", answer="latency_p50", runs=(run,))


CONVOLUTIONAL = ("resnet50", "resnet152", "inception_v3", "googlenet")
EVERYWHERE = case("resnet50", "fp16", None, ALL_GPUS, "--nopeaks")
DOCTOR = ("{python}", "-m", "tfbench.doctor", "--format=json")
UPDATE = "update_equals_one_device"

ROWS: tuple[Step, ...] = (
    Step(
        name=START[0],
        question="what of this machine is broken or costs speed",
        answer="findings",
        runs=(Run(command=DOCTOR, cpu=("--device=cpu",)),),
    ),
    Step(
        name=START[1],
        question="TensorFlow sees the GPU, cuDNN convolves, XLA compiles",
        answer="gpus",
        runs=(Run(command=PROBE, cpu=("--device=cpu",)),),
    ),
    checks("fp16"),
    checks("fp32"),
    throughput("resnet50", "fp16"),
    throughput("resnet50", "fp32", cpu=SMALL),
    throughput("resnet50", "tf32"),
    replicas(
        "checks", "several replicas train like one device", UPDATE, tfbench(*EVERYWHERE, cpu=(*SMALL, "--num_gpus=2"))
    ),
    replicas(
        "nccl", "NCCL's own report, in the log; throughput", "throughput", tfbench(*EVERYWHERE, NCCL_DEBUG="INFO")
    ),
    *(
        replicas(
            f"scaling-{count}",
            f"throughput of {count} GPUs",
            "throughput",
            tfbench(*case("resnet50", "fp16", None, f"--num_gpus={count}", "--nopeaks")),
            gpus=count,
        )
        for count in (2, 4)  # all GPUs are above
    ),
    peer("resnet50", "fp16", HALF),
    Step(
        name="checks.fp16-accumulate-8",
        question="fp16 gradients of a large global batch equal those of one device",
        answer=UPDATE,
        runs=(tfbench(*case("resnet50", "fp16", 64, "--accumulate=8", "--nopeaks"), cpu=(*SMALL, "--accumulate=2")),),
    ),
    Step(
        name="device.peaks",
        question="rates of matrix products, memory and copies",
        answer="matrix_product-fp16",
        runs=(Run(command=(*BENCHMARK, "--model=device")),),
        limit=240,
    ),
    *(throughput(network, "fp16") for network in (*CONVOLUTIONAL[1:], "bert_large")),
    *(
        switch(f"switch.tf32-nhwc-{network}", network=network, precision="tf32", TFBENCH_LAYOUT_OPTIMIZER="0")
        for network in ("resnet50", "resnet152", "inception_v3", "vgg16")
    ),
    *(
        switch(f"switch.one-step-per-wait-b{batch}{name}", "--steps_per_wait=1", batch=batch, both=(*LONGER, *both))
        for batch in (32, 64)
        for name, both in (("", ()), ("-no-telemetry", ("--notelemetry",)))
    ),
    *(pytorch(precision, compiled) for compiled in (False, True) for precision in ("fp16", "tf32", "fp32")),
    container("check", "an engine's containers and a bare process are ready", "hosts_ready", 180),
    container("compare", "throughput of resnet50 fp16 in a container over that of a bare process", "throughput", 1800),
    container("resume", "a run survives its controller's SIGKILL: repeats that are ok", "repeats_ok"),
    container("networks", "BERT-Large with XLA, and batches that fill the GPU, in a container", "repeats_ok", 480),
    switch("replicas.no-all-reduce", "--noall_reduce", gpus=2),
    switch("switch.onednn", TF_ENABLE_ONEDNN_OPTS="1"),
    switch("switch.fp32-by-tensorflow", precision="fp32", NVIDIA_TF32_OVERRIDE=""),
    *(
        switch(
            f"switch.{name}-infer-by-tensorflow", network=name, precision="fp32", both=INFER, NVIDIA_TF32_OVERRIDE=""
        )
        for name in ("resnet50", "vgg16")
    ),
    switch("switch.no-persistent-batch-norm", TF_USE_CUDNN_BATCHNORM_SPATIAL_PERSISTENT="0"),
    throughput("gpt2_small", "fp16", 16),
    throughput("vit_b16", "fp16", 128, cpu=(*SMALL, "--model=vit_b16")),
    latency("resnet50"),
    latency("bert_large"),
    switch("switch.xla-replica", "--xla=replica"),
    checks("tf32"),
    checks("bf16"),
    *(peer("resnet50", precision, 64) for precision in ("fp16", "fp32", "tf32")),
    throughput("resnet50", "fp16", xla="replica"),
    switch("switch.no-memory-growth", "--nomemory_growth"),
    switch("switch.bf16", "--precision=bf16"),
    switch("switch.xla-auto", "--xla=auto"),
    throughput("bert_large", "bf16", BERT),
    throughput("gpt2_small", "fp16", 16, "replica"),
    switch("switch.no-graphs", network="bert_large", both=COMPILED, XLA_FLAGS="--xla_gpu_enable_command_buffer="),
    throughput("vit_b16", "fp16", 128, "replica"),
    replicas(
        "all-reduce",
        "bus bandwidth of the all-reduce",
        "all_reduce",
        Run(command=(*BENCHMARK, "--model=device", ALL_GPUS)),
        300,
    ),
    *(switch(f"replicas.pack-{size}", f"--all_reduce_pack_mb={size}", gpus=2) for size in (0, 8, 16, 50)),
    *(peer("resnet50", precision, HALF) for precision in ("fp32", "tf32")),
    *(
        peer(name, precision, size)
        for name in CONVOLUTIONAL[1:]
        for precision in ("fp16", "fp32", "tf32")
        for size in (64, HALF)
    ),
    *(
        throughput(network, precision, xla=xla)
        for network in (*CONVOLUTIONAL, "bert_large")
        for precision in ("fp32", "tf32", "fp16")
        for xla in ("off", "replica")
    ),
)

STEPS = tuple({step.name: step for step in reversed(ROWS)}[name] for name in dict.fromkeys(step.name for step in ROWS))
"""`ROWS` without duplicates."""


@dataclass(frozen=True, kw_only=True)
class Machine:
    """Properties of the machine that decide which steps can run.

    Attributes:
        gpus: Facts of each GPU that a process can use (`python -m tfbench.probe`).
        peer: Folder with tf_cnn_benchmarks.py; None: not given.
        no_gpu: Why TensorFlow cannot use the GPUs, or must not; empty: it can.
        no_torch: Why PyTorch cannot be a yardstick; empty: it can.
        no_engine: Why no containers can run; empty: an engine answers.
    """

    gpus: list[dict[str, Any]]
    peer: Path | None = None
    no_gpu: str = ""
    no_torch: str = ""
    no_engine: str = ""


def refusal(step: Step, machine: Machine) -> tuple[str, str] | None:
    """Return the outcome and cause of a step that this machine cannot run; None: it can."""
    on_cpu = not machine.gpus and step.on_cpu
    if machine.no_gpu and step.name != START[0]:
        return "no_gpu", machine.no_gpu
    if len(machine.gpus) < step.gpus and not on_cpu:
        return "no_gpu", f"needs {step.gpus} GPU{'s' if step.gpus > 1 else ''}, this machine has {len(machine.gpus)}"
    if step.needs_peer and machine.peer is None:
        return "no_peer", "--peer=FOLDER names a checkout of tf_cnn_benchmarks"
    if step.needs_torch and machine.no_torch:
        return "no_torch", machine.no_torch
    if step.needs_engine and machine.no_engine:
        return "no_engine", machine.no_engine
    return None


def runs_of(step: Step, machine: Machine, pairs: int) -> list[Run]:
    """Return the processes of a step on this machine, with batches that fit its memory; in pairs for a comparison.

    Args:
        pairs: Pairs of a comparison on GPUs; one on a CPU.
    """
    if machine.gpus:
        runs = _fitted(step.runs, min((gpu["memory_bytes"] or 0 for gpu in machine.gpus), default=0))
    else:
        runs, pairs = [dataclasses.replace(run, command=(*run.command, *(run.cpu or ()))) for run in step.runs], 1
    if len(runs) == 1:
        return runs
    return [dataclasses.replace(run, name=f"{run.name}-{pair}") for pair in range(1, pairs + 1) for run in runs]


def batch_of(run: Run) -> int | None:
    """Return the batch per GPU of a command line; None: it has none."""
    sizes = [part.partition("=")[2] for part in run.command if part.startswith("--batch_size=")]
    return int(sizes[-1]) if sizes else None  # the last flag counts


def _fitted(runs: tuple[Run, ...], memory_bytes: int) -> list[Run]:
    """Halve the batch of all runs of a step until training fits the GPU's memory."""
    ours = runs[0].command
    given = dict(part.split("=", 1) for part in ours if part.startswith("--") and "=" in part)
    model, batch = given.get("--model"), given.get("--batch_size")
    if not memory_bytes or batch is None or model not in NETWORKS or "--mode" in given:
        return list(runs)
    compiled = {XLA.OFF} | {xla for xla in XLA for run in runs if f"--xla={xla}" in run.command}
    tried = [
        Case(model=model, precision=Precision(given["--precision"]), batch_per_gpu=int(batch), xla=x) for x in compiled
    ]
    fitting = {f"--batch_size={batch}": f"--batch_size={min(fitting_batch(case, memory_bytes) for case in tried)}"}
    return [dataclasses.replace(run, command=tuple(fitting.get(part, part) for part in run.command)) for run in runs]
