"""The hour as one table, the most telling steps first."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from fnmatch import fnmatchcase

from tests.benchmarks.gpu_evidence.steps import Run, Step
from tests.benchmarks.tf_cnn_benchmarks import PAIRINGS, PROGRAM, cpu_flags, flags, variables

TIMED, WARMUP = 50, 10
"""Steps of a run: enough for a spread of 1 %, and a run of ResNet50 in well under a minute on a current GPU."""

BENCHMARK = ("{python}", "-m", "tfbench", "--output={record}", "--max_seconds={seconds}", "--max_cooling_seconds=0")
PROBE = ("{python}", "-m", "tests.benchmarks.gpu_evidence.{probe}", "--output={record}")

SMALL = (
    "--device=cpu",
    "--model=googlenet",
    "--batch_size=4",
    "--image_size=64",
    "--warmup_steps=1",
    "--num_steps=5",
    "--nopeaks",
)
"""What makes a case small enough for a CPU. Its figures prove the step, and say nothing about a GPU nor a network."""

SMALLEST = (
    "--device=cpu",
    "--model=googlenet",
    "--batch_size=1",
    "--image_size=32",
    "--warmup_steps=0",
    "--num_steps=2",
    "--nopeaks",
)

HALF, FULL = 256, 128
"""Images per step in 16 and 32 bits, the defaults of `python -m tfbench`."""

BATCH = {"fp32": FULL, "tf32": FULL, "fp16": HALF, "bf16": HALF}
NETWORKS = ("resnet50", "resnet152", "inception_v3", "googlenet")
BERT_BATCH = 64

ONE_RUN, ONE_COMPILED_RUN = 180, 300
"""Seconds: limits of one process; XLA takes minutes for the deepest networks."""


def tfbench(name: str, *extra: str, cpu: tuple[str, ...] | None = None, **environment: str) -> Run:
    """Return a run of one case."""
    timing = (f"--num_steps={TIMED}", f"--warmup_steps={WARMUP}", f"--max_warmup_steps={2 * WARMUP}")
    return Run(name=name, command=(*BENCHMARK, *timing, *extra), variables=environment, cpu=cpu)


def probe(module: str, *extra: str, cpu: tuple[str, ...] | None = None) -> Run:
    """Return a run of a script of this folder."""
    return Run(name="probe", command=(*(part.replace("{probe}", module) for part in PROBE), *extra), cpu=cpu)


def environment() -> Iterator[Step]:
    """What the machine is, and whether TensorFlow works at all."""
    command = ("{python}", "-m", "tfbench.doctor", "--format=json")
    doctor = Run(name="doctor", command=command, cpu=("--device=cpu",), reads_log=True)
    yield Step(
        name="environment.tensorflow",
        question="TensorFlow starts, sees the GPU, uses cuDNN, and XLA finds ptxas",
        runs=(probe("probe_tensorflow", cpu=("--device=cpu",)),),
        figure="probe",
        limit=150,
    )
    yield Step(
        name="environment.software",
        question="driver, packages, version of this project",
        runs=(probe("probe_environment", "--folder={folder}", cpu=()),),
        figure="probe",
        limit=60,
    )
    yield Step(
        name="environment.doctor",
        question="what of this machine is broken or costs speed",
        runs=(doctor,),
        figure="doctor",
        limit=150,
    )


def gates() -> Iterator[Step]:
    """Is what is measured right (findings 1, 9)?"""
    for precision in ("fp32", "tf32", "fp16", "bf16"):
        case = ("--model=resnet50", f"--precision={precision}", "--batch_size=64", "--nopeaks")
        yield Step(
            name=f"gates.{precision}",
            question=f"resnet50 in {precision} passes its validity gates",
            runs=(tfbench("run", *case, cpu=SMALLEST if precision == "fp32" else None),),
            figure="gates",
            limit=120,
        )
    accumulated = tfbench(
        "run",
        *("--model=resnet50", "--precision=fp16", "--batch_size=64", "--accumulate=8", "--nopeaks"),
        cpu=(*SMALLEST, "--accumulate=2", "--num_steps=1"),
    )
    yield Step(
        name="gates.fp16-accumulate-8",
        question="finding 1: fp16 gradients of a large global batch equal those of one device",
        runs=(accumulated,),
        figure="update",
        limit=180,
    )


def synchronisation() -> Iterator[Step]:
    """Does a step wait for the host (findings 10, 11, 16, 17)?"""
    for precision in ("fp16", "fp32"):
        case = ("--model=resnet50", f"--precision={precision}", "--batch_size=64")
        small = ("--device=cpu", "--model=googlenet", "--batch_size=2", "--image_size=64", "--steps=5")
        yield Step(
            name=f"synchronisation.{precision}",
            question="findings 10, 11: a step's call returns before the step is done, and its output is on the GPU",
            runs=(probe("probe_step", *case, cpu=small if precision == "fp32" else None),),
            figure="probe",
            limit=150,
        )
    yield Step(
        name="synchronisation.timeline",
        question="findings 3, 12, 16: share of a step in which the GPU computes, and in which it turns layouts",
        runs=(probe("probe_timeline", "--model=resnet50", "--precision=fp16", "--batch_size=64"),),
        figure="probe",
        limit=150,
    )


def device() -> Iterator[Step]:
    """What can the device itself do (findings 4, 5)?"""
    small = ("--device=cpu",)
    yield Step(
        name="device.peaks",
        question="finding 4: int8 above 1 TOP/s; matrix products, copies",
        runs=(Run(name="run", command=(*BENCHMARK, "--model=device"), cpu=small),),
        figure="device",
        limit=240,
    )


def one(network: str, precision: str, xla: str = "off", *, cpu: tuple[str, ...] | None = None) -> Step:
    """Return the throughput of one network."""
    batch = BERT_BATCH if network == "bert_large" else BATCH[precision]
    case = (f"--model={network}", f"--precision={precision}", f"--batch_size={batch}", f"--xla={xla}")
    return Step(
        name=f"throughput.{network}-{precision}" + ("" if xla == "off" else f"-xla-{xla}"),
        question="throughput, power, utilisation",
        runs=(tfbench("run", *case, cpu=cpu),),
        figure="throughput",
        limit=ONE_RUN if xla == "off" else ONE_COMPILED_RUN,
    )


def beside_peer(network: str, precision: str, batch: int) -> Step:
    """Return the ratio to tf_cnn_benchmarks."""
    pairing = PAIRINGS[network]
    ours = tfbench(
        "tfbench",
        *(f"--model={network}", f"--precision={precision}", f"--batch_size={batch}", "--nopeaks"),
        f"--batch_norm={pairing.batch_norm}",
        cpu=SMALL_PEER if (network, precision, batch) == ("googlenet", "fp32", 64) else None,
    )
    theirs = Run(
        name="peer",
        command=("{peer_python}", PROGRAM, *flags(pairing, precision, batch, TIMED, WARMUP)),
        variables=variables(precision),
        cpu=(*cpu_flags(2, 2), "--batch_size=2", "--num_batches=10", "--num_warmup_batches=2"),
        reads_log=True,
    )
    return Step(
        name=f"peer.{network}-{precision}-b{batch}",
        question="throughput of tfbench over that of tf_cnn_benchmarks",
        runs=(ours, theirs),
        figure="ratio",
        limit=360,
        needs_peer=True,
        compares=True,
    )


SMALL_PEER = ("--device=cpu", "--batch_size=2", "--warmup_steps=2", "--max_warmup_steps=2", "--num_steps=10")
"""Of the network's own image size: tf_cnn_benchmarks has no other."""


def throughput() -> Iterator[Step]:
    """How fast is it, also beside tf_cnn_benchmarks; one precision of each network before all of one."""
    yield one("resnet50", "fp16")
    yield beside_peer("resnet50", "fp16", HALF)
    yield one("resnet50", "fp32", cpu=SMALL)
    yield one("resnet50", "tf32")
    yield beside_peer("resnet50", "fp16", 64)
    for precision in ("fp32", "tf32"):
        yield beside_peer("resnet50", precision, 64)
    yield one("resnet50", "fp16", "replica")
    for network in (*NETWORKS[1:], "bert_large"):
        yield one(network, "fp16")


def more_throughput() -> Iterator[Step]:
    """The rest of the matrix."""
    for precision in ("fp32", "tf32"):
        yield beside_peer("resnet50", precision, HALF)
    for network in NETWORKS[1:]:
        for precision in ("fp16", "fp32", "tf32"):
            for batch in (64, HALF):
                yield beside_peer(network, precision, batch)
    for network in (*NETWORKS, "bert_large"):
        for precision in ("fp32", "tf32", "fp16"):
            for xla in ("off", "replica"):
                yield one(network, precision, xla)


SWITCHES: tuple[tuple[str, str, tuple[str, ...], dict[str, str]], ...] = (
    ("no-memory-growth", "resnet50", ("--nomemory_growth",), {}),
    ("bf16", "resnet50", ("--precision=bf16",), {}),
    ("xla-replica", "resnet50", ("--xla=replica",), {}),
    ("no-telemetry", "resnet50", ("--notelemetry",), {}),
    ("no-persistent-batch-norm", "resnet50", (), {"TF_USE_CUDNN_BATCHNORM_SPATIAL_PERSISTENT": "0"}),
    ("global-threads", "resnet50", (), {"TF_GPU_THREAD_MODE": "global"}),
    ("xla-auto", "resnet50", ("--xla=auto",), {}),
    ("cublaslt", "bert_large", (), {"TF_USE_CUBLASLT": "1"}),
)
"""One switch at a time in fp16: name, network, flags, environment variables."""

REPLICA_SWITCHES: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("no-all-reduce", ("--noall_reduce",)),
    ("pack-0", ("--all_reduce_pack_mb=0",)),
    ("pack-8", ("--all_reduce_pack_mb=8",)),
    ("pack-16", ("--all_reduce_pack_mb=16",)),
    ("pack-50", ("--all_reduce_pack_mb=50",)),
    ("reduce-fp16", ("--all_reduce_dtype=fp16",)),
)
"""Likewise over all GPUs; what they are compared with is the default pack."""


def switches() -> Iterator[Step]:
    """What does each setting bring (findings 13, 16, 18, 19)?"""
    for name, network, extra, env in SWITCHES:
        batch = BERT_BATCH if network == "bert_large" else HALF
        case = (f"--model={network}", "--precision=fp16", f"--batch_size={batch}", "--nopeaks")
        cpu = (*SMALL, "--precision=fp32") if name == "no-memory-growth" else None
        yield Step(
            name=f"switch.{name}",
            question=f"{network} fp16: throughput with the switch over that without",
            runs=(tfbench("switch", *case, *extra, cpu=cpu, **env), tfbench("default", *case, cpu=cpu)),
            figure="ratio",
            limit=480 if "xla" in name else 360,
            compares=True,
        )


def layouts() -> Iterator[Step]:
    """Are the layouts that TensorFlow chooses for 32 bits, channels first, the faster ones?"""
    for precision in ("tf32", "fp32"):
        case = ("--model=resnet50", f"--precision={precision}", f"--batch_size={FULL}", "--nopeaks")
        default = tfbench("default", *case)
        module = tuple("tests.benchmarks.gpu_evidence.keep_layout" if part == "tfbench" else part for part in BENCHMARK)
        kept = dataclasses.replace(default, name="kept", command=(*module, *default.command[len(BENCHMARK) :]))
        yield Step(
            name=f"layout.{precision}-channels-last",
            question=f"resnet50 {precision}: throughput with channels last over that with the optimiser's layout",
            runs=(kept, default),
            figure="ratio",
            limit=360,
            compares=True,
        )


def largest_batches() -> Iterator[Step]:
    """Does the search end with a batch (finding 2)?"""
    for network, start in (("resnet50", 512), ("bert_large", 256)):
        case = (f"--model={network}", "--precision=fp16", f"--batch_size={start}", "--find_max_batch", "--nopeaks")
        yield Step(
            name=f"max_batch.{network}-fp16",
            question="finding 2: running out of memory is recognised; the largest batch",
            runs=(tfbench("run", *case),),
            figure="max_batch",
            limit=480,
        )


def transformers() -> Iterator[Step]:
    """How fast are transformers (finding 19)?"""
    for network, precision, batch, xla in (
        ("bert_large", "bf16", BERT_BATCH, "off"),
        ("bert_large", "fp16", BERT_BATCH, "replica"),
        ("gpt2_small", "fp16", 16, "off"),
        ("gpt2_small", "fp16", 16, "replica"),
        ("vit_b16", "fp16", 128, "off"),
        ("vit_b16", "fp16", 128, "replica"),
    ):
        name = f"{network}-{precision}" + ("" if xla == "off" else f"-xla-{xla}")
        case = (f"--model={network}", f"--precision={precision}", f"--batch_size={batch}", f"--xla={xla}")
        cpu = ("--precision=fp32", *SMALLEST, "--model=vit_b16") if name == "vit_b16-fp16" else None
        yield Step(
            name=f"transformers.{name}",
            question="throughput, power, utilisation",
            runs=(tfbench("run", *case, cpu=cpu),),
            figure="throughput",
            limit=ONE_RUN if xla == "off" else ONE_COMPILED_RUN,
        )


def latency() -> Iterator[Step]:
    """How long does one sample take (finding 21)?"""
    for network in ("resnet50", "bert_large"):
        case = (f"--model={network}", "--mode=infer", "--precision=fp16", f"--batch_size={BERT_BATCH}")
        cpu = (*SMALL, "--precision=fp32") if network == "resnet50" else None
        yield Step(
            name=f"latency.{network}-fp16",
            question="inference at batch 1, p50",
            runs=(tfbench("run", *case, cpu=cpu),),
            figure="latency",
            limit=180,
        )


def replicas() -> Iterator[Step]:
    """What do several GPUs bring (findings 1, 5, 12, 13, 20)?"""
    case = ("--model=resnet50", "--precision=fp16", f"--batch_size={HALF}", "--num_gpus={gpus}", "--nopeaks")
    yield Step(
        name="replicas.gates",
        question="several replicas train like one device: relative difference of the update",
        runs=(tfbench("run", *case, cpu=(*SMALLEST, "--precision=fp32", "--num_gpus=2")),),
        figure="update",
        limit=240,
        gpus=2,
    )
    yield Step(
        name="replicas.nccl",
        question="NCCL's own report, in the log; throughput",
        runs=(tfbench("run", *case, NCCL_DEBUG="INFO"),),
        figure="throughput",
        limit=180,
        gpus=2,
    )
    yield Step(
        name="replicas.all-reduce",
        question="finding 5: bus bandwidth of the all-reduce",
        runs=(Run(name="run", command=(*BENCHMARK, "--model=device", "--num_gpus={gpus}")),),
        figure="all_reduce",
        limit=300,
        gpus=2,
    )
    for count in (2, 4):  # all GPUs are above
        few = (*case[:3], f"--num_gpus={count}", "--nopeaks")
        yield Step(
            name=f"replicas.scaling-{count}",
            question=f"throughput of {count} GPUs",
            runs=(tfbench("run", *few),),
            figure="throughput",
            limit=ONE_RUN,
            gpus=count,
        )
    for name, extra in REPLICA_SWITCHES:
        yield Step(
            name=f"replicas.{name}",
            question="resnet50 fp16 on all GPUs: throughput with the switch over that without",
            runs=(tfbench("switch", *case, *extra), tfbench("default", *case)),
            figure="ratio",
            limit=420,
            gpus=2,
            compares=True,
        )


def profilers() -> Iterator[Step]:
    """Where does the time of a step go, by NVIDIA's tools?"""
    case = ("--model=resnet50", "--precision=fp16", "--batch_size=64", "--nopeaks", "--notelemetry")
    nsys = ("nsys", "profile", "--trace=cuda", "--force-overwrite=true", "--stats=true", "--output={profile}")
    ncu = ("ncu", "--target-processes=all", "--clock-control=none", "--launch-skip=4000", "--launch-count=60", "--csv")
    metrics = "gpu__time_duration.sum,sm__throughput.avg.pct_of_peak_sustained_elapsed"
    run = tfbench("run", *case).command
    yield Step(
        name="profile.nsys",
        question="finding 3: share of kernel time that turns layouts",
        runs=(Run(name="run", command=(*nsys, *run), reads_log=True),),
        figure="nsys",
        limit=240,
        program="nsys",
    )
    yield Step(
        name="profile.ncu",
        question="how busy the multiprocessors are within kernels",
        runs=(Run(name="run", command=(*ncu, f"--metrics={metrics}", *run), reads_log=True),),
        figure="ncu",
        limit=300,
        program="ncu",
    )


FIRST = (
    *("environment.*", "gates.fp16", "gates.fp32", "throughput.resnet50-fp16", "synchronisation.fp16"),
    *("throughput.resnet50-fp32", "throughput.resnet50-tf32", "replicas.gates", "replicas.nccl", "replicas.scaling-*"),
    *("peer.resnet50-fp16-b256", "gates.fp16-accumulate-8", "device.peaks", "synchronisation.timeline"),
    *("throughput.*-fp16", "replicas.no-all-reduce", "switch.no-persistent-batch-norm", "layout.tf32-*"),
    *("transformers.*-fp16", "latency.*", "max_batch.resnet50-fp16", "switch.xla-replica", "gates.*"),
)
"""Names or patterns of the steps that answer most: about the first 30 minutes of one GPU."""


def hour() -> tuple[Step, ...]:
    """Return all steps in their order, each name once: those of `FIRST`, then the rest group by group."""
    groups = (
        environment,
        gates,
        synchronisation,
        device,
        throughput,
        switches,
        layouts,
        largest_batches,
        transformers,
        latency,
        replicas,
        profilers,
        more_throughput,
    )
    steps: dict[str, Step] = {}
    for group in groups:
        for step in group():
            steps.setdefault(step.name, step)
    first = [name for pattern in FIRST for name in steps if fnmatchcase(name, pattern)]
    return tuple(steps[name] for name in dict.fromkeys([*first, *steps]))
