"""The documents of a release: what it is made of and by whom, checksums, and a signature of these."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
import tempfile
import tomllib
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from deploy.release.source import ReleaseError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from deploy.release.image import DebianPackage
    from deploy.release.source import Source

Json = dict[str, Any]

CHECKSUMS, SIGNATURE = "SHA256SUMS", "SHA256SUMS.sig"
NAMESPACE = "k8s-rdma-release"
"""The signature's purpose: ssh-keygen takes none that was made for another one."""

VARIABLE = "env:"
"""Begin of a key's name that is a variable's."""

STATEMENT = "https://in-toto.io/Statement/v1"
PROVENANCE = "https://slsa.dev/provenance/v1"
LOCKS = ("runtime", "release", "image")
"""Pins of what the packages need and of what builds them, in `requirements`."""


def build_sbom(source: Source, output: Path, packages: Iterable[DebianPackage]) -> Path:
    """Write the CycloneDX document: Python's packages as pinned, with licences, and Debian's of the image."""
    from packaging.requirements import Requirement  # noqa: PLC0415  who signs alone has no such packages
    from packaging.utils import canonicalize_name  # noqa: PLC0415

    document = _python_packages(source)
    component = document["metadata"]["component"]
    own, purl = component["bom-ref"], f"pkg:pypi/k8s-rdma@{source.version}"
    component |= {"bom-ref": purl, "purl": purl, "version": source.version}
    document["components"] += [
        {
            "type": "library",
            "bom-ref": package.purl,
            "name": package.name,
            "version": package.version,
            "purl": package.purl,
        }
        for package in packages
    ]
    references = {canonicalize_name(each["name"]): each["bom-ref"] for each in document["components"]}
    project = tomllib.loads((source.root / "pyproject.toml").read_text())["project"]
    required = [references[canonicalize_name(Requirement(text).name)] for text in project["dependencies"]]
    others = [entry for entry in document["dependencies"] if entry["ref"] != own]
    document["dependencies"] = [{"ref": purl, "dependsOn": sorted(required)}, *others]
    path = output / f"k8s-rdma-{source.version}.cdx.json"
    path.write_text(json.dumps(document, indent=2, sort_keys=True) + "\n")
    return path


def _python_packages(source: Source) -> Json:
    tool = (sys.executable, "-m", "cyclonedx_py", "environment")
    options = ("--of", "JSON", "--sv", "1.6", "--output-reproducible", "--no-validate")
    project = ("--pyproject", str(source.root / "pyproject.toml"))
    environment = {**os.environ, "SOURCE_DATE_EPOCH": str(source.time)}
    packages = runtime_environment(source.root)
    document: Json = json.loads(_run([*tool, *options, *project, str(packages)], environment))
    return document


def runtime_environment(root: Path) -> Path:
    """Return an environment with the pins of requirements/runtime.txt alone; the same pins share one.

    `make` calls for it before tests, which have no network.
    """
    pins = root / "requirements/runtime.txt"
    digest = hashlib.sha256(pins.read_bytes()).hexdigest()[:16]
    path = Path(sys.prefix).parent / ".cache/release" / f"runtime-{digest}"
    ready = path / ".ready"
    if not ready.exists():
        _run([sys.executable, "-m", "venv", "--clear", "--without-pip", str(path)])
        pip = (
            sys.executable,
            "-m",
            "pip",
            "--disable-pip-version-check",
            "--python",
            str(path / "bin/python"),
        )
        options = ("--quiet", "--no-deps", "--require-hashes", "--only-binary", ":all:")
        _run([*pip, "install", *options, "--requirement", str(pins)])
        ready.touch()
    return path


def build_provenance(
    source: Source, output: Path, parameters: Json, packages: Iterable[DebianPackage]
) -> Path:
    """Write in-toto's statement about all files, with SLSA's predicate; without times, which differ."""
    subjects = list(output.iterdir())
    page = f"{source.address}/blob/{source.commit}/docs/release.md"
    locks = [source.root / f"requirements/{name}.txt" for name in LOCKS]
    dependencies: list[Json] = [{"uri": f"git+{source.address}", "digest": {"gitCommit": source.commit}}]
    dependencies += [
        {"uri": path.relative_to(source.root).as_posix(), "digest": {"sha256": digest(path)}}
        for path in locks
    ]
    dependencies += [{"uri": package.purl} for package in packages]
    statement = {
        "_type": STATEMENT,
        "subject": [{"name": path.name, "digest": {"sha256": digest(path)}} for path in sorted(subjects)],
        "predicateType": PROVENANCE,
        "predicate": {
            "buildDefinition": {
                "buildType": f"{page}#make-a-release",
                "externalParameters": {"version": source.version, "source": source.address, **parameters},
                "resolvedDependencies": dependencies,
            },
            "runDetails": {
                "builder": {"id": os.environ.get("BUILDER") or f"{page}#on-a-machine-of-your-own"}
            },
        },
    }
    path = output / f"k8s-rdma-{source.version}.provenance.json"
    path.write_text(json.dumps(statement, indent=2) + "\n")
    return path


def write_checksums(output: Path) -> Path:
    """Write the digests of all files, as `sha256sum --check` reads them."""
    path = output / CHECKSUMS
    path.write_text("".join(f"{digest(file)}  {file.name}\n" for file in sorted(output.iterdir())))
    return path


@contextmanager
def signing_key(name: str) -> Iterator[Path | None]:
    """Provide the file of a key: the named one, or one of what the variable NAME of `env:NAME` has.

    The programs that build do not inherit that variable. None without a name; ReleaseError without the key.
    """
    if not name.startswith(VARIABLE):
        if name and not Path(name).is_file():
            msg = f"KEY={name}: there is no such file"
            raise ReleaseError(msg)
        yield Path(name) if name else None
        return
    text = os.environ.pop(name.removeprefix(VARIABLE), "").strip()
    if not text:
        msg = f"KEY={name}: the variable is empty; a workflow needs the secret, see docs/release.md"
        raise ReleaseError(msg)
    with tempfile.TemporaryDirectory(prefix="k8s-rdma-key-") as directory:
        path = Path(directory, "key")
        path.touch(mode=0o600)
        path.write_text(
            f"{text}\n"
        )  # ssh-keygen refuses a key without its last line's end, which secrets lose
        yield path


def sign(checksums: Path, key: Path) -> None:
    """Sign the checksums by a key of SSH, or one that its agent has."""
    _run(["ssh-keygen", "-q", "-Y", "sign", "-f", str(key), "-n", NAMESPACE, str(checksums)])


def check_signature(directory: Path, signers: Path, identity: str) -> None:
    """Check the signature of the checksums by ssh-keygen's file of allowed signers; ReleaseError."""
    command = ["ssh-keygen", "-Y", "verify", "-f", str(signers), "-I", identity, "-n", NAMESPACE]
    with (directory / CHECKSUMS).open("rb") as signed:
        ended = subprocess.run(
            [*command, "-s", str(directory / SIGNATURE)],
            stdin=signed,
            capture_output=True,
            text=True,
            check=False,
        )
    if ended.returncode:
        msg = f"{SIGNATURE}: {(ended.stderr or ended.stdout).strip()}"
        raise ReleaseError(msg)


def digest(path: Path) -> str:
    """Return a file's SHA-256, in hexadecimal digits."""
    with path.open("rb") as content:
        return hashlib.file_digest(content, "sha256").hexdigest()


def _run(command: list[str], environment: dict[str, str] | None = None) -> str:
    ended = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if ended.returncode:
        reason = ended.stderr.strip() or ended.stdout.strip()
        msg = f"{Path(command[0]).name} {command[2]}: {reason}"
        raise ReleaseError(msg)
    return ended.stdout
