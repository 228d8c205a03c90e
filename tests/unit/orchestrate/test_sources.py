"""`tfbench init --from`: what other tools print, in; a hosts.yml that `plan` reads, out.

The samples in `cases/sources` were printed by the models of SkyPilot 0.14, dstack 0.22 and vastai 1.9; those of RunPod,
which has no models on PyPI, follow the examples of its API's documentation.
"""

import json
import typing
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from orchestrate import cli, session
from orchestrate.errors import Unreachable, UserError
from orchestrate.inventory.hosts import Host, read_hosts
from orchestrate.inventory.rented import SOURCES, address_of, import_hosts
from orchestrate.options import Source
from tests.unit.orchestrate.fakes import FakeHost, FakeLauncher

CASES = Path(__file__).parent / "cases" / "sources"
SAMPLES = ("sky", "dstack", "vast", "runpod")


def hosts_of(text: str, folder: Path) -> dict[str, Host]:
    path = folder / "hosts.yml"
    path.write_text(text)
    return {host.key: host for host in read_hosts(path)}


@pytest.mark.parametrize("source", SAMPLES)
def test_a_sample_becomes_a_hosts_file_that_plan_accepts(tmp_path: Path, monkeypatch, capsys, source: str):
    assert tuple(SOURCES) == typing.get_args(Source) == SAMPLES
    text = import_hosts(source, str(CASES / f"{source}.json"))
    assert text == (CASES / f"{source}.yml").read_text() and hosts_of(text, tmp_path)
    machine = FakeHost(facts=Unreachable("it is only a sample"))
    monkeypatch.setattr(session, "make_launcher", lambda host, **_: FakeLauncher(host, machine))
    monkeypatch.setenv("TFBENCH_RUNS_DIR", str(tmp_path / "runs"))
    parsed = cli.parse(["tfbench", "plan", f"--hosts={tmp_path}/hosts.yml"])
    assert parsed.command(parsed) == 0 and " repeats on " in capsys.readouterr().out


@pytest.mark.parametrize(
    ("source", "content", "said"),
    [
        ("vast", "", "not JSON: .*Expected the output of: vastai show instances --raw"),
        ("vast", '[{"id": 1, "actual_status": "exited"}]', "vast-1: its status is exited, not running"),
        ("vast", '[{"id": 1, "actual_status": "running", "ports": ""}]', "vast-1: no ssh address"),
        ("runpod", '{"errors": [{"message": "Unauthorized"}]}', "not the output of: curl .*Unauthorized"),
        ("runpod", '[{"id": "p", "desiredStatus": "RUNNING"}]', "use a template with 22/tcp"),
        ("dstack", "{}", "not the output of: dstack ps --json. Received: {}"),
    ],
)
def test_anything_else_is_refused_with_what_was_expected(tmp_path: Path, source: str, content: str, said: str):
    path = tmp_path / "input.json"
    path.write_text(content)
    with pytest.raises(UserError, match=said):
        import_hosts(source, str(path))


texts = st.text(max_size=80)


@settings(max_examples=40, deadline=None)
@example([("", "", None, "\ufffe")])
@given(st.lists(st.tuples(texts, texts, st.none() | st.floats(0, 1e6), texts), min_size=1, max_size=6))
@pytest.mark.slow
def test_names_and_texts_of_any_kind_make_a_file_that_is_read(tmp_path_factory, described):
    listed = [{"id": 1, "actual_status": status} for *_, status in described]
    for number, (name, gpu, usd, _) in enumerate(described):
        address = {"public_ipaddr": f"h{number}", "ports": {"22/tcp": [{"HostPort": "22"}]}}
        listed.append({"label": name, "gpu_name": gpu, "dph_total": usd, "actual_status": "running", **address})
    folder = tmp_path_factory.mktemp("hosts")
    (folder / "listed.json").write_text(json.dumps(listed))
    text = import_hosts("vast", str(folder / "listed.json"))
    assert len(hosts_of(text, folder)) == len(described) == text.count("#   vast-1: its status is ")


@given(texts, texts)
def test_an_address_is_plain_or_none(user: str, host: str):
    assert address_of(host, "22", f"{user}@") in (None, f"{user}@{host}:22", f"{user}@[{host}]:22")
    assert address_of("2001:db8::1", user="root@") == "root@[2001:db8::1]"
    assert (
        address_of("-oProxyCommand=x") is address_of("h", user="-l@") is address_of("h", "") is address_of(None) is None
    )
