"""GPU validation's steps with containers, on a real engine with a fake benchmark; bare, a small network trains."""

import json
import sys
from pathlib import Path

import pytest

from studies.gpu_validation.__main__ import main
from tests.support.engines.docker import Engines
from tests.support.engines.fake_image import build_fake, build_variant

pytestmark = [pytest.mark.docker, pytest.mark.rare]

SECONDS_OF_A_REPEAT = 8
"""Long enough to kill its controller meanwhile."""


def test_containers_are_checked_compared_and_survive_their_controller(
    engines: Engines, base_image: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    build_fake(engines.first, base_image, tmp_path / "base")
    image = build_variant(engines.first, "tfbench-gpu-validation:1", tmp_path / "fake", seconds=SECONDS_OF_A_REPEAT)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    out = tmp_path / "out"
    flags = [f"--out={out}", f"--python={sys.executable}", f"--engine={engines.first.url}", f"--image={image}"]
    assert main([*flags, "--only", "container"]) == 0
    found = {path.stem: json.loads(path.read_text()) for path in (out / "results").glob("*.json")}
    logs = "\n".join(path.read_text() for path in (out / "logs").glob("container.*.log"))
    figures = {
        name: result.get("figures", {}).get(result["answer"], result.get("cause")) for name, result in found.items()
    }
    assert figures["container.check"] == {"value": 2, "unit": "hosts", "limit": None}, logs
    assert figures["container.compare"]["unit"] == "× bare" and figures["container.compare"]["value"] > 0, logs
    assert figures["container.resume"]["value"] == 1, logs
    assert "needs 1 GPU" in figures["container.networks"]
    records = [path.name for path in out.rglob("records/*.r*.json")]
    assert sum(name.startswith("container.container.") for name in records) == 2
    assert not engines.first.client.containers.list(all=True)
