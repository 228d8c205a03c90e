"""The runner on an image of somebody else's: a fake for NVIDIA's, with another Python and TensorFlow of its own."""

import base64
import contextlib
import io
import json
import shutil
import subprocess
import sys
import tarfile
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pynvml
import pytest

from orchestrate.engines.invocation import probe_container
from orchestrate.errors import BuildFailed
from orchestrate.images.builds import build_context, build_variant
from orchestrate.inventory.variants import read_variants
from tests.support import PROJECT
from tests.support.engines.docker import Engines
from tests.unit.test_locks import locked

IMAGE = "tfbench:on-base"
FAKE_BASE = """
FROM {base}
RUN mv /usr/bin/python3.11 /usr/bin/python3.12 && ln -sf python3.12 /usr/bin/python3 \\
 && cd /usr/lib/python3/dist-packages && for name in absl keras {modules}; do echo '__version__ = "0"' > $name.py; done \\
 && echo 'raise ImportError("a fake")' > numpy.py
{pynvml}
ENTRYPOINT ["/opt/nvidia/nvidia_entrypoint.sh"]
"""


def build(
    engines: Engines, base_image: str, folder: Path, modules: str, output: list[str], pip_config: Path | None = None
) -> None:
    """Build on a fake of NVIDIA's image; with `pip_config`, that image lacks pynvml."""
    folder.mkdir()
    shutil.copy(pynvml.__file__, folder / "pynvml.py")
    copied = "COPY pynvml.py /usr/lib/python3/dist-packages/" if pip_config is None else ""
    (folder / "Dockerfile").write_text(FAKE_BASE.format(base=base_image, modules=modules, pynvml=copied))
    engines.first.client.images.build(path=str(folder), tag="fake-ngc:1", network_mode="host", rm=True)
    variant = next(row for row in read_variants() if row.base is not None)
    arguments = {"BASE": "fake-ngc:1"}
    with engines.first.controller_client() as engine:
        build_variant(engine, variant, IMAGE, arguments=arguments, pip_config=pip_config, on_line=output.append)


@pytest.mark.docker
def test_the_runner_is_added_to_an_image_with_another_python(engines: Engines, base_image: str, tmp_path: Path):
    build(engines, base_image, tmp_path / "base", "tensorflow", [])
    spec = probe_container(IMAGE)
    with engines.first.controller_client() as engine, contextlib.ExitStack() as stack:
        stack.callback(engines.first.client.images.remove, IMAGE, force=True)
        document = engine.image_document(IMAGE)
        assert document["Config"]["Entrypoint"] == ["python3", "-m", "tfbench"]
        assert document["Config"]["User"] == "10001:10001"
        assert document["Config"]["Labels"]["tfbench.variant"] == "ngc25.02"
        engine.create(type(spec)(**{**vars(spec), "all_gpus": False}))
        stack.callback(engine.remove, spec.name)
        engine.start(spec.name)
        engine.wait(spec.name, 60)
        assert json.loads(engine.output(spec.name, 100_000))["operating_system"].startswith("Debian")


@pytest.mark.docker
def test_a_base_without_tensorflow_is_refused(engines: Engines, base_image: str, tmp_path: Path):
    output: list[str] = []
    with pytest.raises(BuildFailed):
        build(engines, base_image, tmp_path / "base", "", output)
    assert any("this base image lacks ['tensorflow']" in line for line in output)


class GuardedIndex:
    """A package index on loopback with one project, which asks for a name and a password.

    Attributes:
        admitted: How many requests had them.
    """

    PASSWORD = "hunter2-of-the-index"

    def __init__(self, wheel: Path) -> None:
        expected = "Basic " + base64.b64encode(f"bench:{self.PASSWORD}".encode()).decode()
        page = f'<a href="/{wheel.name}">{wheel.name}</a>'.encode()
        self.admitted = 0
        index = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                allowed = self.headers.get("Authorization") == expected
                index.admitted += allowed
                body = (wheel.read_bytes() if self.path.endswith(".whl") else page) if allowed else b""
                self.send_response(200 if allowed else 401)
                self.send_header("WWW-Authenticate", "Basic")
                self.send_header("Content-Type", "text/html")
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, format: str, *values: object) -> None: ...

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    @property
    def url(self) -> str:
        return f"http://bench:{self.PASSWORD}@127.0.0.1:{self.server.server_address[1]}/simple"


def contents(engines: Engines, image: str) -> Iterator[bytes]:
    """Yield every file of an image as `docker save` writes it, and every file of each layer."""
    saved = io.BytesIO(b"".join(engines.first.client.images.get(image).save()))
    with tarfile.open(fileobj=saved) as outer:
        for member in outer:
            if not member.isreg():
                continue
            data = _file(outer, member)
            yield data
            with contextlib.suppress(tarfile.ReadError), tarfile.open(fileobj=io.BytesIO(data)) as layer:
                yield from (_file(layer, item) for item in layer if item.isreg())


def _file(tar: tarfile.TarFile, member: tarfile.TarInfo) -> bytes:
    file = tar.extractfile(member)
    assert file is not None
    return file.read()


@pytest.mark.docker
def test_no_image_holds_the_password_of_the_package_index(engines: Engines, base_image: str, tmp_path: Path):
    version = locked(PROJECT / "containers/requirements/cpu.txt")["nvidia-ml-py"]
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--dest", tmp_path, f"nvidia-ml-py=={version}"]
    subprocess.run(command, check=True, capture_output=True)
    (wheel,) = tmp_path.glob("*.whl")
    index = GuardedIndex(wheel)
    config, output = tmp_path / "pip.conf", list[str]()
    config.write_text(f"[global]\nindex-url = {index.url}\n")
    try:
        build(engines, base_image, tmp_path / "base", "tensorflow", output, config)
        assert index.admitted >= 2, "the build downloaded from the index"
        image = engines.first.client.images.get(IMAGE)
        described = json.dumps(image.history()) + json.dumps(image.attrs) + "\n".join(output)
        assert GuardedIndex.PASSWORD not in described
        found = list(contents(engines, IMAGE))
        assert any(b"def nvmlInit" in data for data in found), "this looks into the layers"
        assert not any(GuardedIndex.PASSWORD.encode() in data for data in found)
    finally:
        index.server.shutdown()
        index.server.server_close()
        engines.first.client.images.remove(IMAGE, force=True)


@pytest.mark.docker
@pytest.mark.parametrize("dockerfile", ["Dockerfile", "Dockerfile.on-base"])
def test_a_dockerfile_refuses_credentials_in_an_argument(engines: Engines, base_image: str, dockerfile: str):
    arguments = {"BASE": base_image, "PIP_EXTRA_INDEX_URL": "https://bench:x@pypi.example.org/simple"}
    said = engines.first.client.api.build(
        fileobj=build_context(),
        custom_context=True,
        dockerfile=f"containers/{dockerfile}",
        buildargs=arguments,
        forcerm=True,
        decode=True,
    )
    text = json.dumps(list(said))
    assert "must not hold credentials" in text and "returned a non-zero code: 2" in text
