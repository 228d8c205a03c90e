# ruff: noqa: T201 (a script prints its result)
"""What images weigh in a registry, beside what plain `pip install` makes of the same TensorFlow: containers/README.md.

    python -m tests.benchmarks.image_sizes cuda12.5 cpu --engine=unix:///run/docker.sock --registry=127.0.0.1:5000 \
        --base=python:3.11-slim-bookworm [--naive | --naive="tensorflow==2.14.1 nvidia-cublas-cu11==…"]

Builds each variant with containers/Dockerfile and pushes it, or, with `--naive`, an image of the same base and one `pip
install tensorflow[and-cuda]==…` without caches. Sizes are those of the layers that the registry holds, compressed by the
engine. Registries without TLS must be on loopback. An image stays in the engine, a naive one is removed.
"""

from __future__ import annotations

import argparse
import io
import time

import docker

from orchestrate.images.builds import build_variant
from orchestrate.inventory.variants import Variant, read_variants
from orchestrate.launchers.docker.sdk import DockerEngine
from orchestrate.launchers.docker.transfer import controller_address
from tests.support.engines.images import layer_sizes, pip_settings

NAIVE = """
FROM {base}
ENV PIP_CERT=/etc/ssl/certs/ca-certificates.crt
RUN python3.11 -m pip install --no-cache-dir --break-system-packages {packages}
"""
HEADER = f"{'image':16} {'build s':>7} {'unpacked MB':>11} {'compressed MB':>13}  layers, MB"


def naive_packages(variant: Variant) -> str:
    """Return what a user would ask pip for."""
    extra = "tensorflow-cpu" if variant.cuda is None else "tensorflow[and-cuda]"
    return f"{extra}=={variant.tensorflow}"


def build_naive(client: docker.DockerClient, base: str, packages: str, reference: str) -> None:
    """Build the image that one `pip install` makes."""
    quoted = " ".join(f"'{package}'" for package in packages.split())
    dockerfile = NAIVE.format(base=base, packages=quoted).encode()
    client.images.build(
        fileobj=io.BytesIO(dockerfile), tag=reference, network_mode="host", nocache=True, rm=True, forcerm=True
    )


def main() -> None:
    """Build, push and print a row for each variant."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("variants", nargs="+")
    parser.add_argument("--engine", help="unix://… or ssh://… (default: DOCKER_HOST, else the usual socket)")
    parser.add_argument("--registry", required=True)
    parser.add_argument("--base", default="python:3.11-slim-bookworm")
    parser.add_argument("--naive", nargs="?", const="", metavar="PACKAGES", help="build with plain pip instead")
    options = parser.parse_args()
    known = {variant.name: variant for variant in read_variants()}
    address = controller_address(options.engine)
    engine, client = DockerEngine(address), docker.DockerClient(base_url=options.engine, timeout=3600)
    print(HEADER)
    for name in options.variants:
        kind = "tfbench" if options.naive is None else "naive"
        reference = f"{options.registry}/{kind}:{name}"
        began = time.monotonic()
        if options.naive is None:
            settings = {"BASE": options.base, **pip_settings()}
            build_variant(engine, known[name], reference, arguments=settings, on_line=lambda line: None)
        else:
            build_naive(client, options.base, options.naive or naive_packages(known[name]), reference)
        seconds = time.monotonic() - began
        engine.push(reference, lambda done, total: None)
        layers = list(layer_sizes(reference).values())
        parts = " ".join(f"{size / 1e6:.1f}" for size in layers)
        unpacked = engine.image_bytes(reference) / 1e6
        print(f"{kind + ' ' + name:16} {seconds:7.0f} {unpacked:11.0f} {sum(layers) / 1e6:13.0f}  {parts}", flush=True)
        if options.naive is not None:
            client.images.remove(reference, force=True)


if __name__ == "__main__":
    main()
