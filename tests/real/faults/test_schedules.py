"""Twenty random schedules of faults, on this machine, over ssh, on Docker and on Slurm: see `schedules`."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support import PROJECT
from tests.support.engines.docker import Engines
from tests.support.engines.processes import missing
from tests.support.engines.required import skip_without
from tests.support.engines.slurm import missing_programs

pytestmark = [pytest.mark.docker, pytest.mark.rare]

COUNT, WORKERS = 20, "6,6,3,1"


def test_no_random_fault_loses_doubles_holds_or_crashes_a_run(engines: Engines, fake_images, tmp_path: Path):
    skip_without("Slurm", missing_programs)
    skip_without("a C compiler", lambda: missing("gcc"))
    archive = tmp_path / "image.tar"
    image = engines.first.client.images.get(fake_images.image("work", seconds=1))
    with archive.open("wb") as file:
        file.writelines(image.save(named=True))
    command = [sys.executable, "-m", "studies.faults.schedules", f"--image={archive}", f"--kept={tmp_path / 'kept'}"]
    command += os.environ.get("TFBENCH_TEST_FAULTS", f"--count={COUNT} --workers={WORKERS}").split()
    done = subprocess.run(command, cwd=PROJECT, capture_output=True, text=True, check=False)
    print(done.stdout)  # noqa: T201  its figures
    assert done.returncode == 0, "\n".join(line for line in done.stderr.splitlines() if not line.startswith("ok"))
