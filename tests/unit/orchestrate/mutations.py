"""Ways to spoil a `hosts.yml`: in its structure, and in its text.

A file is a tree of nodes that keeps what a parsed document loses: duplicate keys, tags, anchors, raw scalars.
"""

from __future__ import annotations

import copy
import functools
import json
from dataclasses import dataclass

from hypothesis import strategies as st
from ruamel.yaml import YAML


@dataclass
class Scalar:
    """A scalar as it is written, quotes and all."""

    text: str


@dataclass
class Mapping:
    """Keys as they are written, and their values; a key may stand twice."""

    items: list[tuple[str, Node]]


@dataclass
class Sequence:
    """A list."""

    items: list[Node]


Node = Scalar | Mapping | Sequence


@functools.cache
def parse(text: str) -> Mapping:
    """Read a valid file into a tree, once: parsing takes a third of a test over a thousand of its variants."""
    return _from_data(YAML(typ="safe", pure=True).load(text))


def _from_data(data: object) -> Node:
    if isinstance(data, dict):
        return Mapping([(str(key), _from_data(value)) for key, value in data.items()])
    if isinstance(data, list):
        return Sequence([_from_data(value) for value in data])
    return Scalar(json.dumps(data))


def write(node: Node, indent: int = 0) -> str:
    """Write a tree as YAML in flow style, a key a line."""
    pad = "  " * (indent + 1)
    if isinstance(node, Scalar):
        return node.text
    if isinstance(node, Mapping):
        inside = "".join(f"{pad}{key}: {write(value, indent + 1)},\n" for key, value in node.items)
        return f"{{\n{inside}{'  ' * indent}}}" if inside else "{}"
    return f"[{', '.join(write(item, indent + 1) for item in node.items)}]"


SCALARS = (
    *("null", "~", "true", "false", "yes", "no", "on", "0", "1", "-1", "2", "1.5", "0.0", "-0.0", "1e3", "1e400"),
    *(".inf", "-.inf", ".nan", "0x10", "0o17", "017", "1_000", "12:30", "2026-11-21", "9" * 30, "9" * 5000),
    *("0x" + "f" * 5000, "''", '" "', '"\\0"', '"\\e[2J"', '"a\\nb"', '"[bold]x"', '"\\u202e"', '"x/../../y"', '"/"'),
    *("auto", "all", "gpu", "cpu", "cuda12.5", "pull", "local", "quick", "my.yml", "~/x.yml", "~nobody/x", "standard"),
    *("!!bool x", "!!null x", "!!int x", "!!float x", "!!str 3", "!tag x", "!!binary eA==", "!!python/name:os.system"),
    *("&a x", "*a", "|x", "%", "@x", "`x", "ghcr.io/you", "https://ghcr.io/you", "ghcr.io/you:tag", '"a b"', "é" * 300),
    *('"unix:///run/docker.sock"', '"unix://here/run/x.sock"', '"unix:///a?b=c"', '"unix:///a#b"', '"unix://"'),
    *('"ssh://a"', '"ssh://-a"', '"ssh://-l@a"', '"ssh://a:0"', '"ssh://a:22/run/x.sock"', '"ssh://a:x"', '"ssh://u@"'),
    *('"ssh://[::1]:22"', '"ssh://[::1"', '"ssh://a b"', '"ssh://a\\nb"', '"ssh://u:p@a"', '"ssh://@a"', '"ssh://a?b"'),
    *('"tcp://a:2376"', '"tcp://a:2376/path"', '"tcp://u@a:2376"', '"tcp://[::1]:2376"', '"tcp://a"', '"npipe://x"'),
)
"""Values that are, or nearly are, something else than they seem."""

KEYS = (
    *("version", "defaults", "fleets", "hosts", "suite", "repeats", "gpus", "device", "variant", "registry", "image"),
    *("image_source", "cpus", "memory_gb", "usd_per_gpu_hour", "timeout_minutes", "silence_minutes", "docker"),
    *(
        "docker_socket",
        "ssh_config",
        "address",
        "network",
        "cluster_port",
        "host_keys",
        "docker_via",
        "process",
        "tls",
        "insecure",
        "ca",
        "cert",
        "key",
    ),
    *("slurm", "partition", "gres", "container", "max_jobs", "shared_folder", "options", "ssh", "python", "requeue"),
    *("environment", "NCCL_DEBUG", "NCCL_IB_DISABLE", "XLA_FLAGS", "LD_PRELOAD"),
    *("kubernetes", "node_selector", "namespace", "tolerations", "image_pull_secrets", "queue", "kubeconfig"),
    *("dockr", "Suite", "gpu", "price", "<<", "1", "null", "true", '""', '"a b"', '"\\0"', '"[red]x"', "a.b", "a" * 70),
    *("? [a]", "? {a: b}", "!!int 1", "node-b", "*a", "&a k"),
)

SENSIBLE = {
    "suite": ("quick", "standard", "my.yml", "null"),
    "repeats": ("1", "5", "1000", "1001"),
    "gpus": ("all", "[0]", "[1, 0]", "[0, 0]", "null"),
    "device": ("auto", "gpu", "cpu"),
    "variant": ("auto", "cpu", "[cuda12.5, cpu]", "[cpu, cpu]", "[auto]"),
    "registry": ("ghcr.io/you", "127.0.0.1:5000/x/", '"[::1]:5000/x"'),
    "image": ("tfbench:mine", f"a/b@sha256:{'0' * 64}"),
    "image_source": ("pull", "local"),
    "cpus": ("1.5", "8", "1e9"),
    "memory_gb": ("16", "0.5"),
    "usd_per_gpu_hour": ("0", "0.17"),
    "environment": (
        *("{NCCL_DEBUG: INFO}", "{NCCL_DEBUG: 1, XLA_FLAGS: ''}", "{NCCL_DEBUG: 0x10}", "{PATH: x}", "{NCCL_X: [a]}"),
        *('{NCCL_X: "a\\nb"}', "{NCCL_X: é}", "{}", "{NCCL_TOPO_FILE: x}", "null"),
    ),
    "timeout_minutes": ("1e2", "0.5"),
    "silence_minutes": ("5", "0"),
    "docker": ('"ssh://n@[::1]:22"', '"ssh://A/run/d.sock"', '"unix:///x.sock"', '"tcp://[::1]:2375"', '"ssh://A"'),
    "docker_socket": ("/run/d.sock", "run/d.sock"),
    "address": ("10.0.0.1", '"fd00::1"', "node-a", '"-x"', '"a b"'),
    "network": ("bridge", "host", "none"),
    "host_keys": ("strict", "accept-new", "no"),
    "docker_via": ("sudo", "su"),
    "cluster_port": ("29500", "80", "65000"),
    "ssh_config": ("ssh_config", "./ssh_config"),
    "insecure": ("true", "false"),
    "process": ("true", "false"),
    "container": ("docker", "none", "podman"),
    "gres": ('"gpu:4"', '"gpu:a5000:2"', '"gpu:a5000:0"', '"gpu:a b:2"', "gpu"),
    "options": ("[]", "['--reservation=x']", "['--array=0-1']", "['--time', '-p x']"),
    "max_jobs": ("1", "1000", "0"),
    "ssh": ("login", '"u@login"', '"-oProxyCommand=x"', '"ssh://u@l:22"'),
    "shared_folder": ("/home/x", "home/x", '"/home/a b"', '"/$(x)"'),
    "slurm": ("{container: none, shared_folder: /x}", "{}"),
    "kubernetes": ("{}", "{context: c, max_jobs: 2}", "{queue: a b}"),
    "node_selector": ("{nvidia.com/gpu.product: NVIDIA-L4}", "{a: '', b/c: x}", "{a b: x}", "{a: -x}", "[]"),
    "namespace": ("bench", "Bench", "'-a'"),
    "tolerations": ("[{key: a, operator: Exists}]", "[{key: a, operator: Exists, value: b}]", "[{}]", "[a]"),
    "image_pull_secrets": ("[a, b.c]", "[A]"),
    "kubeconfig": ("ssh_config", "nowhere.yml"),
    "hosts": ("{a.b: {docker: 'ssh://c'}}", "{c: {docker: 'ssh://d'}, b.c: {docker: 'ssh://e'}}"),
}
"""Values that are right, at least in some places."""

OPERATIONS = (
    "set",
    "set",
    "set",
    "set",
    "replace",
    "delete",
    "rename",
    "repeat",
    "insert",
    "wrap",
    "copy",
    "move",
    "empty",
)


@st.composite
def spoilt_trees(draw: st.DrawFn, text: str) -> str:
    """Change a valid file's structure in one to three places."""
    tree = copy.deepcopy(parse(text))
    for _ in range(draw(st.integers(1, 3))):
        _spoil(draw, tree)
    return write(tree)


def _spoil(draw: st.DrawFn, tree: Mapping) -> None:
    places = list(_places(tree))
    if not places:
        return
    parent, index = draw(st.sampled_from(places))
    operation = draw(st.sampled_from(OPERATIONS))
    key, value = parent.items[index] if isinstance(parent, Mapping) else ("", parent.items[index])
    if operation == "set" and isinstance(parent, Mapping):
        key = draw(st.sampled_from(list(SENSIBLE)))
        value = Scalar(draw(st.sampled_from(SENSIBLE[key])))
        parent.items[:] = [item for item in parent.items if item[0] != key]
        parent.items.append((key, value))
        return
    if operation == "replace":
        value = _new_value(draw)
    elif operation == "rename":
        key = draw(st.sampled_from(KEYS))
    elif operation == "wrap":
        value = draw(st.sampled_from((Sequence([value]), Mapping([("x", value)]), Sequence([value, value]))))
    elif operation == "empty":
        value = draw(st.sampled_from((Scalar(""), Mapping([]), Sequence([]))))
    parent.items[index] = _item(parent, key, value)
    if operation == "delete":
        del parent.items[index]
    elif operation == "repeat":
        parent.items.insert(draw(st.integers(0, len(parent.items))), _item(parent, key, value))
    elif operation == "insert":
        parent.items.insert(index, _item(parent, draw(st.sampled_from(KEYS)), _new_value(draw)))
    elif operation in ("copy", "move"):
        other = draw(st.sampled_from([place for place, _ in places]))
        if operation == "move":
            del parent.items[index]
        if not _holds(value, other):
            other.items.append(_item(other, key, value))


def _new_value(draw: st.DrawFn) -> Node:
    scalars = st.sampled_from(SCALARS).map(Scalar)
    lists = st.lists(scalars, max_size=3).map(lambda items: Sequence(list(items)))
    pairs = st.lists(st.tuples(st.sampled_from(KEYS), scalars), max_size=2)
    return draw(st.one_of(scalars, scalars, scalars, lists, pairs.map(lambda items: Mapping(list(items)))))


def _item(parent: Mapping | Sequence, key: str, value: Node) -> object:
    return (key or "x", value) if isinstance(parent, Mapping) else value


def _places(node: Node) -> list[tuple[Mapping | Sequence, int]]:
    if isinstance(node, Scalar):
        return []
    children = [item[1] if isinstance(item, tuple) else item for item in node.items]
    return [(node, index) for index in range(len(node.items))] + [
        place for child in children for place in _places(child)
    ]


def _holds(node: Node, wanted: Node) -> bool:
    """Return whether a tree contains a node, which must then not be put into it."""
    if node is wanted:
        return True
    if isinstance(node, Scalar):
        return False
    return any(_holds(item[1] if isinstance(item, tuple) else item, wanted) for item in node.items)


PIECES = (
    *("\t", "\n", " ", "  ", ":", ": ", "- ", "#", "'", '"', "{", "}", "[", "]", ",", "|", ">", "&a", "*a", "!", "%"),
    *(
        "\0",
        "\x1b[31m",
        "\ufeff",
        "\u2028",
        "\u202e",
        "\x85",
        "é",
        "😀",
        "---\n",
        "...\n",
        "<<: *a\n",
        "? ",
        "\\",
        "\r",
    ),
    *("%YAML 1.1\n---\n", "1", "null", "true", "gpus", "docker: ssh://a\n", "x: y\n"),
)


@st.composite
def spoilt_texts(draw: st.DrawFn, text: str) -> bytes:
    """Change a valid file's characters, lines or bytes in one to five places."""
    for _ in range(draw(st.integers(1, 5))):
        lines = text.splitlines(keepends=True) or [""]
        line = draw(st.integers(0, len(lines) - 1))
        at = draw(st.integers(0, len(text)))
        operation = draw(st.sampled_from(("cut", "insert", "delete", "replace", "line", "indent", "swap", "repeat")))
        if operation == "cut":
            text = text[:at] if draw(st.booleans()) else text[at:]
        elif operation in ("insert", "delete", "replace"):
            gone = 0 if operation == "insert" else draw(st.integers(1, 12))
            piece = "" if operation == "delete" else draw(st.sampled_from(PIECES))
            text = text[:at] + piece + text[at + gone :]
        else:
            other = draw(st.integers(0, len(lines) - 1))
            if operation == "line":
                del lines[line]
            elif operation == "repeat":
                lines.insert(other, lines[line])
            elif operation == "swap":
                lines[line], lines[other] = lines[other], lines[line]
            else:
                lines[line] = draw(st.sampled_from((" ", "  ", "    ", "\t"))) + lines[line]
            text = "".join(lines)
    data = text.encode("utf-8", "surrogatepass")
    if draw(st.integers(0, 9)) == 0:
        at = draw(st.integers(0, len(data)))
        data = data[:at] + draw(st.binary(min_size=1, max_size=4)) + data[at:]
    return data
