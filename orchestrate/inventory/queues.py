"""Fleets of a queue, which assigns the machines.

In a plan, a queue is one host of its fleet with several worker slots. Its settings are a frozen model, which defines
the keys of the file and is also used by launchers.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Annotated, Literal

from pydantic import AfterValidator, BeforeValidator, Field, StrictBool, StrictFloat, StrictInt, StrictStr

from orchestrate.inventory.addresses import SSHAddress, ssh_address
from orchestrate.text import shown
from orchestrate.yaml_files import ExistingFile, Form, described

MAX_SLOTS = 1000
"""Maximum number of a queue's jobs that are followed at a time: each takes a thread."""

MOST_MINUTES = 100_000

Number = StrictInt | StrictFloat
Slots = Annotated[StrictInt, Field(ge=1, le=MAX_SLOTS)]
Minutes = Annotated[Number, Field(ge=1, le=MOST_MINUTES)]
Word = Annotated[StrictStr, Field(pattern=r"^[A-Za-z0-9_][A-Za-z0-9_.,@+-]{0,99}$")]
FolderPath = Annotated[StrictStr, Field(pattern=r"^(?:/[A-Za-z0-9_.@+=,-]+)+$", max_length=200)]
"""An absolute path without characters that are special to a shell or in `#SBATCH` lines."""

Module = Annotated[StrictStr, Field(pattern=r"^[A-Za-z0-9_][A-Za-z0-9_.+/@=:-]{0,99}$")]
_GPUS_PER_NODE = r"^(?:[A-Za-z0-9_][A-Za-z0-9_.-]*:)?[1-9][0-9]{0,3}$"
GPUsPerNode = Annotated[StrictStr, Field(pattern=r"^gpu(?::[A-Za-z0-9_][A-Za-z0-9_.-]*)?:[1-9][0-9]{0,3}$")]
Constraint = Annotated[StrictStr, Field(pattern=r"^[A-Za-z0-9_\[(][A-Za-z0-9_.,:&|*()\[\]=-]{0,199}$")]
Option = Annotated[StrictStr, Field(pattern=r"^--[a-z][a-z-]*(?:=[A-Za-z0-9_.,:@+/=\[\]&|*()-]+)?$")]


def _destination(text: str) -> str:
    ssh_address(text.removeprefix("ssh://"))
    return text


SET_BY_US = frozenset(
    {"array", "job-name", "comment", "output", "error", "requeue", "no-requeue", "time", "nodes", "ntasks", "gres"}
    | {"partition", "account", "qos", "constraint", "exclusive", "mem", "cpus-per-task", "chdir", "parsable", "wrap"}
    | {"dependency", "signal", "open-mode", "hold", "test-only", "wait", "help", "usage", "version", "ntasks-per-node"}
    | {"gpus-per-node"}
)
"""Options of `sbatch` that the launcher sets, or that would break it."""


def as_text(value: object) -> object:
    """Convert a bare count, which YAML parses as a number, to text."""
    return str(value) if isinstance(value, int) and not isinstance(value, bool) else value


class SlurmQueue(Form):
    """A Slurm cluster, as described in `hosts.yml`."""

    container: Literal["pyxis", "apptainer", "none"] = Field(examples=["apptainer"])
    shared_folder: FolderPath = Field(
        description="the absolute path of a folder that the login host and all nodes share", examples=["/home/bench"]
    )
    partition: Word | None = described("the name of a partition", "gpu")
    gres: GPUsPerNode | None = described("the GPUs of one node, as Slurm names them: gpu:TYPE:COUNT", "gpu:a5000:4")
    gpus_per_node: Annotated[StrictStr, BeforeValidator(as_text), Field(pattern=_GPUS_PER_NODE)] | None = described(
        "the GPUs of one node, TYPE:COUNT or COUNT, instead of gres if Slurm requires --gpus-per-node", "a5000:4"
    )
    image_file: FolderPath | None = described("the absolute path of a .sqsh or .sif file", "/home/bench/tfbench.sqsh")
    modules: tuple[Module, ...] = described("a list of modules that the nodes load", "[apptainer/1.4]", default=())
    account: Word | None = described("the account that is charged", "physics")
    qos: Word | None = described("the name of a quality of service", "low")
    constraint: Constraint | None = described("features that a node must have", "a5000")
    options: tuple[Option, ...] = described("a list of options of sbatch", "['--reservation=bench']", default=())
    ssh: Annotated[StrictStr, AfterValidator(_destination)] | None = None
    ssh_config: ExistingFile | None = None
    max_jobs: Slots = 8
    time_limit_minutes: Minutes | None = described("a number of at least 1", "90")
    poll_seconds: Annotated[Number, Field(ge=0.2, le=600)] = described("a number from 0.2 to 600", "5", default=5)
    exclusive: StrictBool = True
    python: FolderPath | None = described("the absolute path of a Python on the nodes", "/home/bench/.venv/bin/python")
    project: FolderPath | None = described("the absolute path of tfbench's folder on the nodes", "/home/bench/tfbench")

    @property
    def gpu_count(self) -> int:
        """Return the number of GPUs on each node."""
        return self.gpus[1]

    @property
    def gpus(self) -> tuple[str, int]:
        """Return Slurm's type of the GPUs of a node, empty for any, and their number."""
        kind, _, count = (self.gpus_per_node or (self.gres or "").removeprefix("gpu:")).rpartition(":")
        return kind, int(count or 0)

    def gpu_options(self, count: int) -> list[str]:
        """Return the options of `sbatch` that request GPUs on each node.

        Args:
            count: GPUs on each node; 0: none.
        """
        kind, offered = self.gpus
        if not count or not offered:
            return []
        gpus = f"{kind}:{count}".removeprefix(":")
        return [f"--gpus-per-node={gpus}" if self.gpus_per_node else f"--gres=gpu:{gpus}"]

    @property
    def login(self) -> SSHAddress | None:
        """Return the ssh destination for Slurm's commands; None: they run on this machine."""
        if self.ssh is None:
            return None
        return dataclasses.replace(ssh_address(self.ssh.removeprefix("ssh://")), ssh_config=self.ssh_config)

    def mistakes(self) -> Iterator[tuple[str, str]]:
        """See `Form.mistakes`."""
        bare = self.container == "none"
        for key in ("python", "project"):
            if bare and self.ssh is not None and getattr(self, key) is None:
                yield "ssh", f"container: none over ssh needs {key}, a path on the nodes. Add it"
        yield from self.misplaced(
            (
                (bare, "container: none", ("python", "project")),
                (not bare, "container: pyxis or apptainer", ("image_file",)),
                (self.ssh is not None, "ssh:", ("ssh_config",)),
            )
        )
        for option in self.options:
            if option.removeprefix("--").partition("=")[0] in SET_BY_US:
                text = f"{shown(option)} is set by tfbench. Remove it; use its key in hosts.yml if it has one"
                yield "options", text


_LABEL = "[A-Za-z0-9](?:[A-Za-z0-9._/-]{0,315}[A-Za-z0-9])?"
"""Names and keys of labels; the cluster itself refuses what is none."""

Label = Annotated[StrictStr, Field(pattern=f"^{_LABEL}$")]
LabelValue = Annotated[StrictStr, Field(pattern=f"^(?:{_LABEL})?$")]


class Toleration(Form):
    """A node taint that the pods of repeats tolerate."""

    key: Label | None = described("the key of a taint", "nvidia.com/gpu")
    operator: Literal["Exists", "Equal"] = "Equal"
    value: LabelValue | None = described("the value of a taint, for Equal", "present")
    effect: Literal["NoSchedule", "PreferNoSchedule", "NoExecute"] | None = None


class KubernetesQueue(Form):
    """A namespace of a Kubernetes cluster and one kind of its nodes, as described in `hosts.yml`."""

    context: Annotated[StrictStr, Field(min_length=1, max_length=253)] | None = None
    kubeconfig: ExistingFile | None = None
    namespace: Annotated[StrictStr, Field(pattern="^[a-z0-9-]{1,63}$")] | None = described("a namespace", "tfbench")
    node_selector: dict[Label, LabelValue] = described(
        "a mapping of labels that nodes must have", "{nvidia.com/gpu.product: NVIDIA-L4}", default={}
    )
    tolerations: tuple[Toleration, ...] = ()
    image_pull_secrets: tuple[Label, ...] = described("a list of names of secrets", "[registry]", default=())
    queue: Label | None = described("the name of a LocalQueue of Kueue", "bench")
    service_account: Label | None = described("the name of a service account", "bench")
    runtime_class: Label | None = described("the name of a runtime class", "nvidia")
    data_claim: Label | None = described("the name of a volume claim with TFRecords", "imagenet")
    gpus_per_node: Annotated[StrictInt, Field(ge=0, le=64)] | None = None
    gpu_resource: Label = described("the resource name of the GPUs", "nvidia.com/gpu", default="nvidia.com/gpu")
    security: Literal["standard", "openshift"] = "standard"
    exclusive: StrictBool = True
    max_jobs: Slots = 8
    pending_minutes: Minutes = described("a number of at least 1", "60", default=60)

    @property
    def gpu_count(self) -> int:
        """Return the GPUs of a node as stated in `hosts.yml`, or 0."""
        return self.gpus_per_node or 0
