"""What a host without Docker needs before its first benchmark: announced, refused where it cannot be, and brought."""

import functools
import hashlib
import http.server
import io
import re
import sys
import tarfile
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from orchestrate import loop
from orchestrate.engines.ssh import channel, software
from orchestrate.engines.ssh.launcher import SSHLauncher
from orchestrate.engines.ssh.software import REQUIREMENTS
from orchestrate.errors import LaunchFailed, PullFailed
from orchestrate.inventory.variants import read_variants
from orchestrate.planning.plan import Job
from results.schema import Case, Device, Origin, Status

CASE = Case(model="resnet50", batch_per_gpu=2, device=Device.CPU, num_steps=2, warmup_steps=1)
ORIGIN = Origin(run_id="run", fleet="rented", host="a", launcher="ssh", repeat=1, variant="cpu")
JOB = Job(id=f"rented.a.{CASE.name}.r1", case=CASE, origin=ORIGIN)


def prepare(launcher: SSHLauncher) -> None:
    launcher.prepare(JOB, lambda done, total: None)


def test_every_variant_with_a_lock_says_what_its_wheels_take():
    locked = [variant for variant in read_variants().values() if (REQUIREMENTS / f"{variant.name}.txt").exists()]
    assert locked and all(variant.wheels_megabytes for variant in locked)


def test_a_disk_that_is_too_small_is_refused_beforehand_with_both_figures(make_launcher, tmp_path):
    launcher = make_launcher(image=False)
    whole = launcher._read_hello
    launcher._read_hello = lambda: whole().model_copy(update={"free_bytes": 700_000_000})
    (image,) = launcher.probe().images
    assert image.status is Status.PULL_FAILED
    assert "needs 1.9 GB below ~/.tfbench, and only 700 MB are free" in image.reason
    assert not (tmp_path / "home" / "environments").exists()


def test_an_installation_is_announced_and_its_progress_has_an_end(make_launcher, small_lock):
    launcher = make_launcher(image=False)
    reported: list[str] = []
    launcher._pulls.notify = lambda host, message: reported.append(f"{host} {message}")
    (image,) = launcher.probe().images
    assert "not installed yet: downloads about 335 MB, needs 1.9 GB below ~/.tfbench" in image.reason
    seen: list[tuple[int, int]] = []
    launcher.prepare(JOB, lambda done, total: seen.append((done, total)))
    (message,) = reported
    assert message.startswith("rented.a ") and "installing the packages of cpu: downloads about 335 MB" in message
    assert all(0 <= done <= total for done, total in seen)
    (image,) = make_launcher(image=False).probe().images
    assert image.reason.endswith("its packages are installed")


UV = """\
#!/bin/sh
[ "$*" = "python install --no-progress --no-bin 3.11" ] || exit 9
made="$UV_PYTHON_INSTALL_DIR/cpython-3.11.9-linux-x86_64-gnu"
mkdir -p "$made/bin" && ln -s {python} "$made/bin/python3" && ln -s "$made" "$UV_PYTHON_INSTALL_DIR/cpython-3.11"
"""


@pytest.fixture
def index(tmp_path: Path) -> Iterator[Callable[[str], dict[str, str]]]:
    """Serve archives with a fake for `uv`, as its publisher does; give what the script knows of one."""
    folder = tmp_path / "index"
    folder.mkdir()
    handler = functools.partial(http.server.SimpleHTTPRequestHandler, directory=str(folder))
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()

    def publish(program: str) -> dict[str, str]:
        path, content = folder / "uv.tar.gz", program.encode()
        with tarfile.open(path, "w:gz") as file:
            member = tarfile.TarInfo("uv-any/uv")
            member.size = len(content)
            file.addfile(member, io.BytesIO(content))
        url, digest = f"http://127.0.0.1:{server.server_address[1]}/uv.tar.gz", hashlib.sha256(path.read_bytes())
        return {"url": url, "sha256": digest.hexdigest(), "program": "uv-any/uv"}

    yield publish
    server.shutdown()
    server.server_close()


@pytest.fixture
def without_python(monkeypatch, tmp_path) -> None:
    """Let no interpreter be found but the one that is brought."""
    monkeypatch.setattr(channel, "PYTHONS", ("/nowhere/python3", "/nowhere/conda/bin/python3"))


def bring(monkeypatch, archive: dict[str, str]) -> None:
    """Let hosts install Python with the fake for `uv` of an archive."""
    script = software.SCRIPT
    for name, value in archive.items():
        script = re.sub(f"(?m)^{name}=.*$", f"{name}={value}", script)
    monkeypatch.setattr(software, "SCRIPT", script)


def test_a_host_with_sh_alone_gets_a_python_and_keeps_it(make_launcher, without_python, index, monkeypatch, tmp_path):
    bring(monkeypatch, index(UV.format(python=sys.executable)))
    launcher = make_launcher(image=False)
    reported: list[str] = []
    launcher._pulls.notify = lambda host, message: reported.append(message)
    facts = launcher.probe()
    assert facts.cpu_count and facts.images
    assert reported == ["installing Python 3.11 below ~/.tfbench: downloads about 60 MB, needs 250 MB"]
    assert (tmp_path / "home" / "python" / "bin" / "python3").exists()
    assert [path.name for path in (tmp_path / "home").glob("part-*")] == []
    bring(monkeypatch, {**index("broken"), "sha256": "0" * 64})  # whoever brought it again would fail now
    assert make_launcher(image=False).probe().cpu_count


@pytest.mark.parametrize(
    ("spoil", "said"),
    [
        ({"sha256": "0" * 64}, "the digest of uv is not 0000"),
        ({"url": "http://127.0.0.1:9/uv.tar.gz"}, "uv could not be downloaded from http://127.0.0.1:9/uv.tar.gz: "),
        ({"program": "uv-any/none"}, "uv could not be unpacked"),
        ({}, "uv could not install Python 3.11: no network here"),
    ],
)
def test_a_python_that_could_not_be_brought_comes_with_the_reason(
    make_launcher, without_python, index, monkeypatch, tmp_path, spoil, said
):
    bring(monkeypatch, {**index("#!/bin/sh\necho no network here; exit 1\n"), **spoil})
    with pytest.raises(LaunchFailed) as caught:
        make_launcher(image=False).probe()
    cause = str(caught.value)
    assert "found no usable Python. Tried: /nowhere/python3 /nowhere/conda/bin/python3" in cause
    assert "Needed: Python 3.11 with pip" in cause
    assert said in cause and "Install Python 3.11 with pip there" in cause
    assert list((tmp_path / "home").iterdir()) == []


@pytest.mark.parametrize(
    ("python", "said"),
    [
        ("/usr/bin/python3", r"has no TensorFlow\. Install it there, or remove python:"),
        ("/nowhere/python", "found no usable Python. Tried: /nowhere/python"),
    ],
)
def test_a_named_python_that_cannot_train_is_refused(make_launcher, python, said):
    with pytest.raises(LaunchFailed, match=said):
        make_launcher(image=False, python=python).probe()


def environments(tmp_path: Path) -> list[Path]:
    return [path for path in (tmp_path / "home" / "environments").iterdir() if path.is_dir()]


def test_locked_packages_are_installed_once_and_used(make_launcher, small_lock, tmp_path):
    launcher = make_launcher(image=False)
    prepare(launcher)
    (environment,) = environments(tmp_path)
    assert (environment / "site" / "tfbench_nothing.py").exists()
    toolchain = environment / "site" / "nvidia" / "cuda_nvcc"
    toolchain.mkdir(parents=True)
    launcher.start(JOB)
    jobs = tmp_path / "home" / "jobs" / "run"
    assert (jobs / JOB.id / "cuda_sdk_lib").resolve() == toolchain, "XLA would use another ptxas"
    launcher.remove(JOB)
    assert toolchain.is_dir() and not jobs.exists()
    environment.rename(environment.with_name(f"{environment.name}.part-1"))  # as a killed installation leaves it
    prepare(make_launcher(image=False))
    assert environments(tmp_path) == [environment] and not toolchain.exists()
    small_lock.unlink()  # whoever installed again would fail now
    prepare(make_launcher(image=False))
    assert environments(tmp_path) == [environment]


def test_a_half_made_environment_is_never_used(make_launcher, small_lock, tmp_path):
    small_lock.write_bytes(b"not the wheel of the lock")
    with pytest.raises(PullFailed, match="pip could not install the locked packages"):
        prepare(make_launcher(image=False))
    assert environments(tmp_path) == []


def test_two_controllers_at_once_start_a_repeat_once(make_launcher, tmp_path):
    launchers = [make_launcher(seconds=1) for _ in range(4)]
    reattached: list[bool] = []
    threads = [threading.Thread(target=lambda one=one: reattached.append(one.start(JOB))) for one in launchers]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(reattached) == [False, True, True, True]
    assert loop.wait_for(launchers[0].follow(JOB, lambda line: None)).exit_code == 0
