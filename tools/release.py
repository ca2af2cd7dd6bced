#!/usr/bin/env python3
"""What a release has beside wheels and sdist.

    release.py cut VERSION [--date YYYY-MM-DD]   the changes that are not released become VERSION's; the version is written
    release.py version                           the version of the tree
    release.py notes                             the changes of the version that the tree has
    release.py sums FOLDER                       FOLDER/SHA256SUMS, as `sha256sum -c` reads it
    release.py sbom FOLDER SOURCES               FOLDER/dfa_attention-VERSION.cdx.json, a CycloneDX bill of materials of the wheels there;
                                                 SOURCES: a Debian source package and its version a line, which are inside

sbom needs packaging/requirements-release.txt and the variable SOURCE_DATE_EPOCH, the second that it is of.
"""
import argparse
import datetime
import hashlib
import importlib.metadata
import os
import pathlib
import re
import sys
import uuid

ROOT = pathlib.Path(__file__).resolve().parents[1]
VERSION_LINE = re.compile(r'(kVersion = ")([0-9.]+)(")')
HOLLOW = "## [Unreleased]\n"

# What is inside the wheels beside Debian's packages: the package of PyPI that it comes from, and what of it is inside.
FROM_PYPI = {
    "nanobind": "the part of the module that speaks to Python",
    "ziglang": "LLVM's C++ library, unwinder and compiler-rt",
    "jaxlib": "headers of XLA's foreign functions",
    "nvidia-cuda-runtime": "declarations of the CUDA driver, cuda.h",
    "nvidia-cuda-nvrtc": "the compiler of dfa-attention-kernels",
}


def version_of(root=ROOT):
    return VERSION_LINE.search((root / "include/dfa/version.h").read_text())[2]


def cut(root, version, date):
    """Raises ValueError where the version is no later one, or there is nothing to release."""
    if not re.fullmatch(r"\d+\.\d+\.\d+", version):
        raise ValueError(f"version '{version}'; accepted: MAJOR.MINOR.PATCH")
    changelog = root / "CHANGELOG.md"
    text = changelog.read_text()
    released = [tuple(map(int, v.split("."))) for v in re.findall(r"^## \[(\d+\.\d+\.\d+)\]", text, re.M)]
    if released and tuple(map(int, version.split("."))) <= max(released):
        raise ValueError(f"version {version} is not after {'.'.join(map(str, max(released)))}, which is released")
    before, unreleased = text.split(HOLLOW, 1)
    if not re.search(r"^- ", unreleased.split("\n## [", 1)[0], re.M):
        raise ValueError("CHANGELOG.md: nothing stands under [Unreleased]")
    changelog.write_text(f"{before}{HOLLOW}\n## [{version}] - {date}\n{unreleased}")
    header = root / "include/dfa/version.h"
    header.write_text(VERSION_LINE.sub(rf"\g<1>{version}\g<3>", header.read_text()))


def notes(root):
    """The lines under the version of the tree, or under [Unreleased] where that is not cut."""
    text = (root / "CHANGELOG.md").read_text()
    for name in (re.escape(version_of(root)), "Unreleased"):
        if found := re.search(rf"^## \[{name}\].*?\n(.*?)(?=^## \[|\Z)", text, re.M | re.S):
            return found[1].strip() + "\n"
    raise ValueError(f"CHANGELOG.md has neither [{version_of(root)}] nor [Unreleased]")


def sums(folder):
    files = sorted(path for path in folder.iterdir() if path.is_file() and path.name != "SHA256SUMS")
    lines = [f"{hashlib.sha256(path.read_bytes()).hexdigest()}  {path.name}\n" for path in files]
    (folder / "SHA256SUMS").write_text("".join(lines))
    return lines


def sbom(folder, sources):
    from cyclonedx.model import HashAlgorithm, HashType, Property
    from cyclonedx.model.bom import Bom
    from cyclonedx.model.component import Component, ComponentType
    from cyclonedx.model.contact import OrganizationalEntity
    from cyclonedx.output.json import JsonV1Dot6
    from packageurl import PackageURL

    version = version_of()
    ours = Component(name="dfa-attention", version=version, type=ComponentType.LIBRARY, bom_ref="dfa-attention",
                     purl=PackageURL("pypi", None, "dfa-attention", version))
    parts = []
    for line in sources.read_text().splitlines():
        name, number = line.split()
        parts.append(Component(name=name, version=number, bom_ref=name, supplier=OrganizationalEntity(name="Debian"),
                               purl=PackageURL("deb", "debian", name, number, {"arch": "source", "distro": "bookworm"})))
    for name, what in FROM_PYPI.items():
        number = importlib.metadata.version(name)
        parts.append(Component(name=name, version=number, bom_ref=name, description=what,
                               purl=PackageURL("pypi", None, name, number)))
    when = datetime.datetime.fromtimestamp(int(os.environ["SOURCE_DATE_EPOCH"]), datetime.timezone.utc)
    bom = Bom(components=parts)
    bom.metadata.timestamp = when
    bom.metadata.component = ours
    wheels = sorted(folder.glob("*.whl"))
    for wheel in wheels:
        digest = hashlib.sha256(wheel.read_bytes()).hexdigest()
        bom.components.add(Component(name=wheel.name, version=version, type=ComponentType.FILE, bom_ref=wheel.name,
                                     hashes=[HashType(alg=HashAlgorithm.SHA_256, content=digest)]))
    bom.serial_number = uuid.uuid5(uuid.NAMESPACE_URL, "".join(sorted(w.name for w in wheels)) + when.isoformat())
    bom.register_dependency(ours, parts)
    path = folder / f"dfa_attention-{version}.cdx.json"
    path.write_text(JsonV1Dot6(bom).output_as_string(indent=2) + "\n")
    return path


def main(arguments=None):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    command = commands.add_parser("cut")
    command.add_argument("version")
    command.add_argument("--date", default=datetime.date.today().isoformat())
    commands.add_parser("version")
    commands.add_parser("notes")
    commands.add_parser("sums").add_argument("folder", type=pathlib.Path)
    command = commands.add_parser("sbom")
    command.add_argument("folder", type=pathlib.Path)
    command.add_argument("sources", type=pathlib.Path)
    told = parser.parse_args(arguments)
    try:
        if told.command == "cut":
            cut(ROOT, told.version, told.date)
        elif told.command == "version":
            print(version_of())
        elif told.command == "notes":
            sys.stdout.write(notes(ROOT))
        elif told.command == "sums":
            sys.stdout.writelines(sums(told.folder))
        else:
            print(sbom(told.folder, told.sources))
    except (ValueError, OSError) as error:
        sys.exit(f"release.py: {error}")


if __name__ == "__main__":
    main()
