"""An image in an OCI archive, unpacked as a container runtime does it.

Source: OCI image specification 1.1, "image-layout", "manifest", "config".
"""

from __future__ import annotations

import json
import tarfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

WHITEOUT = ".wh."
MACHINES = {"amd64": "x86_64", "arm64": "aarch64"}
"""The kernel's name of an image's architecture."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Image:
    """root: its files. config: its record of itself and its process. compressed: bytes of its layers."""

    root: Path
    architecture: str
    config: dict[str, Any]
    compressed: int

    @property
    def command(self) -> list[str]:
        return list(self.config["Entrypoint"])

    @property
    def environment(self) -> list[str]:
        return list(self.config["Env"])

    @property
    def labels(self) -> dict[str, str]:
        """Without `org.opencontainers.image.`."""
        return {key.rpartition(".")[2]: value for key, value in self.config["Labels"].items()}

    @property
    def user(self) -> int:
        return int(self.config["User"].partition(":")[0])


def revision(archive: Path) -> str:
    """The commit that the image of an archive is of, by its label."""
    with tarfile.open(archive) as whole:

        def document(path: str) -> Any:
            return json.load(whole.extractfile(path))

        manifest = document(_path(document("index.json")["manifests"][0]))
        labels = document(_path(manifest["config"]))["config"]["Labels"]
    return labels["org.opencontainers.image.revision"].removesuffix("-dirty")


def unpack(archive: Path, directory: Path) -> Image:
    """Unpack it below a directory; AssertionError if a layer takes away files that one before it brought."""
    layout, root = directory / "layout", directory / "root"
    with tarfile.open(archive) as whole:
        whole.extractall(layout, filter="data")
    manifest = _document(layout, json.loads((layout / "index.json").read_text())["manifests"][0])
    root.mkdir()
    for layer in manifest["layers"]:
        with tarfile.open(_blob(layout, layer)) as files:
            assert not [name for name in files.getnames() if name.rpartition("/")[2].startswith(WHITEOUT)]
            files.extractall(root, filter="fully_trusted")  # noqa: S202  made here
    config = _document(layout, manifest["config"])
    return Image(
        root=root,
        architecture=config["architecture"],
        config=config["config"],
        compressed=sum(layer["size"] for layer in manifest["layers"]),
    )


def _blob(layout: Path, descriptor: dict[str, Any]) -> Path:
    return layout / _path(descriptor)


def _path(descriptor: dict[str, Any]) -> str:
    return f"blobs/{descriptor['digest'].replace(':', '/')}"


def _document(layout: Path, descriptor: dict[str, Any]) -> dict[str, Any]:
    return json.loads(_blob(layout, descriptor).read_text())
