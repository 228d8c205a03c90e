"""Fleets of a queue, which assigns the machines.

In a plan, a queue is one host of its fleet with several worker slots. Its settings are a frozen model, which defines
the keys of the file and is also used by launchers.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from typing import Annotated, Any, ClassVar, Literal

from pydantic import (
    AfterValidator,
    BeforeValidator,
    Field,
    PlainSerializer,
    StrictBool,
    StrictFloat,
    StrictInt,
    StrictStr,
)

from orchestrate.inventory.addresses import SSHAddress, ssh_address
from orchestrate.text import shown
from orchestrate.yaml_files import ExistingFile, Form, described

MAX_SLOTS = 1000
"""Maximum number of a queue's jobs that are followed at a time: each takes a thread."""

MOST_MINUTES = 100_000

Slots = Annotated[StrictInt, Field(ge=1, le=MAX_SLOTS)]
Minutes = Annotated[StrictInt | StrictFloat, Field(ge=1, le=MOST_MINUTES)]
Word = Annotated[StrictStr, Field(pattern=r"^[A-Za-z0-9_][A-Za-z0-9_.,@+-]{0,99}$")]
FolderPath = Annotated[StrictStr, Field(pattern=r"^(?:/[A-Za-z0-9_.@+=,-]+)+$", max_length=200)]
"""An absolute path without characters that are special to a shell or in `#SBATCH` lines."""

_MODULE = r"^[A-Za-z0-9_][A-Za-z0-9_.+/@=:-]{0,99}$"
_GPUS_PER_NODE = r"^(?:[A-Za-z0-9_][A-Za-z0-9_.-]*:)?[1-9][0-9]{0,3}$"
_GRES = r"^gpu(?::[A-Za-z0-9_][A-Za-z0-9_.-]*)?:[1-9][0-9]{0,3}$"
_CONSTRAINT = r"^[A-Za-z0-9_\[(][A-Za-z0-9_.,:&|*()\[\]=-]{0,199}$"
_OPTION = r"^--[a-z][a-z-]*(?:=[A-Za-z0-9_.,:@+/=\[\]&|*()-]+)?$"


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


def _as_text(value: object) -> object:
    """Convert a bare count, which YAML parses as a number, to text."""
    return str(value) if isinstance(value, int) and not isinstance(value, bool) else value


class SlurmQueue(Form):
    """A Slurm cluster, as described in `hosts.yml`."""

    kind: ClassVar[str] = "slurm"

    container: Literal["pyxis", "apptainer", "none"] = Field(
        description="pyxis, apptainer or none (none: a Python on the nodes)", examples=["apptainer"]
    )
    shared_folder: FolderPath = Field(
        description="the absolute path of a folder that the login host and all nodes share", examples=["/home/bench"]
    )
    partition: Word | None = described("the name of a partition", "gpu")
    gres: Annotated[StrictStr, Field(pattern=_GRES)] | None = described(
        "the GPUs of one node, as Slurm names them: gpu:TYPE:COUNT", "gpu:a5000:4"
    )
    gpus_per_node: Annotated[StrictStr, BeforeValidator(_as_text), Field(pattern=_GPUS_PER_NODE)] | None = described(
        "the GPUs of one node, TYPE:COUNT or COUNT, instead of gres if Slurm requires --gpus-per-node", "a5000:4"
    )
    image_file: FolderPath | None = described(
        "the absolute path of a file made from the image: .sqsh (pyxis) or .sif (apptainer)", "/home/bench/tfbench.sqsh"
    )
    modules: tuple[Annotated[StrictStr, Field(pattern=_MODULE)], ...] = described(
        "a list of modules that the nodes load first", "[apptainer/1.4]", default=()
    )
    account: Word | None = described("the account that is charged", "physics")
    qos: Word | None = described("the name of a quality of service", "low")
    constraint: Annotated[StrictStr, Field(pattern=_CONSTRAINT)] | None = described(
        "features that a node must have, as sbatch --constraint takes them", "a5000"
    )
    options: tuple[Annotated[StrictStr, Field(pattern=_OPTION)], ...] = described(
        "a list of further options of sbatch", "['--reservation=bench']", default=()
    )
    ssh: Annotated[StrictStr, AfterValidator(_destination)] | None = described(
        "the login host: user@host or an alias of ~/.ssh/config", "bench@login"
    )
    ssh_config: ExistingFile | None = described(
        "the path of an ssh configuration file, instead of ~/.ssh/config", "ssh_config"
    )
    max_jobs: Slots = described(
        f"a whole number from 1 to {MAX_SLOTS}: maximum number of jobs at a time", "8", default=8
    )
    time_limit_minutes: Minutes | None = described(
        "a number of at least 1: Slurm's time limit for a repeat, in minutes", "90"
    )
    poll_seconds: Annotated[StrictInt | StrictFloat, Field(ge=0.2, le=600)] = described(
        "a number from 0.2 to 600: seconds between queries to Slurm", "5", default=5
    )
    exclusive: StrictBool = described(
        "true or false (false: jobs may share a node and disturb each other)", "true", default=True
    )
    python: FolderPath | None = described(
        "the absolute path of a Python with TensorFlow on the nodes, for container: none",
        "/home/bench/tfbench/.venv/bin/python",
    )
    project: FolderPath | None = described("the absolute path of tfbench's folder on the nodes", "/home/bench/tfbench")

    @property
    def gpu_count(self) -> int:
        """Return the number of GPUs on each node."""
        return int((self._gpus or "0").rpartition(":")[2])

    @property
    def gpu_type(self) -> str:
        """Return Slurm's type of the GPUs; empty: any."""
        return (self._gpus or "").rpartition(":")[0]

    @property
    def _gpus(self) -> str | None:
        """Return the GPUs of a node without the prefix of `gres`: `TYPE:COUNT` or `COUNT`."""
        return self.gpus_per_node or (self.gres and self.gres.removeprefix("gpu:"))

    def gpu_options(self, count: int) -> list[str]:
        """Return the options of `sbatch` that request GPUs on each node.

        Args:
            count: GPUs on each node; 0: none.
        """
        if not count or self._gpus is None:
            return []
        gpus = f"{self.gpu_type}:{count}".removeprefix(":")
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
            if not bare and getattr(self, key) is not None:
                yield key, f"{key} is for container: none only. Remove it"
        if self.image_file is not None and bare:
            yield "image_file", "image_file is for container: pyxis or apptainer only. Remove it"
        if self.gres is not None and self.gpus_per_node is not None:
            yield "gpus_per_node", "gres and gpus_per_node request the same GPUs. Remove one of them"
        for option in self.options:
            if option.removeprefix("--").partition("=")[0] in SET_BY_US:
                text = f"{shown(option)} is set by tfbench. Remove it; use its key in hosts.yml if it has one"
                yield "options", text
        if self.ssh_config is not None and self.ssh is None:
            yield "ssh_config", "ssh_config is for ssh: only. Remove it, or add ssh"

    def missing_setting(self, merged: Mapping[str, Any]) -> str | None:
        """Return which setting a fleet of this queue lacks, at any level; None: none."""
        if self.container == "none" or "image" in merged or merged.get("variant", "auto") != "auto":
            return None
        return "the nodes' driver cannot be queried. Choose an image that suits it. Example: variant: cuda12.5"


_DNS_LABEL = r"[a-z0-9](?:[a-z0-9-]{0,61}[a-z0-9])?"
_LABEL_VALUE = r"^(?:[A-Za-z0-9](?:[A-Za-z0-9._-]{0,61}[A-Za-z0-9])?)?$"
_LABEL_KEY = rf"^(?:{_DNS_LABEL}(?:\.{_DNS_LABEL})*/)?[A-Za-z0-9](?:[A-Za-z0-9._-]{{0,61}}[A-Za-z0-9])?$"
_RESOURCE = rf"^{_DNS_LABEL}(?:\.{_DNS_LABEL})+/[A-Za-z0-9](?:[A-Za-z0-9._-]{{0,61}}[A-Za-z0-9])?$"

DNSName = Annotated[StrictStr, Field(pattern=rf"^{_DNS_LABEL}(?:\.{_DNS_LABEL})*$", max_length=253)]
LabelKey = Annotated[StrictStr, Field(pattern=_LABEL_KEY)]
LabelValue = Annotated[StrictStr, Field(pattern=_LABEL_VALUE)]


class Toleration(Form):
    """A node taint that the pods of repeats tolerate."""

    key: LabelKey | None = described("the key of a taint", "nvidia.com/gpu")
    operator: Literal["Exists", "Equal"] = described("Exists or Equal", "Exists", default="Equal")
    value: LabelValue | None = described("the value of a taint, for Equal", "present")
    effect: Literal["NoSchedule", "PreferNoSchedule", "NoExecute"] | None = described(
        "NoSchedule, PreferNoSchedule or NoExecute (default: all of them)", "NoSchedule"
    )

    def mistakes(self) -> Iterator[tuple[str, str]]:
        """See `Form.mistakes`."""
        if self.operator == "Exists" and self.value is not None:
            yield "", "a toleration with operator: Exists has no value. Remove it, or write Equal"
        elif self.key is None and self.operator != "Exists":
            yield "", "a toleration needs a key, or operator: Exists for all taints. Add one of them"


class KubernetesQueue(Form):
    """A namespace of a Kubernetes cluster and one kind of its nodes, as described in `hosts.yml`."""

    kind: ClassVar[str] = "kubernetes"

    context: Annotated[StrictStr, Field(min_length=1, max_length=253)] | None = described(
        "the name of a context in the kubeconfig file", "my-cluster"
    )
    kubeconfig: ExistingFile | None = described(
        "the path of a kubeconfig file, instead of KUBECONFIG or ~/.kube/config", "k.yml"
    )
    namespace: Annotated[StrictStr, Field(pattern=rf"^{_DNS_LABEL}$")] | None = described(
        "the name of a namespace (default: that of the context)", "tfbench"
    )
    node_selector: dict[LabelKey, LabelValue] = described(
        "a mapping of labels that nodes must have", "{nvidia.com/gpu.product: NVIDIA-L4}", default={}
    )
    tolerations: tuple[Toleration, ...] = described(
        "a list of tolerations", "[{key: nvidia.com/gpu, operator: Exists}]", default=()
    )
    image_pull_secrets: tuple[DNSName, ...] = described(
        "a list of names of secrets in the namespace", "[registry]", default=()
    )
    queue: Annotated[LabelValue, Field(min_length=1)] | None = described("the name of a LocalQueue of Kueue", "bench")
    service_account: DNSName | None = described("the name of a service account; its token is never mounted", "bench")
    runtime_class: DNSName | None = described("the name of a runtime class", "nvidia")
    data_claim: DNSName | None = described("the name of a volume claim with TFRecords, for data: tfrecord", "imagenet")
    gpus_per_node: Annotated[StrictInt, Field(ge=0, le=64)] | None = described(
        "a whole number: GPUs of a node, for clusters where no node runs yet or nodes cannot be listed", "4"
    )
    gpu_resource: Annotated[StrictStr, Field(pattern=_RESOURCE)] = described(
        "the resource name of the GPUs", "nvidia.com/gpu", default="nvidia.com/gpu"
    )
    security: Literal["standard", "openshift"] = described(
        "standard or openshift (openshift: the cluster chooses the user of pods)", "openshift", default="standard"
    )
    exclusive: StrictBool = described(
        "true or false (false: repeats may share a node and disturb each other)", "true", default=True
    )
    max_jobs: Slots = described(
        f"a whole number from 1 to {MAX_SLOTS}: maximum number of Jobs at a time", "8", default=8
    )
    pending_minutes: Minutes = described(
        "a number of at least 1: maximum minutes that a repeat waits for a free node", "60", default=60
    )

    @property
    def gpu_count(self) -> int:
        """Return the GPUs of a node as stated in `hosts.yml`, or 0."""
        return self.gpus_per_node or 0

    def missing_setting(self, merged: Mapping[str, Any]) -> str | None:
        """See `SlurmQueue.missing_setting`."""
        if "image" in merged or "registry" in merged:
            return None
        return "registry is missing: nodes pull images from it. Example: registry: registry.example.org/bench"


QUEUES: dict[str, type[SlurmQueue] | type[KubernetesQueue]] = {
    model.kind: model for model in (SlurmQueue, KubernetesQueue)
}
"""Kinds of queues by their key in a fleet."""


def _by_kind(value: object) -> object:
    """Parse a queue of a plan, `{"slurm": {…}}`; pydantic adds its path to a ValueError."""
    if not isinstance(value, dict):
        return value
    ((kind, fields),) = value.items()
    if kind not in QUEUES:
        raise ValueError(f"must be one of {', '.join(QUEUES)}")
    return QUEUES[kind].model_validate(fields)


Queue = Annotated[
    SlurmQueue | KubernetesQueue,
    BeforeValidator(_by_kind),
    PlainSerializer(lambda queue: {queue.kind: queue.model_dump(mode="json")}),
]
"""A queue in a plan, under the key of its kind."""
