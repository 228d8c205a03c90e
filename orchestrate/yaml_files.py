"""Parses the user's YAML files with line numbers, and reports all mistakes at once.

A mistake reads `hosts.yml:9: host node-b: gpus must be … Received: …. Example: gpus: [0, 1]`.
"""

from __future__ import annotations

import contextlib
import difflib
import functools
import itertools
import operator
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, ClassVar, Self, TypeVar

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    ModelWrapValidatorHandler,
    StrictStr,
    ValidationError,
    ValidationInfo,
    model_validator,
)
from pydantic_core import ErrorDetails, InitErrorDetails, PydanticCustomError
from ruamel.yaml import YAML
from ruamel.yaml.error import MarkedYAMLError, YAMLError
from ruamel.yaml.nodes import MappingNode, Node, ScalarNode, SequenceNode

from orchestrate.errors import DocumentError
from orchestrate.text import plain_text, shown

M = TypeVar("M", bound=BaseModel)

Path_ = tuple[str | int, ...]
"""Path of a value: keys and list indices from the top."""

MERGE_TAG = "tag:yaml.org,2002:merge"
"""Tag of the key `<<`, which adds the keys of another mapping. Source: yaml.org/type/merge.html."""

MAX_VALUES = 100_000
"""Maximum number of values in a document, against exponential expansion of nested aliases."""


class Form(BaseModel):
    """Base of models for the user's files, which adds descriptions and examples to errors.

    Validators receive the file's folder as context, and None for a plan.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    instead: ClassVar[Mapping[str, str]] = {}
    """Hints for unknown keys that users may try."""

    example: ClassVar[str] = ""
    """Example to show if the value is not a mapping."""

    def mistakes(self) -> Iterator[tuple[str, str]]:
        """Yield mistakes in the combination of valid values: the key (empty: the whole) and a remedy."""
        yield from ()

    @model_validator(mode="wrap")
    @classmethod
    def _validate(cls, data: Any, handler: ModelWrapValidatorHandler[Self]) -> Self:  # noqa: ANN401 (anything)
        try:
            form = handler(data)
        except ValidationError as error:
            details = error.errors(include_url=False)
            raise _error([(detail["loc"], cls._words(detail, data)) for detail in details]) from None
        if found := list(form.mistakes()):
            raise _error([((key,) if key else (), text) for key, text in found])
        return form

    @classmethod
    def remedy(cls, key: str, data: Any) -> str | None:  # noqa: ANN401 (anything)
        """Return a hint for an unknown key of `data`; empty key: for `data` itself."""
        return cls.instead.get(key) if key else cls.example

    @classmethod
    def _words(cls, detail: ErrorDetails, data: Any) -> str:  # noqa: ANN401 (anything)
        """Turn an error of pydantic into a sentence with a remedy; several mistakes have a line each."""
        kind, location = detail["type"], detail["loc"]
        if kind == MISTAKE:
            return detail["msg"]
        if kind == "value_error":
            return str(detail["ctx"]["error"])
        name = str(location[0]) if location else ""
        if kind == "extra_forbidden":
            known_keys = sorted(cls.model_fields)
            instead = cls.remedy(name, data) or did_you_mean(name, known_keys, "Known keys")
            return f"unknown key {shown(name)}. {instead}"
        known = cls.model_fields.get(name)
        example = f" Example: {name}: {known.examples[0]}" if known is not None and known.examples else ""
        if kind == "missing":
            return f"{name} is missing.{example}"
        received = f"Received: {shown(detail['input'])}."
        if not location:
            return f"must be a mapping of keys to values. {received}{cls.remedy('', data)}"
        if kind == "less_than_equal":
            return f"{name} must be at most {detail['ctx']['le']}. {received}"
        what = (known and known.description) or detail["msg"][0].lower() + detail["msg"][1:]
        if isinstance(detail["input"], str) and re.fullmatch(r"[0-9]+,[0-9]+", detail["input"]):
            return f"{name} must be {what}. {_decimal_point(detail['input'])}"
        if kind in ("int_type", "float_type", "bool_type") and _is_quoted_number(detail["input"]):
            example = " Remove the quotes"
        return f"{name} must be {what}. {received}{example}"


MISTAKE = "mistake"
"""Type of errors that are already sentences."""


def _decimal_point(number: str) -> str:
    return f"Received: {number}. Write {number.replace(',', '.')}"


def _is_quoted_number(value: object) -> bool:
    return isinstance(value, str) and _NUMBER.fullmatch(value) is not None


_NUMBER = re.compile(r"[+-]?[0-9][0-9_.]*|true|false")


def _error(found: Sequence[tuple[Path_, str]]) -> ValidationError:
    return ValidationError.from_exception_data(
        MISTAKE,
        [
            InitErrorDetails(type=PydanticCustomError(MISTAKE, "{text}", {"text": text}), loc=path, input=None)
            for path, text in found
        ],
    )


def described(description: str, example: str | None = None, default: Any = None) -> Any:  # noqa: ANN401 (as `Field`)
    """Return an optional field, described for messages such as `NAME must be DESCRIPTION. Example: …`."""
    return Field(default, description=description, examples=[] if example is None else [example])


@dataclass
class Document:
    """A parsed YAML file.

    Attributes:
        name: The file's name, as given by the user.
        folder: Base of relative paths in the file.
        data: Plain dictionaries, lists and scalars.
        lines: Line of every key and list item, from 1.
        problems: Lines and texts of mistakes.
    """

    name: str
    folder: Path
    data: Any = None
    lines: dict[Path_, int] = field(default_factory=dict)
    problems: list[tuple[int, str]] = field(default_factory=list)

    def line(self, path: Path_) -> int:
        """Return the line of `path`, or of its nearest parent that has one."""
        while path and path not in self.lines:
            path = path[:-1]
        return self.lines.get(path, 1)

    def problem(self, path: Path_, text: str) -> None:
        """Add a mistake at `path`, with the name of the host, fleet or case that contains it."""
        self.problems.append((self.line(path), f"{_place(path)}{text}"))

    def report(self) -> list[str]:
        """Return the mistakes without duplicates, sorted by line."""
        return [f"{self.name}:{line}: {text}" for line, text in sorted(set(self.problems))]


def _place(path: Path_) -> str:
    """Return the innermost fleet, host or case of a path, e.g. `host node-b: `."""
    words = []
    for parent, part in itertools.pairwise(path):
        if parent in ("fleets", "hosts"):
            words.append(f"{str(parent)[:-1]} {part}: ")
        elif parent == "cases" and isinstance(part, int):
            words.append(f"case {part + 1}: ")
    return plain_text("".join(words[-1:]), 200)


def resolve_path(text: str, folder: Path) -> Path:
    """Resolve a path in a file of `folder`: relative to that folder, with `~` expanded."""
    path = Path(text)
    with contextlib.suppress(RuntimeError):  # `~name` of an unknown user
        path = path.expanduser()
    return folder / path


def _existing(text: str, info: ValidationInfo) -> str:
    if info.context is None:
        return text
    path = resolve_path(text, info.context)
    with contextlib.suppress(OSError, ValueError):  # not a valid path
        if path.is_file():
            return str(path)
    raise ValueError(f"{info.field_name}: no such file: {plain_text(str(path), 300)}")


ExistingFile = Annotated[StrictStr, AfterValidator(_existing)]
"""Path of an existing file, resolved relative to the document."""


def read_document(path: Path) -> Document:
    """Parse a YAML file.

    Raises:
        DocumentError: The file cannot be read, or is not YAML.
    """
    name = plain_text(str(path))
    yaml = YAML(typ="safe", pure=True)  # "rt" would also parse comments
    yaml.composer.warn_double_anchors = False  # valid YAML: an alias refers to the last
    document = Document(name, path.parent)
    try:
        node = yaml.compose(path.read_bytes().decode("utf-8"))
        if node is not None:
            document.data = _plain(node, (), document, yaml)
    except OSError as error:
        raise DocumentError([f"{name}:1: cannot be read: {error.strerror}. Check the path"]) from error
    except MarkedYAMLError as error:
        line = error.problem_mark.line + 1 if error.problem_mark else 1
        problem = plain_text(error.problem or "cannot be parsed", 200)
        if "'\\t'" in problem:
            raise DocumentError([f"{name}:{line}: tabs cannot indent in YAML. Replace them by spaces"]) from error
        raise DocumentError([f"{name}:{line}: is not valid YAML: {problem}. Check indentation and quotes"]) from error
    except (YAMLError, RecursionError, ValueError, LookupError, AttributeError) as error:  # e.g. of `!!bool x`
        problem = plain_text(str(error), 200)
        raise DocumentError([f"{name}:1: is not valid YAML: {problem}"]) from error
    return document


def _plain(node: Node, path: Path_, document: Document, yaml: YAML) -> object:
    """Convert a node to plain data and record lines; duplicate keys are mistakes."""
    if len(document.lines) > MAX_VALUES:
        raise ValueError(f"more than {MAX_VALUES} values")
    document.lines.setdefault(path, node.start_mark.line + 1)
    if isinstance(node, ScalarNode):
        if "${" in str(node.value):  # expanded by some other tools
            document.problem(path, f"variables are not expanded. Received: {shown(node.value)}. Write the value itself")
        value: object = yaml.constructor.construct_object(node)
        return value
    if isinstance(node, SequenceNode):
        return [_plain(item, (*path, i), document, yaml) for i, item in enumerate(node.value)]
    converted: dict[str, object] = {}
    merged: dict[str, object] = {}
    before = key = ""
    for key_node, value_node in sorted(node.value, key=lambda pair: pair[0].tag != MERGE_TAG):
        line = key_node.start_mark.line + 1
        if key_node.tag == MERGE_TAG:
            for source in value_node.value if isinstance(value_node, SequenceNode) else [value_node]:
                if not isinstance(source, MappingNode):
                    document.lines[(*path, "<<")] = line
                    document.problem((*path, "<<"), "<<: takes a mapping, or a list of them. Example: <<: *defaults")
                    continue
                values = _plain(source, path, document, yaml)
                assert isinstance(values, dict)
                merged = values | merged  # the first source wins
            continue
        if not isinstance(key_node, ScalarNode):
            document.problems.append((line, "a key must be text. Received: a list or a mapping"))
        elif re.fullmatch(r"[0-9]+,[0-9]+", number := f"{before},{key_node.value}") and value_node.value == "":
            document.problem((*path, key), f"{key} must have a decimal point. {_decimal_point(number)}")
        elif (key := str(key_node.value)) in converted:
            first = document.lines[(*path, key)]
            text = f"{shown(key)} appears twice, also in line {first}. Remove or rename one of them"
            document.problems.append((line, text))
        else:
            document.lines[(*path, key)] = line
            converted[key] = _plain(value_node, (*path, key), document, yaml)
        before = str(value_node.value) if isinstance(value_node, ScalarNode) else ""
    return merged | converted


def validate_document(model: type[M], document: Document) -> M | None:
    """Validate a document, and add mistakes to `document.problems`.

    Returns:
        The model of the valid parts, for further checks, or None.
    """
    if not isinstance(document.data, dict):
        document.problems.append((1, f"must be a mapping of keys to values. Received: {shown(document.data)}"))
        return None
    is_first = True  # later mistakes are caused by removed values
    while document.data:
        try:
            return model.model_validate(document.data, context=document.folder)
        except ValidationError as error:
            found = [(detail["loc"], detail["msg"]) for detail in error.errors(include_url=False)]
        if is_first:
            # Each branch of a union reports the same mistake.
            texts = [(path, line) for path, text in found for line in text.split("\n")]
            reported = {(document.line(path), text.partition(" Received: ")[0]): (path, text) for path, text in texts}
            for path, text in reported.values():
                document.problem(path, text)
        is_first = False
        gone = {_present(document.data, path) for path, _ in found}
        if () in gone:
            break
        for path in gone:
            with contextlib.suppress(KeyError):  # its parent was removed
                del functools.reduce(operator.getitem, path[:-1], document.data)[path[-1]]
    return None


def _present(data: Any, path: Path_) -> Path_:  # noqa: ANN401 (any YAML)
    """Return the part of a path that exists, up to the first list."""
    for depth, part in enumerate(path):
        if not isinstance(data, dict) or part not in data:
            return path[:depth]
        data = data[part]
    return path


def did_you_mean(word: str, known: list[str], all_of_them: str) -> str:
    """Return a hint with the most similar known word, preferring transposed letters, e.g. `modle` for `model`.

    Args:
        word: The unknown word.
        known: All known words.
        all_of_them: Label for listing all known words if none is similar.
    """
    swapped = [name for name in known if sorted(name) == sorted(word)]
    longer = [name for name in known if name.startswith(f"{word}_")]
    close = swapped or longer or difflib.get_close_matches(word, known, n=1)
    return f"Did you mean {close[0]!r}?" if close else f"{all_of_them}: {', '.join(known)}"
