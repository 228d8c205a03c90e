"""The life of a repeat on a host without Docker, through a real sshd."""

import sys
import threading
from pathlib import Path

import pytest

from orchestrate.errors import LaunchFailed, Lost, PullFailed
from orchestrate.planning.plan import Job
from results.runs.reading import from_json
from results.schema import Case, Device, Origin, Status

CASE = Case(model="resnet50", batch_per_gpu=2, device=Device.CPU, num_steps=2, warmup_steps=1)


def job(number: int = 1, variant: str | None = "cpu") -> Job:
    origin = Origin(run_id="run", fleet="rented", host="a", launcher="ssh", repeat=number, variant=variant)
    return Job(id=f"rented.a.{CASE.name}.r{number}", case=CASE, origin=origin)


def jobs_folder(tmp_path: Path) -> Path:
    return tmp_path / "home" / "jobs" / "run" / job().id


def test_an_instance_of_our_image_is_recognised_and_measures(make_launcher, tmp_path):
    launcher = make_launcher(seconds=0.5)
    facts = launcher.probe()
    (image,) = facts.images
    assert (image.variant, image.reference, image.status) == ("cpu", "tfbench:0.1.0-cpu", Status.OK)
    assert facts.cpu_count and abs(facts.clock_skew_seconds) < 60
    launcher.prepare(job(), lambda done, total: None)
    assert launcher.start(job()) is False
    lines: list[str] = []
    ending = launcher.follow(job(), lines.append)
    assert ending.exit_code == 0 and any("timing" in line for line in lines)
    record = from_json(launcher.collect(job()))
    assert record.status is Status.OK and record.case == CASE
    assert launcher.running("run") == [job().id]
    launcher.remove(job())
    assert launcher.running("run") == [] and not (tmp_path / "home" / "jobs" / "run").exists()


def test_two_controllers_at_once_start_a_repeat_once(make_launcher, tmp_path):
    launchers = [make_launcher(seconds=1) for _ in range(4)]
    reattached: list[bool] = []
    threads = [threading.Thread(target=lambda one=one: reattached.append(one.start(job()))) for one in launchers]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(reattached) == [False, True, True, True]
    assert launchers[0].follow(job(), lambda line: None).exit_code == 0


def test_what_cannot_be_started_says_so_each_time(make_launcher, tmp_path):
    launcher = make_launcher()
    (tmp_path / "image.json").write_text(
        (tmp_path / "image.json").read_text().replace(sys.executable, "/nowhere/python")
    )
    for _ in range(2):
        with pytest.raises(LaunchFailed, match="/nowhere/python could not be started"):
            launcher.start(job())


def test_a_repeat_whose_folder_is_gone_is_lost(make_launcher):
    with pytest.raises(Lost, match="folder is gone"):
        make_launcher().follow(job(), lambda line: None)


@pytest.mark.parametrize(
    ("python", "said"),
    [
        ("/usr/bin/python3", r"has no TensorFlow\. Install it there, or remove python:"),
        ("/nowhere/python", "python: /nowhere/python cannot be started there"),
    ],
)
def test_a_named_python_that_cannot_train_is_refused(make_launcher, python, said):
    with pytest.raises(LaunchFailed, match=said):
        make_launcher(image=False, python=python).probe()


def test_the_runner_is_sent_once_and_the_probe_runs_with_it(make_launcher, tmp_path):
    facts = make_launcher(image=False, python=sys.executable).probe()
    assert facts.cpu_count and facts.images == ()
    (runner,) = (tmp_path / "home" / "runner").iterdir()
    before = runner.stat().st_mtime_ns
    make_launcher(image=False, python=sys.executable).probe()
    assert runner.stat().st_mtime_ns == before


# ---- locked packages


def environments(tmp_path: Path) -> list[Path]:
    return [path for path in (tmp_path / "home" / "environments").iterdir() if path.is_dir()]


def test_locked_packages_are_installed_once_and_used(make_launcher, small_lock, tmp_path):
    launcher = make_launcher(image=False)
    launcher.prepare(job(), lambda done, total: None)
    (environment,) = environments(tmp_path)
    assert (environment / "site" / "tfbench_nothing.py").exists()
    software = launcher._software_of(job(), lambda done, total: None)
    assert str(environment / "site") in software.environment["PYTHONPATH"]
    toolchain = environment / "site" / "nvidia" / "cuda_nvcc"
    toolchain.mkdir(parents=True)
    launcher.start(job())
    assert (jobs_folder(tmp_path) / "cuda_sdk_lib").resolve() == toolchain, "XLA would use another ptxas"
    launcher.remove(job())
    assert toolchain.is_dir() and not jobs_folder(tmp_path).exists()
    small_lock.unlink()  # whoever installed again would fail now
    make_launcher(image=False).prepare(job(), lambda done, total: None)
    assert environments(tmp_path) == [environment]


def test_a_half_made_environment_is_never_used(make_launcher, small_lock, tmp_path):
    small_lock.write_bytes(b"not the wheel of the lock")
    with pytest.raises(PullFailed, match="pip could not install the locked packages"):
        make_launcher(image=False).prepare(job(), lambda done, total: None)
    assert environments(tmp_path) == []


def test_what_a_killed_installation_left_is_removed(make_launcher, small_lock, tmp_path):
    launcher = make_launcher(image=False)
    launcher.prepare(job(), lambda done, total: None)
    (environment,) = environments(tmp_path)
    left = environment.with_name(f"{environment.name}.part-1")
    environment.rename(left)
    make_launcher(image=False).prepare(job(), lambda done, total: None)
    assert environments(tmp_path) == [environment]
