"""What a title, a caption, the notes below and the file's name say about a whole table."""

from __future__ import annotations

import re

from results.audit.reading.headings import Facets, find_gpus, known_model, read_facets
from results.reference.gpus import specified_gpus
from results.reference.networks import model_key

_IMAGE_SIZE = re.compile(r"\bimage[ _]size[ :=]*(\d{2,4})\b|\b(\d{3})\s?[x×]\s?\2\b", re.IGNORECASE)
_MODE = re.compile(r"\bmode (train|infer)\b|\b(inference)\b", re.IGNORECASE)


def read_context(text: str, file_name: str) -> Facets:
    """Return what is said exactly once; two networks in a title say nothing about a cell."""
    everything = f"{text}\n{re.sub(r'[_.-]+', ' ', file_name)}"
    words = [part for line in everything.split("\n") for part in re.split(r"[,;:()|]", line) if part.strip()]
    models = {model_key(name) for part in words if known_model(name := read_facets(part).model)}
    precisions = {found for part in words if (found := read_facets(part).precision)}
    gpus = {name for part in words if (name := _gpu(part))}
    sizes = {match[1] or match[2] for match in _IMAGE_SIZE.finditer(everything)}
    modes = {"infer" if (match[1] or "infer").lower() == "infer" else "train" for match in _MODE.finditer(everything)}
    return Facets(
        model=models.pop() if len(models) == 1 else "",
        precision=precisions.pop() if len(precisions) == 1 else "",
        gpu=gpus.pop() if len(gpus) == 1 else "",
        image_size=sizes.pop() if len(sizes) == 1 else "",
        mode=modes.pop() if len(modes) == 1 else "",
    )


def _gpu(text: str) -> str:
    """Return the name of the GPU that a text speaks of; empty when it speaks of none that is known."""
    members = find_gpus(text)
    if len(members) == 1:
        return members[0]
    shared = [word for word in re.findall(r"[A-Za-z0-9]+", text) if members and specified_gpus(word) == members]
    return shared[0] if shared else ""
