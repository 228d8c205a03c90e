"""A host's data set in a real engine: mounted read-only where it is, and a clear cause where it is not."""

from pathlib import Path

from results.schema import Status
from tests.support.controller import Runs, ours, running
from tests.support.engines.processes import wait_until


def test_a_container_gets_the_hosts_data_read_only_or_says_what_lacks(runs: Runs, engines, fake_images, tmp_path: Path):
    folders = {"has": tmp_path, "lacks": tmp_path / "nowhere"}
    urls = {"has": engines.first.url, "lacks": engines.second.url}
    entries = {name: {"docker": urls[name], "data_dir": str(folder)} for name, folder in folders.items()}
    image = fake_images.image(seconds=2)
    with runs.begin({"all": {"hosts": entries}}, image=image, case={"data": "tfrecord"}) as controller:
        (benchmark,) = wait_until(lambda: running(engines.first), "a benchmark")
        reported = benchmark.attrs
        assert controller.wait(180) == 3, runs.stderr
    mounts = {mount["Destination"]: mount for mount in reported["Mounts"]}
    assert set(mounts) == {"/out", "/data"}
    data = mounts["/data"]
    assert (data["Type"], data["Source"], data["RW"]) == ("bind", str(tmp_path), False)
    assert "--data_dir=/data" in reported["Config"]["Cmd"]
    records = runs.by_host()
    assert (records["has"].status, records["lacks"].status) == (Status.OK, Status.BAD_INPUT)
    assert "Correct data_dir in hosts.yml" in (records["lacks"].cause or "")
    assert not folders["lacks"].exists(), "an engine must not make it"
    assert ours(engines.first) == ours(engines.second) == []
