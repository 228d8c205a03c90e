"""Write the packages of an image as a CycloneDX document: `python sbom.py SITE VARIANT FILE`.

Runs while an image is built, with cyclonedx-python-lib. The same packages give the same document, byte for byte.
"""

import platform
import subprocess
import sys
import uuid
from importlib.metadata import Distribution, distributions
from pathlib import Path

from cyclonedx.contrib.license.factories import LicenseFactory
from cyclonedx.model.bom import Bom
from cyclonedx.model.component import Component, ComponentType
from cyclonedx.output.json import JsonV1Dot5
from packageurl import PackageURL

NAMESPACE = uuid.UUID("5b0f9b0a-5f35-4b2e-9a51-4f6b6a0c7f5e")
"""Of serial numbers; made up once for this file."""


def main(site: Path, variant: str, target: Path) -> None:
    """List the packages below `site`, and Debian's, in `target`."""
    python = sorted((_component(found) for found in distributions(path=[str(site)])), key=lambda c: c.name)
    components = [*python, *_of_debian()]
    bom = Bom(components=components)
    named = "\n".join(f"{component.name}=={component.version}" for component in components)
    # A time and a random number would make two equal builds differ.
    bom.serial_number = uuid.uuid5(NAMESPACE, f"{variant}\n{named}")
    bom.metadata.timestamp = None
    image = Component(name=f"tfbench-{variant}", type=ComponentType.CONTAINER, bom_ref="image")
    bom.metadata.component = image
    bom.register_dependency(image, components)
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_text(JsonV1Dot5(bom).output_as_string(indent=1) + "\n")


def _of_debian() -> list[Component]:
    """Return the packages of the base image, which is Debian or Ubuntu, in the order of their names."""
    command = ["dpkg-query", "--show", "--showformat=${Package} ${Version} ${Architecture}\\n"]
    lines = subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()
    system = platform.freedesktop_os_release()["ID"]
    found = []
    for name, version, architecture in sorted(line.split() for line in lines):
        purl = PackageURL("deb", system, name, version, {"arch": architecture})
        found.append(Component(name=name, version=version, purl=purl, bom_ref=str(purl), type=ComponentType.LIBRARY))
    return found


def _component(found: Distribution) -> Component:
    name, version = found.metadata["Name"].lower(), found.version
    expression = found.metadata.get("License-Expression")
    # An expression where it is one, else its text as a name: NVIDIA's packages name a licence that SPDX does not know.
    licenses = [LicenseFactory().make_from_string(expression)] if expression else None
    purl = PackageURL("pypi", name=name, version=version)
    return Component(
        name=name, version=version, purl=purl, bom_ref=str(purl), type=ComponentType.LIBRARY, licenses=licenses
    )


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], Path(sys.argv[3]))
