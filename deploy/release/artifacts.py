"""The files of a release but for the image: packages of Python, the chart, manifests, the plugin of kubectl.

Each is the same bytes for the same commit and tools: names in order, one owner, one time.
"""

from __future__ import annotations

import gzip
import hashlib
import io
import os
import re
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from deploy.release.source import ReleaseError
from deploy.rendering.manifests import manifests

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from deploy.release.source import Source

MACHINES = {"amd64": "x86_64", "arm64": "aarch64"}
"""Architectures by the name that images have, with the kernel's."""

PROGRAM, FILE = 0o755, 0o644


def build_sdist(source: Source, output: Path) -> Path:
    """Make the source distribution."""
    return _hatchling(source.root, "sdist", output, _environment(source))


def build_wheel(source: Source, sdist: Path, output: Path, architecture: str, compiler: str) -> Path:
    """Make a wheel of the source distribution alone, as users do. compiler: CC of hatch_build.py."""
    with tempfile.TemporaryDirectory(prefix="k8s-rdma-release-") as directory:
        with tarfile.open(sdist) as archive:
            archive.extractall(directory, filter="data")
        (root,) = Path(directory).iterdir()
        target = {"CC": compiler, "_PYTHON_HOST_PLATFORM": f"linux-{MACHINES[architecture]}"}
        return _hatchling(root, "wheel", output, {**_environment(source), **target})


def _environment(source: Source) -> dict[str, str]:
    return {**os.environ, "SOURCE_DATE_EPOCH": str(source.time)}


def _hatchling(root: Path, target: str, output: Path, environment: Mapping[str, str]) -> Path:
    """Run the build backend; the file that it makes."""
    command = [sys.executable, "-m", "hatchling", "build", "--target", target, "--directory", str(output)]
    before = set(output.iterdir())
    ended = subprocess.run(
        command, cwd=root, env=environment, capture_output=True, text=True, check=False, umask=0o022
    )
    if ended.returncode:
        msg = f"the {target} could not be built:\n{ended.stdout}{ended.stderr}"
        raise ReleaseError(msg)
    (built,) = set(output.iterdir()) - before
    return built


def build_chart(source: Source, output: Path, image: Mapping[str, str]) -> Path:
    """Package the chart as `helm package` does, its links resolved. image: values other than default."""
    root = source.root / "deploy/chart"
    files = {
        path.relative_to(root).as_posix(): path.read_bytes()
        for path in (
            Path(found) / name for found, _, names in os.walk(root, followlinks=True) for name in names
        )
    }
    files["values.yaml"] = _with_image(files["values.yaml"].decode(), image).encode()
    first = {"Chart.yaml": files.pop("Chart.yaml")}
    path = output / f"k8s-rdma-{source.version}.tgz"
    path.write_bytes(
        tar_gz({f"k8s-rdma/{name}": data for name, data in [*first.items(), *sorted(files.items())]})
    )
    return path


def _with_image(values: str, image: Mapping[str, str]) -> str:
    """Replace defaults of the section `image`; the comments stay."""
    begin, section, rest = re.split(r"(?m)^(image:\n(?:  .*\n)+)", values, maxsplit=1)
    for key, value in image.items():
        section, found = re.subn(rf"(?m)^  {key}: \S+", lambda _, line=f"  {key}: {value}": line, section)
        if found != 1:
            msg = f"deploy/chart/values.yaml: image.{key} is not there once"
            raise ReleaseError(msg)
    return begin + section + rest


def build_manifests(source: Source, output: Path, image: Mapping[str, str]) -> Path:
    """Package `deploy/manifests`, rendered with the image's values."""
    values: dict[str, Any] = {"image": dict(image)}
    files = manifests(values, chart=source.root / "deploy/chart")
    name = f"k8s-rdma-manifests-{source.version}"
    path = output / f"{name}.tar.gz"
    path.write_bytes(tar_gz({f"{name}/{file}": text.encode() for file, text in sorted(files.items())}))
    return path


def build_kubectl_plugin(source: Source, output: Path) -> tuple[Path, Path]:
    """Make the archive of the plugin `rdma`, and the manifest with its digest by which krew installs it."""
    folder = source.root / "deploy/krew"
    path = output / f"kubectl-rdma-{source.version}.tar.gz"
    files = {"LICENSE": source.root / "LICENSE", "kubectl-rdma": folder / "kubectl-rdma"}
    path.write_bytes(
        tar_gz({name: file.read_bytes() for name, file in files.items()}, programs={"kubectl-rdma"})
    )
    manifest = (folder / "rdma.yaml").read_text()
    for mark, value in {
        "@VERSION@": source.version,
        "@SOURCE@": source.address,
        "@URL@": f"{source.address}/releases/download/v{source.version}/{path.name}",
        "@SHA256@": hashlib.sha256(path.read_bytes()).hexdigest(),
    }.items():
        manifest = manifest.replace(mark, value)
    krew = output / "rdma.yaml"
    krew.write_text(manifest)
    return path, krew


def tar_gz(files: Mapping[str, bytes], *, programs: Collection[str] = ()) -> bytes:
    """Archive files in this order, of user 0 and time 0. programs: those that are executable."""
    packed = io.BytesIO()
    with (
        gzip.GzipFile(fileobj=packed, mode="wb", filename="", mtime=0) as compressed,
        tarfile.open(fileobj=compressed, mode="w", format=tarfile.PAX_FORMAT) as archive,
    ):
        for name, data in files.items():
            entry = tarfile.TarInfo(name)
            entry.size, entry.mode = len(data), PROGRAM if name in programs else FILE
            archive.addfile(entry, io.BytesIO(data))
    return packed.getvalue()
