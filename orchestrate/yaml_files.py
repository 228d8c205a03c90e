"""YAML files that people write: parsed with line numbers, every mistake reported at once.

A mistake reads `hosts.yml:9: host node-b: gpus must be … Received: …. Example: gpus: [0, 1]`.
"""

from __future__ import annotations

import contextlib
import copy
import difflib
import itertools
import math
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, TypeVar

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, StrictStr, ValidationError, ValidationInfo
from pydantic_core import ErrorDetails
from ruamel.yaml import YAML
from ruamel.yaml.error import MarkedYAMLError, YAMLError
from ruamel.yaml.nodes import Node, ScalarNode, SequenceNode

from orchestrate.errors import DocumentError
from orchestrate.text import plain_text, shown
from results.program import REMOVED

M = TypeVar("M", bound=BaseModel)


class Form(BaseModel):
    """Part of a file that people write; its validators receive the file's folder as context, and None for a plan."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    @classmethod
    def instead(cls, key: str, entry: dict[str, Any]) -> str | None:
        """Return what to write instead of an unknown key; None: nothing particular.

        Args:
            key: As it was written.
            entry: All that stands next to it.
        """
        return None


def described(description: str, example: str | None = None, default: Any = None) -> Any:  # noqa: ANN401 (as `Field`)
    """Return a field that need not be set, in the words of messages: `NAME must be DESCRIPTION. Example: …`."""
    return Field(default, description=description, examples=[] if example is None else [example])


Path_ = tuple[str | int, ...]
"""Where a value stands: keys and list indices from the top."""

MAX_DOCUMENT_BYTES = 4 * 1024 * 1024
MAX_DEPTH = 50
MAX_VALUES = 100_000
"""Most values of a document: aliases of aliases could otherwise unfold without end."""

MAX_DIGITS = 40
"""A longer number stays text: Python refuses to print integers of more than 4300 digits."""

_TAGS = ("null", "bool", "int", "float", "str", "timestamp", "merge", "value", "map", "seq")
"""What a value can be without saying so; `!tags` that say something else would be ignored."""


@dataclass
class Document:
    """A parsed YAML file.

    Attributes:
        name: The file's name, as the user gave it.
        folder: Paths in the file are relative to it.
        data: Plain dictionaries, lists and scalars.
        lines: Line of every key and list item, from 1.
        problems: Mistakes found while parsing (duplicate keys, keys that are no text) and after.
        excluded: What `validate_document` found to be wrong.
    """

    name: str
    folder: Path
    data: Any = None
    lines: dict[Path_, int] = field(default_factory=dict)
    problems: list[tuple[int, str]] = field(default_factory=list)
    excluded: set[Path_] = field(default_factory=set)

    def line(self, path: Path_) -> int:
        """Return the line of `path`, or of the nearest thing around it that has one."""
        while path and path not in self.lines:
            path = path[:-1]
        return self.lines.get(path, 1)

    def problem(self, path: Path_, text: str) -> None:
        """Note a mistake at `path`, with the name of the host, fleet or case that it stands in."""
        self.problems.append((self.line(path), f"{_place(path)}{text}"))

    def is_whole(self, path: Path_) -> bool:
        """Return whether nothing at `path` or below it was excluded."""
        return not any(gone[: len(path)] == path for gone in self.excluded)

    def report(self) -> list[str]:
        """Return the mistakes, each once, in the order of their lines."""
        return [f"{self.name}:{line}: {text}" for line, text in sorted(set(self.problems))]


def _place(path: Path_) -> str:
    """Report where in the file's own words: `fleet a4000: host node-b: `."""
    words = []
    for parent, part in itertools.pairwise(path):
        if parent in ("fleets", "hosts"):
            words.append(f"{str(parent)[:-1]} {part}: ")
        elif parent == "cases" and isinstance(part, int):
            words.append(f"case {part + 1}: ")
    return plain_text("".join(words[-1:]), 200)


def resolve_path(text: str, folder: Path) -> Path:
    """Return the path that a text in a file of `folder` means: relative to that file, `~` is the user's home."""
    path = Path(text)
    with contextlib.suppress(RuntimeError):  # the home of a user who does not exist: the file does not either
        path = path.expanduser()
    return folder / path


def _existing(text: str, info: ValidationInfo) -> str:
    if info.context is None:
        return text
    path = resolve_path(text, info.context)
    with contextlib.suppress(OSError, ValueError):  # what cannot be a path is no file
        if path.is_file():
            return str(path)
    raise ValueError(f"{info.field_name}: no such file: {plain_text(str(path), 300)}")


ExistingFile = Annotated[StrictStr, AfterValidator(_existing)]
"""Path of a file, relative to the document; becomes a path of this machine."""


def read_document(path: Path) -> Document:
    """Parse a YAML file.

    Raises:
        DocumentError: The file cannot be read, or is not YAML.
    """
    name = plain_text(str(path))
    try:
        text = path.read_bytes()
    except (OSError, ValueError) as error:  # ValueError: a path with a NUL in it
        reason = getattr(error, "strerror", None) or str(error)
        raise DocumentError([f"{name}:1: cannot be read: {reason}. Check the path"]) from error
    if len(text) > MAX_DOCUMENT_BYTES:
        raise DocumentError([f"{name}:1: larger than {MAX_DOCUMENT_BYTES} bytes. Received: {len(text)}"])
    yaml = YAML(typ="safe", pure=True)  # "rt" would also collect comments
    yaml.composer.warn_double_anchors = False  # YAML allows them: an alias means the last
    document = Document(name, path.parent)
    try:
        node = yaml.compose(text.decode("utf-8"))
        if node is not None:
            document.data = _convert(node, (), document)
    except UnicodeDecodeError as error:
        raise DocumentError([f"{name}:1: is not UTF-8 text: {error.reason} at byte {error.start}"]) from error
    except MarkedYAMLError as error:
        line = error.problem_mark.line + 1 if error.problem_mark else 1
        problem = plain_text(error.problem or "cannot be parsed", 200)
        if "'\\t'" in problem:
            raise DocumentError([f"{name}:{line}: tabs cannot indent in YAML. Replace them by spaces"]) from error
        raise DocumentError([f"{name}:{line}: is not valid YAML: {problem}. Check indentation and quotes"]) from error
    except (YAMLError, RecursionError, ValueError) as error:
        problem = plain_text(str(error), 200)
        raise DocumentError([f"{name}:1: is not valid YAML: {problem}"]) from error
    return document


def _convert(node: Node, path: Path_, document: Document) -> object:
    """Turn a node into plain data, keeping lines; duplicate keys become problems instead of overwriting."""
    if len(path) > MAX_DEPTH:
        raise ValueError(f"nested deeper than {MAX_DEPTH} levels")
    if len(document.lines) > MAX_VALUES:
        raise ValueError(f"more than {MAX_VALUES} values")
    document.lines.setdefault(path, node.start_mark.line + 1)
    if isinstance(node, ScalarNode):
        return _scalar(node, path, document)
    _refuse_tag(node, document)
    if isinstance(node, SequenceNode):
        return [_convert(item, (*path, i), document) for i, item in enumerate(node.value)]
    converted: dict[str, object] = {}
    for key_node, value_node in node.value:
        line = key_node.start_mark.line + 1
        if not isinstance(key_node, ScalarNode):
            document.problems.append((line, "a key must be text. Received: a list or a mapping"))
        elif (key := str(key_node.value)) in converted:
            first = document.lines[(*path, key)]
            text = f"{shown(key)} appears twice, also in line {first}. Remove or rename one of them"
            document.problems.append((line, text))
        else:
            document.lines[(*path, key)] = line
            converted[key] = _convert(value_node, (*path, key), document)
    return converted


def _refuse_tag(node: Node, document: Document, known: tuple[str, ...] = _TAGS) -> None:
    if str(node.tag).removeprefix("tag:yaml.org,2002:") not in known:
        text = f"a value must have no tag. Received: {shown(str(node.tag))}. Remove the tag"
        document.problems.append((node.start_mark.line + 1, text))


_WORDS = {
    **dict.fromkeys(("", "~", "null", "Null", "NULL")),
    **dict.fromkeys(("true", "True", "TRUE"), True),
    **dict.fromkeys(("false", "False", "FALSE"), False),
}
"""YAML 1.2's only words: `yes`, `on` and what a tag declares to be one of these are refused, not guessed."""


def _scalar(node: ScalarNode, path: Path_, document: Document) -> object:
    """Resolve a scalar by YAML 1.2's core rules; octals and the like stay text."""
    _refuse_tag(node, document)
    text, kind = str(node.value), str(node.tag).rpartition(":")[2]
    if "${" in text:  # other tools' files expand them
        document.problem(path, f"variables are not expanded. Received: {shown(text)}. Write the value itself")
    if kind in ("null", "bool"):
        if text not in _WORDS:
            _refuse_tag(node, document, ())
        return _WORDS.get(text)
    if kind not in ("int", "float") or len(text) > MAX_DIGITS:
        return text
    if text.lower().lstrip("+-.")[:1] not in {*"0123456789", "i", "n"}:
        _refuse_tag(node, document, ())  # `!!int x`
    digits = text.replace("_", "").replace(".inf", "inf").replace(".nan", "nan")
    try:
        number = int(digits, 16 if "0x" in digits else 10) if kind == "int" else float(digits)
    except ValueError:
        return text
    return number if math.isfinite(number) else text


def validate_document(model: type[M], document: Document) -> M | None:
    """Check a document against a pydantic model.

    Mistakes go to `document.problems`, and what is wrong to `document.excluded`.

    Returns:
        The model of what is right, so that it can be checked further; None: nothing is.
    """
    if not isinstance(document.data, dict):
        document.problems.append((1, f"must be a mapping of keys to values. Received: {shown(document.data)}"))
        return None
    data = copy.deepcopy(document.data)
    while data:
        try:
            return model.model_validate(data, context=document.folder)
        except ValidationError as error:
            details = error.errors(include_url=False)
        spots = [_spot(model, data, detail["loc"]) for detail in details]
        if not document.excluded:  # the first time: later ones follow from what is excluded
            reported: dict[tuple[int, str], tuple[Path_, str]] = {}
            for detail, (path, owner, name) in zip(details, spots, strict=True):
                for text in _explanation(data, detail, path, owner, name).split("\n"):
                    # Each branch of a union reports the same mistake.
                    reported[document.line(path), text.partition(" Received: ")[0]] = path, text
            for path, text in reported.values():
                document.problem(path, text)
        gone = {_wrong_part(data, path) for path, *_ in spots}
        document.excluded |= gone
        for path in gone:
            _leave_out(data, path)
    return None


def _spot(
    model: type[BaseModel], data: object, location: tuple[int | str, ...]
) -> tuple[Path_, type[BaseModel], str | None]:
    """Return where a mistake stands in the document, and the model and field that it breaks.

    A location also has parts that pydantic adds for branches of unions and for keys: they are not in the document.
    """
    path: Path_ = ()
    owner, name = model, None
    inner: type[BaseModel] | None = model
    for position, part in enumerate(location):
        is_last = position + 1 == len(location)
        if isinstance(data, dict) and (part in data or (is_last and part != "[key]")):
            data = data.get(part)
        elif isinstance(data, list) and isinstance(part, int) and part < len(data):
            data = data[part]
        else:
            continue
        path = (*path, part)
        if inner is not None and part in inner.model_fields:
            owner, name = inner, str(part)
            inner = _model_within(owner.model_fields[name].annotation)
        elif inner is not None and is_last and isinstance(part, str):
            owner, name = inner, None  # an unknown key
    return path, owner, name


def _model_within(annotation: object) -> type[BaseModel] | None:
    """Return the pydantic model inside a field's annotation, if there is one."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    found = (_model_within(part) for part in getattr(annotation, "__args__", ()))
    return next((model for model in found if model is not None), None)


def _wrong_part(data: dict[str, Any], path: Path_) -> Path_:
    """Return what must go for a mistake at a path: of a list all of it, and where a key is missing, what lacks it."""
    owner: object = data
    for depth, part in enumerate(path):
        if not isinstance(owner, dict) or part not in owner:
            return path[:depth]
        owner = owner[part]
    return path


def _leave_out(data: dict[str, Any], path: Path_) -> None:
    """Remove the value at a path, if it is still there; without a path, all of them."""
    owner: object = data
    for part in path[:-1]:
        owner = owner.get(part) if isinstance(owner, dict) else None
    if not path:
        data.clear()
    elif isinstance(owner, dict):
        owner.pop(path[-1], None)


def did_you_mean(word: str, known: list[str], all_of_them: str) -> str:
    """Return a hint to what was most likely meant: first one of the same letters, as in `modle` for `model`.

    Args:
        word: What came in.
        known: What there is.
        all_of_them: What those are, for the hint that names them all because none is close.
    """
    swapped = [name for name in known if sorted(name) == sorted(word)]
    longer = [name for name in known if name.startswith(f"{word}_")]
    close = swapped or longer or difflib.get_close_matches(word, known, n=1)
    return f"Did you mean {close[0]!r}?" if close else f"{all_of_them}: {', '.join(known)}"


def _explanation(data: object, detail: ErrorDetails, path: Path_, owner: type[BaseModel], name: str | None) -> str:
    """Turn one of pydantic's findings into a sentence with a remedy; several mistakes stand on a line each."""
    kind, key = detail["type"], str(path[-1]) if path else "value"
    known = owner.model_fields.get(name or "")
    example = f" Example: {name}: {known.examples[0]}" if known is not None and known.examples else ""
    if kind == "extra_forbidden":
        for part in path[:-1]:
            data = data[part]  # type: ignore[index]
        instead = owner.instead(key, data) if issubclass(owner, Form) and isinstance(data, dict) else None
        instead = instead or REMOVED.get(key) or did_you_mean(key, sorted(owner.model_fields), "Known keys")
        return f"unknown key {shown(key)}. {instead}"
    if kind == "missing":
        return f"{name or key} is missing.{example}"
    if kind == "value_error":
        return str(detail["ctx"]["error"])
    received = f"Received: {shown(detail['input'])}."
    if kind == "less_than_equal":
        return f"{name or 'value'} must be at most {detail['ctx']['le']}. {received}"
    what = (
        known.description if known is not None and known.description else detail["msg"][0].lower() + detail["msg"][1:]
    )
    if kind in ("int_type", "float_type", "bool_type") and _NUMBER.fullmatch(str(detail["input"])):
        example = " Remove the quotes"
    return f"{name or 'value'} must be {what}. {received}{example}"


_NUMBER = re.compile(r"[+-]?[0-9][0-9_.]*|true|false")
