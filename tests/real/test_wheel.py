"""The wheel, installed outside of any checkout: what it holds, and that each part of tfbench works from it alone."""

import re
import shutil
import subprocess
import sys
import sysconfig
import zipfile
from collections.abc import Iterator
from email.parser import Parser
from importlib.metadata import distribution
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from results.runs.store import RunFolder
from results.schema.version import __version__
from tests.support.wheel import PACKAGES, build_wheel, copy_source, run_elsewhere, without_checkout
from tests.unit.results.factory import repeats

TRAPS = (
    *("containers/ca/company.crt", "containers/pip/pip.conf", "hosts.yml", ".env"),
    *("runs/one/plan.json", "tests/x.txt"),
)
"""Files that a user's checkout may hold and a wheel must not."""

pytestmark = pytest.mark.timeout(2400)  # environments are installed

TINY_SUITE = "repeats: 1\ncases: [{model: alexnet, batch_per_gpu: 1, image_size: 64, warmup_steps: 1, num_steps: 3, device: cpu}]\n"


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Copy what a wheel is made of, and plant what must stay out of it."""
    copy = copy_source(tmp_path_factory.mktemp("source"))
    for name in TRAPS:
        (copy / name).parent.mkdir(parents=True, exist_ok=True)
        (copy / name).write_text("secret")
    return copy


@pytest.fixture(scope="module")
def wheel(source: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_wheel(source, tmp_path_factory.mktemp("wheel"))


class Installed:
    """A fresh environment that the wheel was installed into, with links to this environment's packages that it needs."""

    def __init__(self, folder: Path, wheel: Path) -> None:
        self._folder = folder
        subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder)], check=True, timeout=300)
        self.install("--no-deps", str(wheel))
        self._lend(requirements(wheel))

    def _lend(self, needed: list[str]) -> None:
        """Link what is needed: installing it, as CI does on each system, takes longer than all else."""
        for requirement in map(Requirement, needed):
            if requirement.marker is None or requirement.marker.evaluate({"extra": ""}):
                found = distribution(requirement.name)
                names = {file.parts[0] for file in found.files or ()} - {"..", "__pycache__"}
                links = {self.site() / name: Path(str(found.locate_file(name))) for name in names}
                new = {link: place for link, place in links.items() if not link.exists()}
                for link, place in new.items():
                    link.symlink_to(place)
                if new:
                    self._lend(found.requires or [])

    def install(self, *arguments: str) -> None:
        """Install a requirement, and what it needs and is not there yet."""
        # Compiling every module takes longer than everything else; what is imported is compiled then.
        pip = [sys.executable, "-m", "pip", f"--python={self._folder / 'bin/python'}", "--disable-pip-version-check"]
        command = [*pip, "install", "--quiet", "--only-binary=:all:", "--no-compile", *arguments]
        subprocess.run(command, env=without_checkout(), check=True, timeout=1200)

    def site(self) -> Path:
        """Return the folder of its packages."""
        (folder,) = self._folder.glob("lib/python3*/site-packages")
        return folder

    def run(self, program: str, *arguments: str, folder: Path) -> subprocess.CompletedProcess[str]:
        """Run a program of the environment in a folder that is no checkout."""
        return run_elsewhere([self._folder / "bin" / program, *arguments], folder)


@pytest.fixture(scope="module")
def plain(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Installed]:
    folder = tmp_path_factory.mktemp("plain")
    yield Installed(folder, wheel)
    shutil.rmtree(folder, ignore_errors=True)


def contents(wheel: Path) -> dict[str, bytes]:
    with zipfile.ZipFile(wheel) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


def requirements(wheel: Path) -> list[str]:
    """Return what a wheel's metadata requires."""
    (metadata,) = (text for name, text in contents(wheel).items() if name.endswith(".dist-info/METADATA"))
    return Parser().parsestr(metadata.decode()).get_all("Requires-Dist") or []


def test_it_holds_every_file_of_the_three_packages_and_nothing_else(source: Path, wheel: Path):
    texts = {name: text for name, text in contents(wheel).items() if ".dist-info/" not in name}
    wanted = {
        f"{'orchestrate/' if package == 'containers' else ''}{path.relative_to(source).as_posix()}"
        for package in PACKAGES
        for path in (source / package).rglob("*")
        if path.is_file() and path.name != ".gitignore" and path.relative_to(source).as_posix() not in TRAPS
    }
    assert set(texts) == wanted and b"secret" not in texts.values()
    assert {f"{package}/py.typed" for package in ("orchestrate", "results", "tfbench")} <= set(texts)


@pytest.mark.rare
def test_a_wheel_that_is_built_from_the_sdist_is_the_same(source: Path, wheel: Path, tmp_path: Path):
    code = "import sys; from setuptools import build_meta; print(build_meta.build_sdist(sys.argv[1]))"
    subprocess.run([sys.executable, "-c", code, tmp_path], cwd=source, check=True, capture_output=True, timeout=300)
    (sdist,) = tmp_path.glob("*.tar.gz")
    assert sorted(contents(wheel)) == sorted(contents(build_wheel(sdist, tmp_path)))


def test_its_metadata_names_version_license_and_extras_and_links_outside(wheel: Path):
    texts = {
        name.partition(".dist-info/")[2]: text.decode() for name, text in contents(wheel).items() if "-info/" in name
    }
    metadata = Parser().parsestr(texts["METADATA"])
    assert (metadata["Version"], metadata["License-Expression"]) == (__version__, "Apache-2.0")
    assert "Apache License" in texts["licenses/LICENSE"]
    assert "tfbench = orchestrate.cli:main" in texts["entry_points.txt"]
    extras: dict[str, set[str]] = {}
    for requirement in map(Requirement, requirements(wheel)):
        for extra in ("", "cpu", "cuda", "kubernetes"):
            if requirement.marker is None or requirement.marker.evaluate({"extra": extra}):
                extras.setdefault(extra, set()).add(requirement.name)
    assert not {"tensorflow", "tensorflow-cpu", "keras", "kubernetes"} & extras[""]
    assert "kubernetes" in extras["kubernetes"]
    assert "tensorflow-cpu" in extras["cpu"] and "tensorflow" in extras["cuda"]
    targets = re.findall(r"\]\(([^)\s]+)\)", texts["METADATA"])
    assert len(targets) > 10 and [target for target in targets if not target.startswith(("https://", "#"))] == []


def test_without_extras_it_compares_records_and_brings_no_tensorflow(plain: Installed, tmp_path: Path):
    assert plain.run("tfbench", "--version", folder=tmp_path).stdout == f"tfbench {__version__}\n"
    assert not {"tensorflow", "keras"} & {path.name for path in plain.site().iterdir()}
    run = RunFolder.create(tmp_path / "runs", "one")
    run.write_plan("{}")
    for i, record in enumerate([*repeats(10.0, 11.0, fleet="slow"), *repeats(20.0, 21.0, fleet="fast")]):
        run.write_record(f"job-{i}", record)
    compared = plain.run("tfbench", "compare", "fast", "slow", folder=tmp_path)
    assert compared.returncode == 0, compared.stderr
    assert "fast / slow" in compared.stdout
    report = plain.run("tfbench", "report", folder=tmp_path)
    assert report.returncode == 0, report.stderr
    assert "<html" in (run.path / "report.html").read_text()
    for arguments in (["gpus", "A4000", "A5000"], ["recommend", "--model=resnet50"], ["images", "list"]):
        done = plain.run("tfbench", *arguments, folder=tmp_path)
        assert (done.returncode, done.stderr) == (0, ""), arguments


def test_without_extras_it_has_all_that_hosts_without_docker_get(plain: Installed, tmp_path: Path):
    code = "import io, tarfile; from orchestrate.engines.ssh.software import pack_runner as pack"
    code += "; print(*tarfile.open(fileobj=io.BytesIO(pack()[1])).getnames())"
    names = plain.run("python", "-c", code, folder=tmp_path).stdout.split()
    assert {"pynvml.py", "tfbench/probe.py", "results/schema/case.py"} <= set(names)


def test_without_extras_measuring_names_the_extra_to_install(plain: Installed, tmp_path: Path):
    for command, code in {"measure": 2, "run": 4}.items():
        done = plain.run("tfbench", command, folder=tmp_path)
        assert done.returncode == code and "tfbench[cpu]" in done.stderr, done.stderr
        assert "this Python has no tensorflow, keras," in done.stderr and "Traceback" not in done.stderr
    doctor = plain.run("tfbench", "doctor", folder=tmp_path)
    assert doctor.returncode == 4 and "tensorflow" in doctor.stdout


# The last test of this file: the environment has TensorFlow from here on.
@pytest.mark.tensorflow
@pytest.mark.rare
def test_with_the_cpu_extra_this_machine_is_measured_and_reported(wheel: Path, plain: Installed, tmp_path: Path):
    # Installing TensorFlow again would take half a minute.
    (plain.site() / "lent.pth").write_text(f"{sysconfig.get_path('purelib')}\n")
    plain.install(f"{wheel}[cpu]")
    (tmp_path / "tiny.yml").write_text(TINY_SUITE)
    done = plain.run("tfbench", "run", "--suite=tiny.yml", "--run-id=first", folder=tmp_path)
    assert done.returncode == 0, done.stderr
    assert re.search(r"alexnet .* ok", done.stdout), done.stdout
    assert re.search(r"table: \S*tfbench show runs/first$", done.stderr, re.M) and "python -m" not in done.stderr
    page = (tmp_path / "runs" / "first" / "report.html").read_text()
    assert "<html" in page and "tfbench measure --model=alexnet" in page
