"""What is kept, and what finds no room."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tarfile
from pathlib import Path

from tests.benchmarks.gpu_evidence.folder import Folder, bundle
from tests.benchmarks.gpu_evidence.runner import MAX_LOG_BYTES, shorten

ROOT = Path(__file__).parents[3]


def test_a_bundle_keeps_its_size_and_leaves_profiles_out_first(tmp_path):
    folder = Folder(tmp_path / "out")
    folder.create()
    (folder.path / "summary.json").write_text("{}")
    folder.profile("large.nsys-rep").write_bytes(os.urandom(2 << 20))
    folder.log("a.step", "run").write_bytes(os.urandom(1 << 19))
    file = tmp_path / "bundle.tar.gz"
    assert bundle(folder, file, 1 << 20) == ["profiles/large.nsys-rep"]
    assert file.stat().st_size <= 1 << 20
    with tarfile.open(file) as archive:
        assert {"README.md", "summary.json", "logs/a.step.run.log"} <= set(archive.getnames())


def test_a_long_log_keeps_its_beginning_and_its_end(tmp_path):
    log = tmp_path / "log"
    log.write_bytes(b"first line\n" + b"x" * (3 * MAX_LOG_BYTES) + b"\nlast line\n")
    shorten(log)
    kept = log.read_bytes()
    assert len(kept) < MAX_LOG_BYTES + 100
    assert kept.startswith(b"first line\n") and kept.endswith(b"\nlast line\n") and b"bytes left out" in kept


def test_the_environment_is_noted_with_packages_and_without_paths(tmp_path):
    output, variables = tmp_path / "probe.json", {**os.environ, "TF_XLA_FLAGS": "--x", "LD_LIBRARY_PATH": "/secret"}
    command = [sys.executable, "-m", "tests.benchmarks.gpu_evidence.probe_environment"]
    subprocess.run([*command, f"--output={output}", f"--folder={tmp_path}"], cwd=ROOT, env=variables, check=True)
    software = json.loads((tmp_path / "software.json").read_text())
    assert software["packages"]["numpy"] and software["variables"]["TF_XLA_FLAGS"] == "--x"
    assert "/secret" not in (tmp_path / "software.json").read_text()
    assert json.loads(output.read_text())["figures"][0]["unit"] == "GPUs"
