"""Suites: named lists of cases, as data. A suite is a YAML file beside this one, or one of the user's.

A block of `cases` is a small matrix: every value may be a list, and all combinations are measured.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field, StrictInt, StrictStr

from orchestrate.documents import read_document, resolve_path, validate_document
from orchestrate.errors import DocumentError, UserError
from orchestrate.text import shown
from results.schema import XLA, BatchNorm, Case, Data, Device, Optimizer, Precision

FOLDER = Path(__file__).parent
SUFFIXES = (".yml", ".yaml")
"""What ends in one of these is a file of the user's."""

MAX_STEPS = 100_000
"""Most timed steps: a record keeps the duration of each."""

Count = Annotated[StrictInt, Field(ge=1, le=1_000_000)]
Steps = Annotated[StrictInt, Field(ge=1, le=MAX_STEPS)]
Repeats = Annotated[StrictInt, Field(ge=1, le=1000)]
Model = Annotated[StrictStr, Field(pattern=r"^[a-z0-9][a-z0-9_.-]{0,49}$")]  # becomes a part of file names
T = TypeVar("T")
Few = Annotated[list[T], Field(min_length=1, max_length=100)]


class CaseBlock(BaseModel):
    """A matrix of cases; lists multiply."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    model: Model | Few[Model] = Field(
        description="a network or a list of networks, in lower-case letters, digits, '.', '_' and '-'",
        examples=["[resnet50, googlenet]"],
    )
    precision: Precision | Few[Precision] = Field(
        Precision.FP32, description="one or more of fp32, tf32, fp16 and bf16", examples=["[fp32, fp16]"]
    )
    batch_per_gpu: Count | dict[Precision, Count] = Field(
        description="a whole number, or one for each precision", examples=["{fp32: 128, fp16: 256}"]
    )
    num_gpus: Count | Few[Count] = Field(
        1, description="a whole number or a list of whole numbers", examples=["[1, 2, 4, 8]"]
    )
    xla: XLA | Few[XLA] = Field(XLA.OFF, description="one or more of off, auto and replica", examples=["[off, auto]"])
    data: Data | Few[Data] = Field(Data.SYNTHETIC, description="synthetic or host", examples=["synthetic"])
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
            missing = [p for p in _listed(block.precision) if p not in _batches(block)]
            if missing:
                document.problems.append(
                    (
                        document.line(("cases", index, "batch_per_gpu")),
                        f"case {index + 1}: batch_per_gpu says nothing for {', '.join(missing)}. "
                        f"Example: batch_per_gpu: {{{missing[0]}: 128}}",
                    )
                )
    if document.problems or checked is None:
        raise DocumentError(document.report())
    return Suite(Path(name).stem, checked.description, checked.repeats, tuple(checked.cases))


def _listed(value: T | list[T]) -> list[T]:
    return value if isinstance(value, list) else [value]


def _listed_or_own(value: T | list[T] | None) -> Sequence[T | None]:
    """List the values; None where the network's own is wanted."""
    return [None] if value is None else [*_listed(value)]


def _batches(block: CaseBlock) -> dict[Precision, int]:
    batch = block.batch_per_gpu
    return batch if isinstance(batch, dict) else dict.fromkeys(Precision, batch)


def _cases(block: CaseBlock, device: Device) -> list[Case]:
    matrix = itertools.product(
        _listed(block.model),
        _listed(block.precision),
        _listed(block.num_gpus),
        _listed(block.xla),
        _listed(block.data),
        _listed_or_own(block.batch_norm),
        _listed_or_own(block.sequence_length),
        _listed_or_own(block.optimizer),
        _listed(block.accumulate),
    )
    return [
        Case(
            model=model,
            precision=precision,
            batch_per_gpu=_batches(block)[precision],
            num_gpus=num_gpus,
            xla=xla,
            data=data,
            batch_norm=batch_norm,
            device=device if block.device == "auto" else block.device,
            image_size=block.image_size,
            sequence_length=sequence_length,
            optimizer=optimizer,
            accumulate=accumulate,
            warmup_steps=block.warmup_steps,
            num_steps=block.num_steps,
        )
        for model, precision, num_gpus, xla, data, batch_norm, sequence_length, optimizer, accumulate in matrix
    ]
