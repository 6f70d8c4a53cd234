"""Checks of a release as its users make them, from its files alone; a failed one is a ReleaseError.

`check_installation` installs the wheel into an environment of its own and runs the demo outside a checkout.
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
import re
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from email.parser import Parser
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name, parse_wheel_filename

from deploy.release import attest
from deploy.release.artifacts import MACHINES
from deploy.release.image import OciArchive
from deploy.release.source import ReleaseError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

Json = dict[str, Any]

ELF_MACHINES = {62: "amd64", 183: "arm64"}
"""The field e_machine of elf(5)."""

PT_INTERP = 3
"""A program header's type: the program needs the dynamic linker of its machine."""

COMMIT = re.compile(r"[0-9a-f]{40}")
IMAGE_PROGRAM = "opt/k8s-rdma/bin/k8s-rdma-cni"

MALFORMED = (
    LookupError,
    TypeError,
    ValueError,
    OSError,
    tarfile.TarError,
    zipfile.BadZipFile,
    yaml.YAMLError,
)
"""Failures of readers that get another document than they expect."""

DEMO_LIMIT_S = 300


class Release:
    """The files of a release, by what they are."""

    def __init__(self, directory: Path) -> None:
        """Read the provenance, which says of which version and commit they are."""
        self.directory = directory
        self.provenance: Json = json.loads(self.only("k8s-rdma-*.provenance.json").read_text())
        build = self.provenance["predicate"]["buildDefinition"]
        self.parameters: Json = build["externalParameters"]
        self.version: str = self.parameters["version"]
        self.commit: str = build["resolvedDependencies"][0]["digest"]["gitCommit"]
        if not COMMIT.fullmatch(self.commit):
            msg = f"provenance: gitCommit: {self.commit!r}: must be 40 hexadecimal digits"
            raise ReleaseError(msg)
        self.wheels = sorted(directory.glob("*.whl"))
        self.images = sorted(directory.glob("k8s-rdma-image-*.tar"))

    def only(self, pattern: str) -> Path:
        """Return the only file of a pattern."""
        found = list(self.directory.glob(pattern))
        if len(found) != 1:
            msg = f"{self.directory}: {len(found)} files {pattern}, instead of 1"
            raise ReleaseError(msg)
        return found[0]

    def wheel(self, architecture: str) -> Path:
        """Return the wheel for an architecture."""
        return self.only(f"*{MACHINES[architecture]}.whl")

    @property
    def architectures(self) -> set[str]:
        """Return the architectures that there are wheels for."""
        tags = {tag.platform for path in self.wheels for tag in parse_wheel_filename(path.name)[3]}
        return {name for name, machine in MACHINES.items() if any(tag.endswith(machine) for tag in tags)}


def check_release(directory: Path, signers: Path | None = None, identity: str = "") -> Iterator[str]:
    """Check every file; yields what was found, a line a check."""
    try:
        yield _checksums(directory)
        yield _signature(directory, signers, identity)
        release = Release(directory)
        for check in CHECKS:
            yield check(release)
    except FileNotFoundError as error:
        raise ReleaseError(f"{error.filename}: there is no such file") from error
    except MALFORMED as error:
        msg = f"{directory}: a file is missing or malformed: {error!r}"
        raise ReleaseError(msg) from error


def _checksums(directory: Path) -> str:
    stated = {}
    for line in (directory / attest.CHECKSUMS).read_text().splitlines():
        digest, _, name = line.partition("  ")
        stated[name] = digest
    actual = {
        path.name: attest.digest(path)
        for path in directory.iterdir()
        if path.name not in {attest.CHECKSUMS, attest.SIGNATURE}
    }
    _expect(attest.CHECKSUMS, stated, actual)
    return f"checksums of {len(stated)} files"


def _signature(directory: Path, signers: Path | None, identity: str) -> str:
    if signers is None:
        state = "not checked: SIGNERS names no allowed signers" if _is_signed(directory) else "none"
        return f"signature: {state}"
    if not _is_signed(directory):
        msg = f"there is no {attest.SIGNATURE}"
        raise ReleaseError(msg)
    attest.check_signature(directory, signers, identity)
    return f"signature of {identity}"


def _is_signed(directory: Path) -> bool:
    return (directory / attest.SIGNATURE).exists()


def _provenance(release: Release) -> str:
    _expect("provenance: _type", release.provenance["_type"], attest.STATEMENT)
    _expect("provenance: predicateType", release.provenance["predicateType"], attest.PROVENANCE)
    subjects = {each["name"]: each["digest"]["sha256"] for each in release.provenance["subject"]}
    actual = {
        path.name: attest.digest(path)
        for path in release.directory.iterdir()
        if not path.name.startswith(attest.CHECKSUMS) and not path.name.endswith(".provenance.json")
    }
    _expect("provenance: subjects", subjects, actual)
    return f"provenance of {len(subjects)} files, commit {release.commit}"


def _wheels(release: Release) -> str:
    for path in release.wheels:
        _expect(f"{path.name}: version", _metadata(path)["Version"], release.version)
        program = _program(path)
        machine = MACHINES.get(ELF_MACHINES.get(int.from_bytes(program[18:20], "little"), ""), "another")
        if not path.stem.endswith(machine):
            msg = f"{path.name}: k8s-rdma-cni is for {machine}"
            raise ReleaseError(msg)
        if PT_INTERP in _program_headers(program):
            msg = f"{path.name}: k8s-rdma-cni is not static"
            raise ReleaseError(msg)
    return f"wheels for {', '.join(sorted(release.architectures))}, each with its static k8s-rdma-cni"


def _metadata(wheel: Path) -> Any:
    return Parser().parsestr(_file_of(wheel, ".dist-info/METADATA").decode())


def _program(wheel: Path) -> bytes:
    return _file_of(wheel, "/scripts/k8s-rdma-cni")


def _file_of(wheel: Path, end: str) -> bytes:
    with zipfile.ZipFile(wheel) as archive:
        found = [name for name in archive.namelist() if name.endswith(end)]
        if len(found) != 1:
            msg = f"{wheel.name}: {len(found)} files *{end}, instead of 1"
            raise ReleaseError(msg)
        return archive.read(found[0])


def _program_headers(program: bytes) -> set[int]:
    """Return the types of an ELF file's program headers (e_phoff, e_phentsize, e_phnum of elf(5))."""
    begin = int.from_bytes(program[32:40], "little")
    size, count = (int.from_bytes(program[at : at + 2], "little") for at in (54, 56))
    return {int.from_bytes(program[at : at + 4], "little") for at in range(begin, begin + size * count, size)}


def _sbom(release: Release) -> str:
    document = json.loads(release.only("*.cdx.json").read_text())
    versions = {canonicalize_name(each["name"]): each["version"] for each in document["components"]}
    for path in release.wheels:
        for text in _metadata(path).get_all("Requires-Dist"):
            requirement = Requirement(text)
            if requirement.marker is not None and not requirement.marker.evaluate({"extra": ""}):
                continue  # of an extra, which the SBOM leaves out: users choose it
            version = versions.get(canonicalize_name(requirement.name))
            if version is None or version not in requirement.specifier:
                msg = f"SBOM: {requirement.name} is {version}, and the wheel requires {requirement}"
                raise ReleaseError(msg)
    purls = {each["purl"] for each in document["components"]}
    for path in release.images:
        with OciArchive(path) as archive:
            absent = {
                package.purl for image in archive.images() for package in archive.packages(image)
            } - purls
        _expect("SBOM: packages of the image that are absent", absent, set())
    return f"SBOM of {len(versions)} packages"


def _image(release: Release) -> str:
    if not release.images:
        return "image: none"
    with OciArchive(release.only("k8s-rdma-image-*.tar")) as archive:
        _expect("image: blobs with another digest", list(archive.check_blobs()), [])
        architectures = set()
        for image in archive.images():
            config = archive.config(image)
            labels, architecture = config["config"]["Labels"], config["architecture"]
            architectures.add(architecture)
            name = f"image for {architecture}"
            _expect(f"{name}: version", labels["org.opencontainers.image.version"], release.version)
            _expect(f"{name}: revision", labels["org.opencontainers.image.revision"], release.commit)
            same = archive.read(image, IMAGE_PROGRAM) == _program(release.wheel(architecture))
            _expect(f"{name}: k8s-rdma-cni is the wheel's", same, True)
    _expect("image: architectures", architectures, release.architectures)
    return f"image for {', '.join(sorted(architectures))}, with the wheels' k8s-rdma-cni"


def image_digest(release: Release) -> str:
    """Return the digest by which the image is pulled; empty for a release without one."""
    if not release.images:
        return ""
    with OciArchive(release.images[0]) as archive:
        return str(archive.descriptor["digest"])


def _chart(release: Release) -> str:
    path = release.only("k8s-rdma-[0-9]*.tgz")
    about, values = (yaml.safe_load(_text_of(path, f"k8s-rdma/{name}.yaml")) for name in ("Chart", "values"))
    _expect("chart: version", about["version"], release.version)
    _expect("chart: appVersion", about["appVersion"], release.version)
    _expect("chart: image.digest", values["image"]["digest"], image_digest(release))
    return f"chart with the image {values['image']['digest'] or 'by tag'}"


def _text_of(archive: Path, name: str) -> bytes:
    with tarfile.open(archive) as files:
        found = files.extractfile(name)
        return found.read() if found else b""


def _manifests(release: Release) -> str:
    count = 0
    expected = f"@{image_digest(release)}" if release.images else f":{release.version}"
    with tarfile.open(release.only("k8s-rdma-manifests-*.tar.gz")) as files:
        for entry in files:
            found = files.extractfile(entry)
            for document in yaml.safe_load_all(found) if found else ():
                for container in _containers(document):
                    if "k8s-rdma" in container["image"]:
                        count += 1
                        _expect(f"{entry.name}: image", container["image"].endswith(expected), True)
    return f"manifests, {count} containers with that image"


def _containers(document: Json) -> list[Json]:
    pod = document.get("spec", {}).get("template", {}).get("spec", {}) if document else {}
    return [*pod.get("initContainers", ()), *pod.get("containers", ())]


def _kubectl_plugin(release: Release) -> str:
    plugin = yaml.safe_load(release.only("rdma.yaml").read_text())["spec"]
    archive = release.only("kubectl-rdma-*.tar.gz")
    _expect("rdma.yaml: version", plugin["version"], f"v{release.version}")
    for entry in plugin["platforms"]:
        _expect("rdma.yaml: sha256", entry["sha256"], hashlib.sha256(archive.read_bytes()).hexdigest())
        _expect("rdma.yaml: uri", entry["uri"].rpartition("/")[2], archive.name)
    return f"plugin of kubectl from {entry['uri']}"


CHECKS: tuple[Callable[[Release], str], ...] = (
    _provenance,
    _wheels,
    _sbom,
    _image,
    _chart,
    _manifests,
    _kubectl_plugin,
)


def check_installation(directory: Path) -> Iterator[str]:
    """Install the wheel as a user does and run the demo; yields what was found."""
    release = Release(directory)
    wheel = release.only(f"*{platform.machine()}.whl").absolute()
    with tempfile.TemporaryDirectory(prefix="k8srdma-") as path:
        environment = {name: value for name, value in os.environ.items() if not name.startswith("K8S_RDMA_")}
        _run([sys.executable, "-m", "venv", f"{path}/venv"], path, environment)
        _run([f"{path}/venv/bin/pip", "install", "--quiet", str(wheel)], path, environment)
        program = f"{path}/venv/bin/k8s-rdma"
        version = _run([program, "--version"], path, environment).strip()
        _expect("version of the installed program", version, f"k8s-rdma {release.version}")
        yield f"installed: {version}"
        _run([program, "demo", "--json", f"{path}/demo.json"], path, environment)
        checks = json.loads(Path(path, "demo.json").read_text())["checks"]
        yield f"demo: {len(checks)} checks"


def _run(command: list[str], directory: str, environment: dict[str, str]) -> str:
    ended = subprocess.run(
        command,
        cwd=directory,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
        timeout=DEMO_LIMIT_S,
    )
    if ended.returncode:
        msg = f"{' '.join(command)}: exit status {ended.returncode}\n{ended.stdout}"
        raise ReleaseError(msg)
    return ended.stdout


def _expect(what: str, actual: object, expected: object) -> None:
    if actual != expected:
        msg = f"{what}: {actual}, instead of {expected}"
        raise ReleaseError(msg)
