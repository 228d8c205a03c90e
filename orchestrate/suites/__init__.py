"""Suites: named lists of cases, as data. A suite is a YAML file beside this one, or one of the user's.

A block of `cases` is a small matrix: every value may be a list, and all combinations are measured.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    StrictBool,
    StrictInt,
    StrictStr,
    create_model,
    field_validator,
    model_validator,
)

from orchestrate.errors import DocumentError, UserError
from orchestrate.text import shown
from orchestrate.yaml_files import did_you_mean, read_document, resolve_path, validate_document
from results.schema import (
    DEVICE_MODEL,
    SETTINGS,
    XLA,
    BatchNorm,
    Case,
    Communication,
    Data,
    Device,
    Mode,
    Optimizer,
    Precision,
    default_of,
    kind_of,
)
from results.schema.case import REMOVED_SETTINGS
from results.schema.networks import INPUTS, CaseRefusal, tuning_refusal

FOLDER = Path(__file__).parent
SUFFIXES = (".yml", ".yaml")
"""What ends in one of these is a file of the user's."""

MAX_STEPS = 100_000
"""Most timed steps: a record keeps the duration of each."""

Count = Annotated[StrictInt, Field(ge=1, le=1_000_000)]
Steps = Annotated[StrictInt, Field(ge=1, le=MAX_STEPS)]
Repeats = Annotated[StrictInt, Field(ge=1, le=1000)]
T = TypeVar("T")
Few = Annotated[list[T], Field(min_length=1, max_length=100)]


WRITTEN_OUT = frozenset(
    {
        *("model", "mode", "precision", "batch_per_gpu", "num_gpus", "num_hosts", "communication", "all_reduce"),
        *("xla", "data", "batch_norm", "device", "image_size", "sequence_length", "optimizer", "accumulate"),
        *("warmup_steps", "num_steps"),
    }
)
"""Settings of a case that `CaseBlock` spells out, or that belong to the whole suite."""

SWEPT = tuple(name for name in SETTINGS if name not in WRITTEN_OUT)
"""All others: a value or a list of values, as their rows in `results.schema.case` say."""


LISTED = (
    *("model", "precision", "mode", "num_gpus", "num_hosts", "all_reduce", "xla", "data", "batch_norm"),
    *("sequence_length", "optimizer", "accumulate"),
    *SWEPT,
)
"""Settings whose lists multiply, in the order of the cases."""


def _swept_fields() -> dict[str, Any]:
    """Return a field for each setting of `SWEPT`."""
    fields: dict[str, Any] = {}
    for name in SWEPT:
        setting, default = SETTINGS[name], default_of(name)
        kind: Any = kind_of(name)
        value: Any = kind
        if kind is bool:
            words, value = "true, false or both", StrictBool
        elif kind in (int, float):
            words = "a whole number or a list" if kind is int else "a number or a list"
            most = 1_000_000 if setting.most is None else setting.most
            value = Annotated[StrictInt if kind is int else float, Field(ge=setting.least, le=most)]
        else:
            words = f"one or more of {', '.join(kind)}"
        text = f"{words}: {setting.meaning.removesuffix('.')}"
        optional = None if default is None else value
        example = (setting.least if kind in (int, float) else next(iter(kind))) if default is None else default
        fields[name] = (
            value | Few[value] | optional,
            Field(default, description=text, examples=[str(example).lower()]),
        )
    return fields


_SweptBlock = create_model("_SweptBlock", **_swept_fields())


class CaseBlock(_SweptBlock):
    """A matrix of cases; lists multiply. The settings of `SWEPT` are fields too."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    model: StrictStr | Few[StrictStr] = Field(
        description="a network or a list of networks; device: none", examples=["[resnet50, googlenet]"]
    )
    mode: Mode | Few[Mode] = Field(
        Mode.TRAIN, description="train, infer or both; device goes with its model", examples=["[train, infer]"]
    )
    precision: Precision | Few[Precision] = Field(
        Precision.FP32, description="one or more of fp32, tf32, fp16 and bf16", examples=["[fp32, fp16]"]
    )
    batch_per_gpu: Count | dict[Precision, Count] | None = Field(
        None, description="a whole number, or one for each precision", examples=["{fp32: 128, fp16: 256}"]
    )
    num_gpus: Count | Few[Count] = Field(
        1, description="a whole number or a list of whole numbers", examples=["[1, 2, 4, 8]"]
    )
    num_hosts: Count | Few[Count] = Field(
        1, description="a whole number or a list: hosts of a fleet that train together", examples=["[1, 2, 4]"]
    )
    communication: Communication = Field(
        Communication.AUTO, description="auto, ring or nccl: between several hosts", examples=["ring"]
    )
    all_reduce: StrictBool | Few[StrictBool] = Field(
        True, description="true, false (to see what communication costs) or both", examples=["[true, false]"]
    )
    xla: XLA | Few[XLA] = Field(XLA.OFF, description="one or more of off, auto and replica", examples=["[off, auto]"])
    data: Data | Few[Data] = Field(
        Data.SYNTHETIC, description="one or more of synthetic, host and tfrecord", examples=["host"]
    )
    batch_norm: BatchNorm | Few[BatchNorm] | None = Field(
        None, description="one or more of fused, keras and none; left out: the network's own", examples=["fused"]
    )
    device: Literal["auto"] | Device = Field(
        "auto", description="auto, gpu or cpu (auto: gpu where the host has one)", examples=["gpu"]
    )
    image_size: Count | None = Field(None, description="pixels; left out: the network's own", examples=["224"])
    sequence_length: Count | Few[Count] | None = Field(
        None, description="tokens, one length or a list; left out: the network's own", examples=["[128, 384, 512]"]
    )
    optimizer: Optimizer | Few[Optimizer] | None = Field(
        None, description="one or more of momentum, adamw and lamb; left out: the network's own", examples=["lamb"]
    )
    accumulate: Count | Few[Count] = Field(
        1, description="a whole number or a list: batches of one update", examples=["[1, 4]"]
    )
    warmup_steps: Steps = Field(10, description="a whole number of at least 1", examples=["20"])
    num_steps: Steps = Field(100, description="a whole number of at least 1: timed steps", examples=["100"])

    @model_validator(mode="before")
    @classmethod
    def _was_removed(cls, block: object) -> object:
        for key in block if isinstance(block, dict) else ():
            if key in REMOVED_SETTINGS:
                raise ValueError(f"{key} was removed: no figure shows that it makes steps faster. Remove it")
        return block

    @field_validator("model")
    @classmethod
    def _must_be_known(cls, model: str | list[str]) -> str | list[str]:
        known = [*INPUTS, DEVICE_MODEL]
        for name in _listed(model):
            if name not in known:
                hint = did_you_mean(name, known, "Networks")
                raise ValueError(f"model: there is no network {shown(name)}. {hint}")
        return model


class SuiteFile(BaseModel):
    """The whole of a suite file."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    description: StrictStr = Field("", description="a sentence", examples=["what it shows"])
    repeats: Repeats = Field(3, description="a whole number of at least 1; a result needs 3", examples=["3"])
    cases: Annotated[list[CaseBlock], Field(min_length=1)] = Field(
        description="a list of cases", examples=["[{model: resnet50, batch_per_gpu: 128}]"]
    )


@dataclass(frozen=True)
class Suite:
    """A named list of cases.

    Attributes:
        repeats: Fresh processes for each case.
    """

    name: str
    description: str
    repeats: int
    blocks: tuple[CaseBlock, ...]

    def cases(self, device: Device) -> list[Case]:
        """Return the cases of a host, in the order of the file, without duplicates.

        Args:
            device: What cases with `device: auto` train on.
        """
        cases: dict[str, Case] = {}
        for block in self.blocks:
            for case in _cases(block, device):
                cases.setdefault(case.name, case)
        return list(cases.values())


def suite_names() -> list[str]:
    """Return the names of the suites that come with tfbench."""
    return sorted(path.stem for path in FOLDER.glob("*.yml"))


def suite_source(name: str, folder: Path) -> str:
    """Resolve a suite named in a file of `folder`: paths are relative to that file."""
    return str(resolve_path(name, folder)) if Path(name).suffix in SUFFIXES else name


def read_suite(name: str) -> Suite:
    """Read a suite that comes with tfbench, or a file of the user's.

    Args:
        name: A suite's name, or a path that ends in `.yml` or `.yaml`.

    Raises:
        UserError: There is no suite of that name.
        DocumentError: The file has mistakes.
    """
    own = Path(name).suffix in SUFFIXES
    if not own and name not in suite_names():
        raise UserError(
            f"there is no suite {shown(name)}. Suites: {', '.join(suite_names())}; or the path of a file: my.yml"
        )
    path = Path(name) if own else FOLDER / f"{name}.yml"
    document = read_document(path)
    checked = validate_document(SuiteFile, document)
    if checked is not None:
        for index, block in enumerate(checked.cases):
            for key, problem in _contradictions(block):
                document.problem(("cases", index, key), f"case {index + 1}: {problem}")
    if document.problems or checked is None:
        raise DocumentError(document.report())
    return Suite(Path(name).stem, checked.description, checked.repeats, tuple(checked.cases))


def _contradictions(block: CaseBlock) -> Iterator[tuple[str, str]]:
    """Name mistakes that no value shows by itself: the key that is wrong, and what to write."""
    modes = _listed(block.mode)
    if DEVICE_MODEL in _listed(block.model):
        if _listed(block.model) != [DEVICE_MODEL]:
            yield "model", f"{DEVICE_MODEL} is not a network: write a separate case for it. Received: {block.model}"
        said = block.model_fields_set - {"model", "mode", "num_gpus", "device", "deep_check"}
        if said:
            yield min(said), f"{min(said)} has no effect with model: {DEVICE_MODEL}. Remove it"
        if "mode" in block.model_fields_set and modes != [Mode.DEVICE]:
            yield "mode", f"model: {DEVICE_MODEL} implies mode: {Mode.DEVICE}. Remove mode"
        return
    if Mode.DEVICE in modes:
        yield "mode", f"mode: {Mode.DEVICE} is for model: {DEVICE_MODEL} only. Write train or infer"
    if block.batch_per_gpu is None:
        yield "batch_per_gpu", "batch_per_gpu is missing. Example: batch_per_gpu: {fp32: 128, fp16: 256}"
    elif missing := [precision for precision in _listed(block.precision) if precision not in _batches(block)]:
        example = f"Example: batch_per_gpu: {{{missing[0]}: 128}}"
        yield "batch_per_gpu", f"batch_per_gpu has no value for {', '.join(missing)}. {example}"
    many = max(_listed(block.num_hosts)) > 1
    if many and (modes != [Mode.TRAIN] or Data.TFRECORD in _listed(block.data)):
        yield "num_hosts", "several hosts require mode: train and data: synthetic or host. Write a separate case"
    if not many and block.communication is not Communication.AUTO:
        yield "communication", "communication is for several hosts only. Add num_hosts, or remove it"
    if False in _listed(block.all_reduce) and modes != [Mode.TRAIN]:
        yield "all_reduce", "all_reduce: false is for mode: train only. Write a separate case"
    if Data.TFRECORD in _listed(block.data) and modes != [Mode.TRAIN]:
        yield "data", "data: tfrecord is for mode: train only. Write a separate case"
    if max(_listed(block.accumulate)) > 1 and modes != [Mode.TRAIN]:
        yield "accumulate", "accumulate is for mode: train only. Write a separate case"
    for refused in dict.fromkeys(_refusals(block)):
        yield refused.key, f"{refused.as_setting}. Remove it, or write a separate case"


def _refusals(block: CaseBlock) -> Iterator[CaseRefusal]:
    """Ask every network about every value; one value at a time, because lists multiply."""
    for model in _listed(block.model):
        for name in ("batch_norm", "sequence_length", "data", "image_size"):
            for value in _listed(getattr(block, name)):
                if refused := INPUTS[model].refusal(Case(model=model, **{name: value})):
                    yield refused
    if not set(_listed(block.precision)) <= set(_batches(block)):
        return  # reported by itself
    for case in _cases(block, Device.GPU):
        if refused := tuning_refusal(case):
            yield refused


def _listed(value: T | list[T]) -> list[T]:
    return value if isinstance(value, list) else [value]


def _batches(block: CaseBlock) -> dict[Precision, int]:
    batch = 1 if block.batch_per_gpu is None else block.batch_per_gpu
    return batch if isinstance(batch, dict) else dict.fromkeys(Precision, batch)


def _cases(block: CaseBlock, device: Device) -> list[Case]:
    """Return every combination of the listed values, the last setting of `LISTED` fastest."""
    fixed = {name: getattr(block, name) for name in ("image_size", "warmup_steps", "num_steps")}
    fixed["device"] = device if block.device == "auto" else block.device
    values = {name: _listed(getattr(block, name)) for name in LISTED}
    if DEVICE_MODEL in values["model"]:
        values["mode"] = [Mode.DEVICE]
    cases = []
    for combination in itertools.product(*values.values()):
        chosen: dict[str, Any] = fixed | dict(zip(values, combination, strict=True))
        if not chosen["all_reduce"] and chosen["num_gpus"] * chosen["num_hosts"] == 1:
            continue  # one replica has no all-reduce to leave out
        chosen["batch_per_gpu"] = _batches(block)[chosen["precision"]]
        chosen["communication"] = block.communication if chosen["num_hosts"] > 1 else Communication.AUTO
        cases.append(Case(**chosen))
    return cases
