"""Suites: named lists of cases in YAML files, either built in (in this folder) or the user's own.

A block of `cases` is a matrix: every value may be a list, and all combinations are measured.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field, StrictInt, StrictStr, create_model

from orchestrate.errors import UserError
from orchestrate.text import shown
from orchestrate.yaml_files import Document, Form, Listed, described, did_you_mean
from results.reference.networks import BYTES, fitting_batch
from results.schema import DEVICE_MODEL, SETTINGS, Case, Communication, Device, Mode, Precision
from results.schema.case import annotated, case_refusal, default_of
from results.schema.networks import NETWORKS
from results.text import counted
from results.text_table import Grid, grid_of

FOLDER = Path(__file__).parent
SUFFIXES = (".yml", ".yaml")
"""Suffixes of the user's suite files; other names are built-in suites."""

FIT = "fit"
LARGEST_FIT = 512
"""First batch size to try for `batch_per_gpu: fit`, times the bytes of a number: 128 in fp32, 256 in fp16."""

Count = Annotated[StrictInt, Field(ge=1, le=1_000_000)]


_FIELDS: dict[str, Any] = {
    name: (Listed[annotated(name)], Field([default_of(name)]))  # type: ignore[misc]
    for name in SETTINGS
    if name not in ("model", "batch_per_gpu", "device")
}
"""Of all settings but those that `CaseBlock` defines: the type of the key, and its field."""

LISTED = ("model", *_FIELDS)
"""Settings that may be lists, in the order in which cases vary."""

_Settings = create_model("_Settings", __base__=Form, **_FIELDS)


def _known_network(name: str) -> str:
    known = [*NETWORKS, DEVICE_MODEL]
    if name not in known:
        raise ValueError(f"model: there is no network {shown(name)}. {did_you_mean(name, known, 'Networks')}")
    return name


class CaseBlock(_Settings):
    """A matrix of cases; lists multiply."""

    model: Listed[Annotated[StrictStr, AfterValidator(_known_network)]] = Field(examples=["[resnet50, googlenet]"])
    batch_per_gpu: Count | dict[Precision, Count] | Literal["fit"] | None = described(
        "a whole number, one for each precision, or fit (as large as fits the run's smallest GPU)",
        "{fp32: 128, fp16: 256}",
    )
    device: Literal["auto"] | Device = described("auto, gpu or cpu", "gpu", default="auto")

    def mistakes(self) -> Iterator[tuple[str, str]]:
        """See `Form.mistakes`; reports contradictory settings."""
        values = {name: getattr(self, name) for name in LISTED}
        modes, batches = values["mode"], _batches(self)
        if DEVICE_MODEL in values["model"]:
            useless = sorted(self.model_fields_set - {"model", "num_gpus", "device", "deep_check"})
            if values["model"] != [DEVICE_MODEL]:
                yield "model", f"{DEVICE_MODEL} is not a network: write a separate case for it. Received: {self.model}"
            elif useless:
                yield useless[0], f"{useless[0]} has no effect with model: {DEVICE_MODEL}. Remove it"
            return
        if Mode.DEVICE in modes:
            yield "mode", f"mode: {Mode.DEVICE} is for model: {DEVICE_MODEL} only. Write train or infer"
        if values["communication"] != [Communication.AUTO] and max(values["num_hosts"]) == 1:
            yield "communication", "communication is for several hosts only. Add num_hosts, or remove it"
        if self.batch_per_gpu is None:
            yield "batch_per_gpu", "batch_per_gpu is missing. Example: batch_per_gpu: {fp32: 128, fp16: 256}"
        elif missing := [precision for precision in values["precision"] if precision not in batches]:
            example = f"Example: batch_per_gpu: {{{missing[0]}: 128}}"
            yield "batch_per_gpu", f"batch_per_gpu has no value for {', '.join(missing)}. {example}"
            return
        cases = _cases(self, Device.GPU)
        for refused in filter(None, dict.fromkeys(case_refusal(case, NETWORKS[case.model]) for case in cases)):
            yield refused.key, f"{refused.text}. Remove it, or write a separate case"


class Suite(Form):
    """A list of cases: a suite file.

    Attributes:
        repeats: Fresh processes for each case.
    """

    description: StrictStr = ""
    repeats: Annotated[StrictInt, Field(ge=1, le=1000)] = 3
    cases: Annotated[list[CaseBlock], Field(min_length=1)] = Field(
        description="a list of cases", examples=["[{model: resnet50, batch_per_gpu: 128}]"]
    )

    def cases_on(self, device: Device, memory_bytes: float | None = None) -> list[Case]:
        """Return the cases of a host, in the order of the file, without duplicates.

        Args:
            device: Device of cases with `device: auto`.
            memory_bytes: Of the smallest GPU of the run, for `batch_per_gpu: fit`; None: unknown.
        """
        cases: dict[str, Case] = {}
        for block in self.cases:
            for case in _cases(block, device):
                if block.batch_per_gpu == FIT and memory_bytes is not None and case.device is Device.GPU:
                    case = dataclasses.replace(case, batch_per_gpu=fitting_batch(case, memory_bytes))
                cases.setdefault(case.name, case)
        return list(cases.values())


def suite_names() -> list[str]:
    """Return the names of the built-in suites."""
    return sorted(path.stem for path in FOLDER.glob("*.yml"))


def suites_grid(name: str | None) -> Grid:
    """Return a grid with a row per built-in suite, or per case of one suite, on GPUs."""
    if name is None:
        rows = []
        for known, suite in ((known, read_suite(known)) for known in suite_names()):
            numbers = {"cases>": str(len(suite.cases_on(Device.GPU))), "repeats>": str(suite.repeats)}
            rows.append({"suite": known, "what it measures": suite.description, **numbers})
        return grid_of("", rows)
    suite = read_suite(name)
    cases = suite.cases_on(Device.GPU)
    notes = [f"{counted(len(cases), 'case')} on GPUs, {suite.repeats} repeats each"]
    return grid_of(f"{name}: {suite.description}", [{"case": case.name} for case in cases], notes)


def read_suite(name: str) -> Suite:
    """Read a built-in suite or a suite file.

    Args:
        name: A suite's name, or a path that ends in `.yml` or `.yaml`.

    Raises:
        UserError: The suite does not exist.
        DocumentError: The file has mistakes.
    """
    own = Path(name).suffix in SUFFIXES
    if not own and name not in suite_names():
        hint = did_you_mean(name, suite_names(), "Write the path of a file (my.yml) or one of")
        raise UserError(f"there is no suite {shown(name)}. {hint}")
    document = Document(Path(name) if own else FOLDER / f"{name}.yml")
    suite = document.validated(Suite)
    document.raise_problems()
    return suite


def _batches(block: CaseBlock) -> dict[Precision, int]:
    batch = 1 if block.batch_per_gpu is None else block.batch_per_gpu
    if isinstance(batch, str):  # FIT
        return {precision: LARGEST_FIT // BYTES[precision] for precision in Precision}
    return batch if isinstance(batch, dict) else dict.fromkeys(Precision, batch)


def _cases(block: CaseBlock, device: Device) -> list[Case]:
    """Return every combination of the listed values, the last setting of `LISTED` fastest."""
    values = {name: getattr(block, name) for name in LISTED}
    values["device"] = [device if block.device == "auto" else block.device]
    if DEVICE_MODEL in values["model"]:
        values["mode"] = [Mode.DEVICE]
    cases = []
    for combination in itertools.product(*values.values()):
        chosen: dict[str, Any] = dict(zip(values, combination, strict=True))
        if not chosen["all_reduce"] and chosen["num_gpus"] * chosen["num_hosts"] == 1:
            continue  # a single replica has no all-reduce to disable
        chosen["batch_per_gpu"] = _batches(block)[chosen["precision"]]
        if chosen["num_hosts"] == 1:
            chosen["communication"] = Communication.AUTO
        cases.append(Case(**chosen))
    return cases
