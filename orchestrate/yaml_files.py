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
from typing import Any, TypeVar

from pydantic import BaseModel, ConfigDict, ValidationError
from pydantic_core import ErrorDetails
from ruamel.yaml import YAML
from ruamel.yaml.error import MarkedYAMLError, YAMLError
from ruamel.yaml.nodes import Node, ScalarNode, SequenceNode

from orchestrate.errors import DocumentError
from orchestrate.text import plain_text, shown

M = TypeVar("M", bound=BaseModel)


class Form(BaseModel):
    """Part of a file that people write."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    @classmethod
    def instead(cls, key: str, entry: dict[str, Any]) -> str | None:
        """Say what to write instead of an unknown key; None: nothing particular.

        Args:
            key: As it was written.
            entry: All that stands next to it.
        """
        return None


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
        data: Plain dictionaries, lists and scalars.
        lines: Line of every key and list item, from 1.
        problems: Mistakes found while parsing (duplicate keys, keys that are no text) and after.
        left_out: What `validate_document` found to be wrong.
    """

    name: str
    data: Any = None
    lines: dict[Path_, int] = field(default_factory=dict)
    problems: list[tuple[int, str]] = field(default_factory=list)
    left_out: set[Path_] = field(default_factory=set)

    def line(self, path: Path_) -> int:
        """Return the line of `path`, or of the nearest thing around it that has one."""
        while path and path not in self.lines:
            path = path[:-1]
        return self.lines.get(path, 1)

    def problem(self, path: Path_, text: str) -> None:
        """Note a mistake at `path`."""
        self.problems.append((self.line(path), text))

    def is_whole(self, path: Path_) -> bool:
        """Return whether nothing at `path` or below it was left out."""
        return not any(gone[: len(path)] == path for gone in self.left_out)

    def report(self) -> list[str]:
        """Return the mistakes, in the order of their lines."""
        return [f"{self.name}:{line}: {text}" for line, text in sorted(self.problems)]


def resolve_path(text: str, folder: Path) -> Path:
    """Return the path that a text in a file of `folder` means: relative to that file, `~` is the user's home."""
    path = Path(text)
    with contextlib.suppress(RuntimeError):  # the home of a user who does not exist: the file does not either
        path = path.expanduser()
    return folder / path


def is_file(path: Path) -> bool:
    """Return whether there is a file; what cannot be a path is none."""
    try:
        return path.is_file()
    except (OSError, ValueError):
        return False


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
    document = Document(name)
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
    kind = str(node.tag).removeprefix("tag:yaml.org,2002:")
    if kind not in _TAGS:
        _refuse_tag(node, document)
    if isinstance(node, SequenceNode):
        return [_convert(item, (*path, i), document) for i, item in enumerate(node.value)]
    if isinstance(node, ScalarNode):
        if kind in _WORDS:
            return _word(node, _WORDS[kind], document)
        return _number(node, kind, document) if kind in ("int", "float") else node.value
    converted: dict[str, object] = {}
    for key_node, value_node in node.value:
        line = key_node.start_mark.line + 1
        if not isinstance(key_node, ScalarNode):
            document.problems.append((line, "a key must be text. Received: a list or a mapping"))
            continue
        key = str(key_node.value)
        if key in converted:
            first = document.lines[(*path, key)]
            document.problems.append(
                (line, f"{shown(key)} appears twice, also in line {first}. Remove or rename one of them")
            )
            continue
        document.lines[(*path, key)] = line
        converted[key] = _convert(value_node, (*path, key), document)
    return converted


def _refuse_tag(node: Node, document: Document) -> None:
    line, tag = node.start_mark.line + 1, shown(str(node.tag))
    document.problems.append((line, f"a value must have no tag. Received: {tag}. Remove the tag"))


_WORDS: dict[str, dict[str, bool | None]] = {
    "null": {"": None, "~": None, "null": None, "Null": None, "NULL": None},
    "bool": {"true": True, "True": True, "TRUE": True, "false": False, "False": False, "FALSE": False},
}
"""YAML 1.2's only words: `yes`, `on` and what a tag declares to be one of these are refused, not guessed."""


def _word(node: ScalarNode, words: dict[str, bool | None], document: Document) -> bool | None:
    if node.value not in words:
        _refuse_tag(node, document)
    return words.get(node.value)


def _number(node: ScalarNode, kind: str, document: Document) -> int | float | str:
    """Resolve a number by YAML 1.2's core rules; octals and the like stay text."""
    text: str = node.value
    if text.lower().lstrip("+-.")[:1] not in {*"0123456789", "i", "n"}:
        _refuse_tag(node, document)  # `!!int x`; infinities and `not a number` are refused where a number is needed
    elif len(text) <= MAX_DIGITS:
        digits = text.replace("_", "")
        try:
            if kind == "int":
                return int(digits, 16 if digits.lstrip("+-").startswith("0x") else 10)
            number = float(digits.replace(".inf", "inf").replace(".nan", "nan"))
        except ValueError:
            return text
        return number if math.isfinite(number) else text
    return text


def validate_document(model: type[M], document: Document) -> M | None:
    """Check a document against a pydantic model.

    Mistakes go to `document.problems`, and what is wrong to `document.left_out`.

    Returns:
        The model of what is right, so that it can be checked further; None: nothing is.
    """
    if not isinstance(document.data, dict):
        document.problems.append((1, f"must be a mapping of keys to values. Received: {shown(document.data)}"))
        return None
    data = copy.deepcopy(document.data)
    while data:
        try:
            return model.model_validate(data)
        except ValidationError as error:
            details = error.errors(include_url=False)
        if not document.left_out:  # the first time: later ones follow from what is left out
            reported: dict[tuple[int, str], str] = {}
            for detail in details:
                line, text = _explain(model, document, detail)
                # Each branch of a union reports the same mistake.
                reported[line, text.partition(" Received: ")[0]] = text
            document.problems.extend((line, text) for (line, _), text in reported.items())
        gone = {_wrong_part(data, _document_path(data, detail["loc"])) for detail in details}
        document.left_out |= gone
        for path in gone:
            _leave_out(data, path)
    return None


def _wrong_part(data: dict[str, Any], path: Path_) -> Path_:
    """Return what must go for a mistake at a path: of a list all of it, and where a key is missing, what lacks it."""
    owner: object = data
    for depth, part in enumerate(path):
        if not isinstance(owner, dict):
            return path[:depth]
        if part not in owner:
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


def _explain(model: type[BaseModel], document: Document, detail: ErrorDetails) -> tuple[int, str]:
    """Turn one of pydantic's findings into a line and a sentence with a remedy."""
    path = _document_path(document.data, detail["loc"])
    owner, field_name = _owner(model, path)
    place = _place(path)
    line = document.line(path)
    kind = detail["type"]
    if kind == "extra_forbidden":
        entry = _at(document.data, path[:-1])
        instead = owner.instead(str(path[-1]), entry) if issubclass(owner, Form) and isinstance(entry, dict) else None
        hint = instead or did_you_mean(str(path[-1]), sorted(owner.model_fields), "Known keys")
        return line, f"{place}unknown key {shown(str(path[-1]))}. {hint}"
    if kind == "missing":
        return line, f"{place}{field_name or path[-1]} is missing.{_example(owner, field_name)}"
    if kind == "value_error":
        message = str(detail["ctx"]["error"]) if "ctx" in detail else detail["msg"]
        return line, f"{place}{message}"
    if kind == "less_than_equal" and "ctx" in detail:
        limit = detail["ctx"]["le"]
        return line, f"{place}{field_name or 'value'} must be at most {limit}. Received: {shown(detail['input'])}"
    what = _description(owner, field_name) or detail["msg"][0].lower() + detail["msg"][1:]
    quoted = kind in ("int_type", "float_type", "bool_type") and _NUMBER.fullmatch(str(detail["input"]))
    example = " Remove the quotes" if quoted else _example(owner, field_name)
    return line, f"{place}{field_name or 'value'} must be {what}. Received: {shown(detail['input'])}.{example}"


_NUMBER = re.compile(r"[+-]?[0-9][0-9_.]*|true|false")


def _document_path(data: object, location: tuple[int | str, ...]) -> Path_:
    """Drop the parts that pydantic adds for union branches: they are not in the document."""
    path: list[str | int] = []
    node = data
    for position, part in enumerate(location):
        if isinstance(node, dict):
            if part not in node and position + 1 < len(location):
                continue
            path.append(part)
            node = node.get(part) if isinstance(part, str) else None
        elif isinstance(node, list) and isinstance(part, int) and part < len(node):
            path.append(part)
            node = node[part]
    return tuple(path)


def _owner(model: type[BaseModel], path: Path_) -> tuple[type[BaseModel], str | None]:
    """Find the model and field that a path leads to, through dictionaries and lists of models."""
    owner, name = model, None
    for part in path:
        if name is not None:
            inner = _inner_model(owner, name)
            if inner is not None and isinstance(part, str) and part in inner.model_fields:
                owner, name = inner, part
            elif inner is not None and part == path[-1] and isinstance(part, str):
                return inner, None
        elif isinstance(part, str) and part in owner.model_fields:
            name = part
    return owner, name


def _inner_model(owner: type[BaseModel], name: str) -> type[BaseModel] | None:
    """Return the pydantic model inside a field's annotation, if there is one."""
    pending = [owner.model_fields[name].annotation]
    while pending:
        annotation = pending.pop()
        if isinstance(annotation, type) and issubclass(annotation, BaseModel):
            return annotation
        pending.extend(getattr(annotation, "__args__", ()))
    return None


def _at(data: object, path: Path_) -> object:
    """Return what stands at a path; None: nothing."""
    for part in path:
        data = data.get(part) if isinstance(data, dict) and isinstance(part, str) else None
    return data


def _description(owner: type[BaseModel], name: str | None) -> str | None:
    return owner.model_fields[name].description if name in owner.model_fields else None


def _example(owner: type[BaseModel], name: str | None) -> str:
    examples = owner.model_fields[name].examples if name in owner.model_fields else None
    return f" Example: {name}: {examples[0]}" if examples else ""


def _place(path: Path_) -> str:
    """Say where in the file's own words: `fleet a4000: host node-b: `."""
    words = []
    for parent, part in itertools.pairwise(path):
        if parent in ("fleets", "hosts"):
            words.append(f"{str(parent)[:-1]} {part}: ")
        elif parent == "cases" and isinstance(part, int):
            words.append(f"case {part + 1}: ")
    return plain_text("".join(words[-1:]), 200)
