"""A tiny image with a fake benchmark, whose behaviour tests choose."""

import json
import shutil
from pathlib import Path
from typing import Any

from tests.support import PROJECT
from tests.support.engines.docker import DockerEngine

PARTS = (
    "results/__init__.py",
    *sorted(str(path.relative_to(PROJECT)) for path in (PROJECT / "results" / "schema").glob("*.*")),
    "tests/real/faults/benchmark.py",
)
"""The contract, as in the real images, and the fake."""

DOCKERFILE = """
FROM {base} AS debian
# Python and what it links to, nothing else: a small image makes quick pushes and pulls.
RUN mkdir -p /small/usr/lib /small/out /small/tmp && chown 10001:10001 /small/out && cd /small \\
 && cp -a --parents /usr/lib/python3.11 . \\
 && rm -rf usr/lib/python3.11/test usr/lib/python3.11/config-* usr/lib/python3.11/ensurepip \\
      usr/lib/python3.11/lib2to3 usr/lib/python3.11/pydoc_data usr/lib/python3.11/idlelib \\
 && ldd /usr/bin/python3.11 usr/lib/python3.11/lib-dynload/*.so | grep -o '/[^ :]*\\.so[^ :]*' \\
      | grep -v ^/small | grep -v lib-dynload | sort -u | xargs cp -L --parents -t . \\
 && cp --parents /usr/bin/python3.11 .
COPY results/ /small/opt/results/
COPY benchmark.py /small/opt/benchmark.py
# Compiled here: dozens of containers start, and none may write what it compiles.
RUN python3.11 -m compileall -q -s /small /small/opt
FROM scratch
COPY --from=debian /small/ /
COPY --from=debian --chown=10001:10001 /small/out /out
ENV PYTHONPATH=/opt PYTHONDONTWRITEBYTECODE=1 PYTHONUNBUFFERED=1
USER 10001:10001
VOLUME /out
WORKDIR /opt
ENTRYPOINT ["/usr/bin/python3.11", "/opt/benchmark.py"]
"""

FAKE_IMAGE = "tfbench-fake:base"


def build_fake(engine: DockerEngine, base: str, folder: Path) -> str:
    """Build the fake image on an engine, in an empty folder, and return its name."""
    for part in PARTS:
        target = folder / part.removeprefix("tests/real/faults/")
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(PROJECT / part, target)
    (folder / "Dockerfile").write_text(DOCKERFILE.format(base=base))
    engine.client.images.build(path=str(folder), tag=FAKE_IMAGE, network_mode="host", rm=True, forcerm=True)
    return FAKE_IMAGE


def build_variant(engine: DockerEngine, reference: str, folder: Path, **behaviour: Any) -> str:
    """Build an image whose fake has a behaviour, and return its name.

    Args:
        folder: An empty folder for the build's files.
        behaviour: `does`, one of `tests.real.faults.benchmark.DOES`, and `seconds`; `filler`: bytes of another layer.
    """
    folder.mkdir(parents=True)
    filler = behaviour.pop("filler", b"")
    lines = [f"FROM {FAKE_IMAGE}", f"ENV FAKE_BENCHMARK={json.dumps(json.dumps(behaviour))}"]
    if filler:
        (folder / "filler").write_bytes(filler)
        lines.append("COPY filler /opt/filler")
    (folder / "Dockerfile").write_text("\n".join(lines) + "\n")
    engine.client.images.build(path=str(folder), tag=reference, rm=True, forcerm=True)
    return reference
