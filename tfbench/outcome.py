"""How a repeat ends: from an exception to one word that a user can act on, and its cause."""

from __future__ import annotations

import re
from dataclasses import dataclass

from results.schema import Status
from tfbench.cuda_libraries import about_stand_ins

MAX_CAUSE_LENGTH = 1500
"""Characters of a cause; TensorFlow's messages can hold a whole graph."""


class CaseFailedError(Exception):
    """A case cannot be measured, and it is known why.

    Attributes:
        status: The word for the record.
    """

    def __init__(self, status: Status, cause: str) -> None:
        super().__init__(cause)
        self.status = status


@dataclass(frozen=True)
class Outcome:
    """How a repeat ended.

    Attributes:
        status: Never `ok`.
        cause: For a person.
    """

    status: Status
    cause: str


# First match wins. Texts as TensorFlow, XLA, cuDNN and the driver print them.
_KNOWN = (
    (Status.DRIVER_TOO_OLD, r"driver version is insufficient|CUDA_ERROR_SYSTEM_DRIVER_MISMATCH"),
    (Status.OOM, r"RESOURCE_EXHAUSTED|ResourceExhausted|\bOOM\b|out of memory|failed to allocate memory"),
    (Status.BAD_INPUT, r"Invalid JPEG|jpeg::Uncompress|Could not parse example|corrupted record|truncated record"),
    (
        Status.UNSUPPORTED,
        r"not built with CUDA kernel binaries compatible|no kernel image is available"
        r"|does not support target sm_|UNIMPLEMENTED|Trying to access resource .* located in device"
        r"|not compilable|No registered '\w+' OpKernel",
    ),
)

_NO_MEMORY = re.compile(
    r"ran out of memory trying to allocate|RESOURCE_EXHAUSTED|CUDA_ERROR_OUT_OF_MEMORY|ALLOC_FAILED"
)
"""What TensorFlow's allocators, the driver and NVIDIA's libraries print when memory ends."""

_OF_STAND_INS = re.compile(r"cufft|cusolver|cusparse|No FFT for", re.IGNORECASE)
"""Texts of the calls that end in an error where an image holds an empty library: `containers/README.md`."""

_BY_TYPE = {
    "ResourceExhaustedError": Status.OOM,
    "MemoryError": Status.OOM,
    "DataLossError": Status.BAD_INPUT,
    "UnimplementedError": Status.UNSUPPORTED,
    "KeyboardInterrupt": Status.STOPPED,
}


def outcome_of(error: BaseException) -> Outcome:
    """Find the word for an exception; `error` for what nobody foresaw."""
    if isinstance(error, CaseFailedError):
        return Outcome(error.status, str(error))
    text = f"{type(error).__name__}: {error}"
    cause = _shorten(text)
    for kind in type(error).__mro__:
        if kind.__name__ in _BY_TYPE:
            return Outcome(_BY_TYPE[kind.__name__], cause)
    for status, pattern in _KNOWN:
        if re.search(pattern, text):
            return Outcome(status, cause)
    if _OF_STAND_INS.search(text) and (note := about_stand_ins()):
        return Outcome(Status.UNSUPPORTED, f"{cause}{note}")
    return Outcome(Status.ERROR, cause)


def tells_of_memory(printed: str) -> str | None:
    """Find the line in which an allocator gave up; not every operation turns that into an error, some crash of it.

    Returns:
        The last such line, without TensorFlow's stamp; None: there is none.
    """
    found = [line for line in printed.splitlines() if _NO_MEMORY.search(line) and "not a failure" not in line]
    return _shorten(re.sub(r"^\S+ [\d:.]+ +\d+ \S+\] ", "", found[-1])) if found else None


def _shorten(text: str) -> str:
    """Keep the start of a message, without the traces of graph nodes that TensorFlow appends.

    An error begins with the lines of code that led there: while a graph is traced, and when one is run. Its own words
    come last.
    """
    if "in user code:" in text:
        *_, text = re.split(r"\n {4}(?=\w+: )", text)
        text = re.sub(r"Exception encountered when calling (\S+)\.\s+(.+)", r"\2 (in \1)", text, count=1)
        text = re.sub(r"\x1b\[\d*m", "", text)
    kind, of_graph, trace = text.partition("Graph execution error:")
    if of_graph:
        own = [line for line in trace.splitlines() if line and not re.match(r"\s|Detected at node", line)]
        text = kind + "\n".join(own or [of_graph])
    text = re.split(r"\n\s*\n|\nHint: |\n\t? *\[\[|Detected at node", text, maxsplit=1)[0].strip()
    return text if len(text) <= MAX_CAUSE_LENGTH else text[: MAX_CAUSE_LENGTH - 1] + "…"
