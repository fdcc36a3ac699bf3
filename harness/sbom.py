"""Writes the bill of materials of a wheel (CycloneDX): `sbom.py TREE FILE`.

The document lists what the wheel contains besides the project's own code, and the packages that it
requires, without versions: an installation decides those, and `cyclonedx-py environment` lists
them. The library cyclonedx-python-lib validates the document against its schema.

`harness/wheels.py` runs this file in the environment of its tools.
"""

from __future__ import annotations

import sys
import uuid
from email.parser import HeaderParser
from importlib.metadata import version
from pathlib import Path

from cyclonedx.contrib.license.factories import LicenseFactory
from cyclonedx.model import Property
from cyclonedx.model.bom import Bom
from cyclonedx.model.component import Component, ComponentScope, ComponentType
from cyclonedx.output import make_outputter
from cyclonedx.schema import OutputFormat, SchemaVersion
from cyclonedx.validation import make_schemabased_validator
from packageurl import PackageURL
from packaging.requirements import Requirement

SCHEMA = SchemaVersion.V1_6
NAMESPACE = uuid.UUID("c9f1f5c4-6c0e-5d4b-9d5e-0e6f2f4f3a10")
# Wheels for musl do not require these.
OPTIONAL = {"google-re2"}
# What the compilers put into each module.
CONTAINED = (
    ("Cython", "cython", "Apache-2.0", "run-time functions in the modules that it translates"),
    (
        "Zig",
        "ziglang",
        "MIT",
        "compiler-rt, of which a module contains the functions that it calls",
    ),
)


def bill_of_materials(tree: Path) -> str:
    """Return the document for the unpacked sdist in `tree`."""
    metadata = HeaderParser().parsestr((tree / "PKG-INFO").read_text())
    licenses = LicenseFactory()
    own = Component(
        name=metadata["Name"],
        type=ComponentType.APPLICATION,
        version=metadata["Version"],
        description=metadata["Summary"],
        licenses=[licenses.make_from_string(metadata["License-Expression"])],
        purl=PackageURL("pypi", None, metadata["Name"], metadata["Version"]),
        bom_ref=metadata["Name"],
    )
    name_of_document = f"{metadata['Name']} {metadata['Version']}"
    bom = Bom(serial_number=uuid.uuid5(NAMESPACE, name_of_document))
    bom.metadata.component = own
    for name, package, license_of, part in CONTAINED:
        bom.components.add(
            Component(
                name=name,
                version=version(package),
                description=part,
                licenses=[licenses.make_from_string(license_of)],
                purl=PackageURL("pypi", None, package, version(package)),
                bom_ref=package,
            )
        )
    for component in _requirements(metadata.get_all("Requires-Dist", [])):
        bom.components.add(component)
    bom.register_dependency(own, bom.components)
    text = make_outputter(bom, OutputFormat.JSON, SCHEMA).output_as_string(indent=2)
    error = make_schemabased_validator(OutputFormat.JSON, SCHEMA).validate_str(text)
    if error is not None:
        sys.exit(f"sbom: the document does not follow CycloneDX: {error}")
    return text


def _requirements(lines: list[str]) -> list[Component]:
    """Return a component for each package that an installation needs, or may need for an extra."""
    ranges: dict[str, list[Requirement]] = {}
    for line in lines:
        requirement = Requirement(line)
        if "extra == 'dev'" not in str(requirement.marker).replace('"', "'"):
            ranges.setdefault(requirement.name, []).append(requirement)
    components = []
    for name, requirements in sorted(ranges.items()):
        is_required = name not in OPTIONAL and any(each.marker is None for each in requirements)
        components.append(
            Component(
                name=name,
                scope=ComponentScope.REQUIRED if is_required else ComponentScope.OPTIONAL,
                purl=PackageURL("pypi", None, name.lower()),
                bom_ref=f"requirement {name}",
                properties=[Property(name="requirement", value=str(each)) for each in requirements],
            )
        )
    return components


def main() -> None:
    """Write the document that the command line asks for."""
    tree, target = map(Path, sys.argv[1:])
    target.write_text(bill_of_materials(tree) + "\n")


if __name__ == "__main__":
    main()
