"""Parses the user's YAML files with line numbers, and reports all mistakes at once.

A mistake reads `hosts.yml:9: host node-b: gpus must be … Received: …. Example: gpus: [0, 1]`.
"""

from __future__ import annotations

import difflib
import itertools
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, ClassVar, Self, TypeVar

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
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
from ruamel.yaml.error import YAMLError
from ruamel.yaml.nodes import Node, ScalarNode, SequenceNode

from orchestrate.errors import DocumentError
from orchestrate.text import plain_text, shown

M = TypeVar("M", bound=BaseModel)

Path_ = tuple[str | int, ...]
"""Path of a value: keys and list indices from the top."""

MAX_VALUES = 100_000
"""Maximum number of values in a document, against exponential expansion of nested aliases."""

MISTAKE = "mistake"
"""Type of errors that are already sentences."""

MERGE = "Write what they share under defaults:, or repeat it"
"""Remedy for the key `<<` of YAML 1.1, which is not supported."""

_DECIMAL_COMMA = re.compile(r"[0-9]+,[0-9]+")


class Form(BaseModel):
    """Base of models for the user's files, which adds descriptions and examples to errors.

    Validators receive the file's folder as context, and None for a plan.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    instead: ClassVar[Mapping[str, str]] = {}
    """Hints for unknown keys that users may try."""

    def mistakes(self) -> Iterator[tuple[str, str]]:
        """Yield mistakes in the combination of valid values: the key (empty: the whole) and a remedy."""
        yield from ()

    def misplaced(self, rules: Iterable[tuple[bool, str, Sequence[str]]]) -> Iterator[tuple[str, str]]:
        """Yield keys that would be ignored, from rows of: whether they have an effect, what they are for, the keys."""
        given = [key for key in self.model_fields_set if getattr(self, key) is not None]
        for fits, what, keys in rules:
            yield from ((key, f"{key} is for {what} only. Remove it") for key in keys if key in given and not fits)

    @model_validator(mode="wrap")
    @classmethod
    def _validate(cls, data: Any, handler: ModelWrapValidatorHandler[Self]) -> Self:  # noqa: ANN401 (anything)
        """Validate, and turn the errors of pydantic into sentences."""
        try:
            form = handler(data)
            found: list[tuple[Path_, str]] = [((key,), text) for key, text in form.mistakes()]
            if not found:
                return form
        except ValidationError as error:
            found = [(detail["loc"], cls._sentence(detail)) for detail in error.errors(include_url=False)]
        raise ValidationError.from_exception_data(
            MISTAKE,
            [
                InitErrorDetails(type=PydanticCustomError(MISTAKE, "{text}", {"text": text}), loc=path, input=None)
                for path, text in found
            ],
        )

    @classmethod
    def _sentence(cls, detail: ErrorDetails) -> str:
        """Turn an error of pydantic into a sentence with a remedy."""
        kind, received = detail["type"], detail["input"]
        if kind == MISTAKE:
            return detail["msg"]
        if kind == "value_error":
            return str(detail["ctx"]["error"])
        if not detail["loc"]:
            return f"must be a mapping of keys to values. Received: {shown(received)}."
        name = str(detail["loc"][0])
        if kind == "extra_forbidden":
            hint = {"<<": MERGE, **cls.instead}.get(name) or did_you_mean(name, sorted(cls.model_fields), "Known keys")
            return f"unknown key {shown(name)}. {hint}"
        known = cls.model_fields[name]
        example = f" Example: {name}: {known.examples[0]}" if known.examples else ""
        if kind == "missing":
            return f"{name} is missing.{example}"
        words = detail["msg"].removeprefix("Input should be ").removeprefix("must be ")
        what = "true or false" if kind == "bool_type" else words
        if known.description and kind != "less_than_equal":
            what = known.description
        if isinstance(received, str) and _DECIMAL_COMMA.fullmatch(received):
            example = f" Write {received.replace(',', '.')}"
        return f"{name} must be {what}. Received: {shown(received)}.{example}"


T = TypeVar("T")


def listed(value: T | list[T]) -> list[T]:
    """Return a list as it is, and anything else as a list of one."""
    return value if isinstance(value, list) else [value]


Listed = Annotated[list[T], BeforeValidator(listed), Field(min_length=1, max_length=100)]
"""A list, or one value."""


def described(description: str, example: str | None = None, default: Any = None) -> Any:  # noqa: ANN401 (as `Field`)
    """Return an optional field, described for messages such as `NAME must be DESCRIPTION. Example: …`."""
    return Field(default, description=description, examples=[] if example is None else [example])


class Document:
    """A parsed YAML file.

    Attributes:
        name: The file's name, as given by the user.
        folder: Base of relative paths in the file.
        data: Plain dictionaries, lists and scalars.

    Raises:
        DocumentError: The file cannot be read, or is not YAML.
    """

    def __init__(self, path: Path) -> None:
        self.name, self.folder = plain_text(str(path)), path.parent
        self._lines: dict[Path_, int] = {}  # of every key and list item, from 1
        self._problems: dict[tuple[int, str], str] = {}  # texts by line and by what is wrong, which unions say twice
        self._yaml = YAML(typ="safe", pure=True)  # "rt" would also parse comments
        self._yaml.composer.warn_double_anchors = False  # valid YAML: an alias refers to the last
        try:
            node = self._yaml.compose(path.read_bytes().decode("utf-8"))
            self.data: Any = None if node is None else self._plain(node, ())
        except OSError as error:
            raise DocumentError([f"{self.name}:1: cannot be read: {error.strerror}. Check the path"]) from error
        except (YAMLError, RecursionError, ValueError, LookupError, AttributeError) as error:  # e.g. of `!!bool x`
            mark, problem = getattr(error, "problem_mark", None), getattr(error, "problem", None) or str(error)
            where = f"{self.name}:{mark.line + 1 if mark else 1}"
            text = f"{where}: is not valid YAML: {plain_text(problem, 200)}. Check indentation and quotes"
            raise DocumentError([text]) from error

    def _plain(self, node: Node, path: Path_) -> object:
        """Convert a node to plain data and record lines; duplicate keys are mistakes."""
        if len(self._lines) > MAX_VALUES:
            raise ValueError(f"more than {MAX_VALUES} values")
        self._lines.setdefault(path, node.start_mark.line + 1)
        if isinstance(node, ScalarNode):
            return self._yaml.constructor.construct_object(node)
        if isinstance(node, SequenceNode):
            return [self._plain(item, (*path, i)) for i, item in enumerate(node.value)]
        converted: dict[str, object] = {}
        key = ""
        for key_node, value_node in node.value:
            line = key_node.start_mark.line + 1
            if not isinstance(key_node, ScalarNode):
                raise ValueError(f"a key in line {line} is a list or a mapping")
            if value_node.value == "" and _DECIMAL_COMMA.fullmatch(f"{converted.get(key)},{key_node.value}"):
                converted[key] = f"{converted[key]},{key_node.value}"
            elif (key := str(key_node.value)) in converted:
                first = self._lines[(*path, key)]
                text = f"{shown(key)} appears twice, also in line {first}. Remove or rename one of them"
                self._problems[line, text] = text
            else:
                self._lines[(*path, key)] = line
                converted[key] = self._plain(value_node, (*path, key))
        return converted

    def line(self, path: Path_) -> int:
        """Return the line of `path`, or of its nearest parent that has one."""
        while path and path not in self._lines:
            path = path[:-1]
        return self._lines.get(path, 1)

    def problem(self, path: Path_, text: str) -> None:
        """Add a mistake at `path`, with the name of the innermost host, fleet or case that contains it."""
        place = ""
        for parent, part in itertools.pairwise(path):
            if parent in ("fleets", "hosts"):
                place = f"{str(parent)[:-1]} {part}: "
            elif parent == "cases" and isinstance(part, int):
                place = f"case {part + 1}: "
        self._problems[self.line(path), place + text.partition(" Received: ")[0]] = f"{plain_text(place, 200)}{text}"

    def validated(self, model: type[M]) -> M:
        """Return the document as a model.

        Raises:
            DocumentError: All mistakes, sorted by line and without duplicates.
        """
        try:
            return model.model_validate(self.data, context=self.folder)
        except ValidationError as error:
            self.report(error, {}, ())
            self.raise_problems()
            raise

    def report(self, error: ValidationError, parents: Mapping[Any, Path_], parent: Path_) -> None:
        """Add the mistakes in values of the document.

        Args:
            error: Of a model that was validated with them.
            parents: Paths of the mappings that contain a key.
            parent: Path of the mapping that contains all others.
        """
        for detail in error.errors(include_url=False):
            self.problem((*parents.get(next(iter(detail["loc"]), ""), parent), *detail["loc"]), detail["msg"])

    def raise_problems(self) -> None:
        """Raise a DocumentError with all mistakes, sorted by line and without duplicates, if there are any."""
        if self._problems:
            found = sorted((line, text) for (line, _), text in self._problems.items())
            raise DocumentError([f"{self.name}:{line}: {text}" for line, text in found])


def resolve_path(text: str, folder: Path) -> Path:
    """Resolve a path in a file of `folder`: relative to that folder, with `~` expanded."""
    return folder / os.path.expanduser(text)  # noqa: PTH111 (that of pathlib fails for unknown users)


def _existing(text: str, info: ValidationInfo) -> str:
    if info.context is None:
        return text
    path = resolve_path(text, info.context)
    if not os.path.isfile(path):  # noqa: PTH113 (that of pathlib fails for names that are too long)
        raise ValueError(f"{info.field_name}: no such file: {plain_text(str(path), 300)}")
    return str(path)


ExistingFile = Annotated[StrictStr, AfterValidator(_existing)]
"""Path of an existing file, resolved relative to the document."""


def did_you_mean(word: str, known: list[str], all_of_them: str) -> str:
    """Return a hint with the most similar known word.

    Args:
        word: The unknown word.
        known: All known words.
        all_of_them: Label for listing all known words if none is similar.
    """
    close = [name for name in known if sorted(name) == sorted(word)] or difflib.get_close_matches(word, known, n=1)
    return f"Did you mean {close[0]!r}?" if close else f"{all_of_them}: {', '.join(known)}"
