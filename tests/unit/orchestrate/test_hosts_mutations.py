"""A thousand spoilt files: each is refused with the line of every mistake, or read without losing a value."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from ruamel.yaml import YAML
from ruamel.yaml.error import YAMLError

from orchestrate.errors import DocumentError
from orchestrate.inventory.hosts import read_hosts
from orchestrate.text import plain_text
from orchestrate.yaml_files import read_document
from tests.support.examples import examples

EXAMPLE = re.sub(r" +#.*", "", (Path(__file__).parents[3] / "hosts.example.yml").read_text())
SUITE = """description: mine
repeats: 3
cases:
  - {model: [resnet50, googlenet], precision: [fp32, fp16], batch_per_gpu: {fp32: 128, fp16: 256}, num_gpus: [1, 2]}
  - {model: vgg16, batch_per_gpu: 64, xla: [off, auto], image_size: 96, device: cpu, warmup_steps: 3, num_steps: 20}
"""
VALUES = (
    *("null", "~", "true", "false", "yes", "on", "0", "1", "-1", "1.5", "-0.0", "1e3", "1e400", ".inf"),
    *(".nan", "0x10", "0o17", "017", "1_000", "12:30", "2026-11-21", "9" * 5000, "0x" + "f" * 5000, "''"),
    *('"\\0"', '"\\e[2J"', "é" * 300, '"a\\nb"', '"[bold]x"', '"\\u202e"', '"x/../../y"', "auto", "all"),
    *("gpu", "cuda12.5", "quick", "my.yml", "~nobody/x", "!!bool x", "!!null x", "!!int x", "!!float x"),
    *("!!str 3", "!tag x", "!!binary eA==", "&a x", "*a", "|x", "%", "@x", "[]", "[0, 0]", "[auto, cpu]"),
    *("{}", "{a: b}", "{a.b: {docker: 'ssh://c'}}", "{NCCL_X: é}", "{NCCL_X: [a]}", "{PATH: x}"),
    *('"unix:///a?b=c"', '"unix://"', '"ssh://-a"', '"ssh://a:0"', '"ssh://[::1"', '"ssh://a b"'),
    *('"ssh://u:p@a"', '"ssh://@a"', '"ssh://n@[::1]:22"', '"tcp://[::1]:2375"', '"tcp://a:2376/path"'),
    *('"npipe://x"', "gpu:a5000:0", "[{key: a, value: b}]", "{container: none, shared_folder: /x}"),
    *("{container: podman}", "{context: c, max_jobs: 2}", '"-oProxyCommand=x"', '"${X}"'),
)
KEYS = (
    *("version", "defaults", "fleets", "hosts", "suite", "gpus", "device", "variant", "registry", "image"),
    *("docker", "ssh", "docker_socket", "process", "tls", "insecure", "slurm", "kubernetes", "environment"),
    *("dockr", "Suite", "price", "<<", "1", "null", "true", '""', '"a b"', '"\\0"', '"[red]x"', "a.b"),
    *("a" * 70, "? [a]", "!!int 1", "node-b", "*a", "&a k"),
)
PIECES = (
    *("\t", "\n", " ", "  ", ":", ": ", "- ", "#", "'", '"', "{", "}", "[", "]", ",", "|", ">", "&a", "*a"),
    *("!", "%", "\\", "\x00", "\x1b[31m", "\ufeff", "\u2028", "\u202e", "\x85", "é", "😀", "---\n", "...\n"),
    *("<<: *a\n", "? ", "\r", "x: y\n"),
)
OPERATIONS = ("value", "value", "key", "delete", "repeat", "swap", "indent", "insert", "cut")
MANY = settings(
    max_examples=examples(1000),
    derandomize=True,
    database=None,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.function_scoped_fixture],
)


@st.composite
def spoilt(draw: st.DrawFn, text: str) -> bytes:
    """Change a valid file's values, keys, lines or characters in one to three places."""
    for _ in range(draw(st.integers(1, 3))):
        lines = text.splitlines(keepends=True) or [""]
        here, there = (draw(st.integers(0, len(lines) - 1)) for _ in range(2))
        parts = list(re.finditer(r"([\w.-]+):( *)([^,{}\n]*)", lines[here]))
        part = draw(st.sampled_from(parts)) if parts else None
        operation = draw(st.sampled_from(OPERATIONS))
        if operation in ("value", "key") and part is not None:
            start, end = part.span(3 if operation == "value" else 1)
            piece = draw(st.sampled_from(VALUES if operation == "value" else KEYS))
            lines[here] = f"{lines[here][:start]}{'' if part[2] else ' '}{piece}{lines[here][end:]}"
        elif operation == "delete":
            del lines[here]
        elif operation == "repeat":
            lines.insert(there, lines[here])
        elif operation == "swap":
            lines[here], lines[there] = lines[there], lines[here]
        elif operation == "indent":
            lines[here] = draw(st.sampled_from((" ", "  ", "    ", "\t"))) + lines[here]
        else:
            at = draw(st.integers(0, len(lines[here])))
            rest = lines[here][at + draw(st.integers(0, 5)) :] if operation == "insert" else ""
            lines[here] = lines[here][:at] + draw(st.sampled_from(PIECES)) + rest
        text = "".join(lines)
    data = text.encode("utf-8", "surrogatepass")
    at = draw(st.integers(0, len(data)))
    return data[:at] + draw(st.binary(min_size=1, max_size=4)) + data[at:] if draw(st.integers(0, 20)) == 0 else data


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Give a folder with the files that the example names."""
    made = tmp_path_factory.mktemp("hosts")
    for name in ("ca.pem", "cert.pem", "key.pem", "ssh_config", "kube.yml"):
        (made / name).write_text("")
    (made / "my.yml").write_text(SUITE)
    return made


@MANY
@given(data=spoilt(EXAMPLE))
def test_a_spoilt_hosts_file_is_refused_by_line_or_read_without_a_loss(folder: Path, data: bytes):
    path = folder / "hosts.yml"
    path.write_bytes(data)
    try:
        hosts = read_hosts(path)
    except DocumentError as error:
        check_problems(error.problems, path, data)
        return
    try:
        parsed = YAML(typ="safe", pure=True).load(data.decode())
    except YAMLError:  # it is stricter with tabs, and with a tag that is not its own
        return
    assert leaves(read_document(path).data) == leaves(parsed), "lost while parsing"
    named = sum(len(fleet.get("hosts") or ["queue"]) for fleet in parsed["fleets"].values())
    assert named == len(hosts) == len({host.key for host in hosts}), "a name twice would write the same records"


def check_problems(problems: list[str], path: Path, data: bytes) -> None:
    last = len(re.split(rb"\r\n|[\n\r]|\xc2\x85|\xe2\x80[\xa8\xa9]", data)) + 1
    assert problems
    for problem in problems:
        place = re.match(rf"{re.escape(str(path))}:(\d+): \S", problem)
        assert place and 1 <= int(place[1]) <= last, problem
        assert problem == plain_text(problem, 10_000), "a message must not move the cursor"
        assert len(problem) < 1500, problem


def leaves(node: Any) -> int:
    """Count scalars that say something."""
    inner = node.values() if isinstance(node, dict) else node if isinstance(node, list) else None
    return sum(map(leaves, inner)) if inner is not None else int(node is not None)
