"""The runner on an image of somebody else's: a fake for NVIDIA's, with another Python and TensorFlow of its own."""

import base64
import contextlib
import io
import json
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from unittest import mock

import pytest

from orchestrate.engines.invocation import PROBE_ENTRYPOINT, container
from orchestrate.errors import BuildFailed
from orchestrate.images import build_context, build_variant
from orchestrate.inventory.variants import read_variants
from orchestrate.options import Images
from tests.support import PROJECT
from tests.support.engines.docker import Engines
from tests.unit.test_locks import locked

pytestmark = pytest.mark.docker

IMAGE = "tfbench:on-base"
PASSWORD = "hunter2-of-the-index"
FAKE_BASE = """
FROM {base}
RUN mv /usr/bin/python3.11 /usr/bin/python3.12 && ln -sf python3.12 /usr/bin/python3 \\
 && cd /usr/lib/python3/dist-packages && for name in absl keras {modules}; do echo '__version__ = "0"' > $name.py; done \\
 && echo 'raise ImportError("a fake")' > numpy.py
ENTRYPOINT ["/opt/nvidia/nvidia_entrypoint.sh"]
"""


def build(engines: Engines, base_image: str, modules: str, output: list[str], pip_config: Path | None = None) -> None:
    """Build on a fake of NVIDIA's image, which lacks pynvml."""
    dockerfile = io.BytesIO(FAKE_BASE.format(base=base_image, modules=modules).encode())
    engines.first.client.images.build(fileobj=dockerfile, tag="fake-ngc:1", network_mode="host", rm=True)
    variant = next(row for row in read_variants().values() if row.base is not None)
    what = Images(build_arg=["BASE=fake-ngc:1"], ca=[], pip_config=pip_config)
    with engines.first.controller_client() as engine, mock.patch("orchestrate.images._print_status", output.append):
        build_variant(engine, variant, IMAGE, what)


def test_a_base_without_tensorflow_is_refused(engines: Engines, base_image: str):
    output: list[str] = []
    with pytest.raises(BuildFailed):
        build(engines, base_image, "", output)
    assert any("this base image lacks ['tensorflow']" in line for line in output)


@pytest.fixture
def index(tmp_path: Path) -> Iterator[tuple[str, list[str]]]:
    """Serve pynvml's wheel on loopback to who has the password; give the index's URL, and the paths that it gave."""
    version = locked(PROJECT / "containers/requirements/cpu.txt")["nvidia-ml-py"]
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--dest", tmp_path, f"nvidia-ml-py=={version}"]
    subprocess.run(command, check=True, capture_output=True)
    (wheel,) = tmp_path.glob("*.whl")
    expected = "Basic " + base64.b64encode(f"bench:{PASSWORD}".encode()).decode()
    given: list[str] = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            allowed = self.headers.get("Authorization") == expected
            body = wheel.read_bytes() if self.path.endswith(".whl") else f'<a href="/{wheel.name}">'.encode()
            self.send_response(200 if allowed else 401)
            self.send_header("WWW-Authenticate", "Basic")
            self.send_header("Content-Type", "text/html")
            self.end_headers()
            if allowed:
                given.append(self.path)
                self.wfile.write(body)

        def log_message(self, format: str, *values: object) -> None: ...

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://bench:{PASSWORD}@127.0.0.1:{server.server_port}/simple", given
        server.shutdown()


def test_the_runner_is_added_to_an_image_and_no_password_of_an_index(
    engines: Engines, base_image: str, tmp_path: Path, index: tuple[str, list[str]]
):
    url, given = index
    config, output = tmp_path / "pip.conf", list[str]()
    config.write_text(f"[global]\nindex-url = {url}\n")
    with engines.first.controller_client() as engine, contextlib.ExitStack() as stack:
        build(engines, base_image, "tensorflow", output, config)
        stack.callback(engines.first.client.images.remove, IMAGE, force=True)
        settings = (engine.image(IMAGE) or {})["Config"]
        assert (settings["Entrypoint"], settings["User"]) == (["python3", "-m", "tfbench"], "10001:10001")
        assert settings["Labels"]["tfbench.variant"] == "ngc25.02"
        output_of_probe = engine.run("probe", container(IMAGE, Entrypoint=PROBE_ENTRYPOINT), 60)
        assert json.loads(output_of_probe)["operating_system"].startswith("Debian")

        assert given[-1].endswith(".whl"), "the build downloaded from the index"
        image = engines.first.client.images.get(IMAGE)
        assert PASSWORD not in json.dumps([image.history(), image.attrs, output])
        saved = b"".join(image.save())  # not compressed
        assert b"def nvmlInit" in saved and PASSWORD.encode() not in saved


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
