"""The image of all architectures in one OCI archive, by one digest.

Source: OCI image specification 1.1, "image-layout", "image-index".
"""

from __future__ import annotations

import hashlib
import io
import json
import tarfile
from dataclasses import dataclass
from email.parser import Parser
from pathlib import PurePosixPath
from typing import IO, TYPE_CHECKING, Any

from deploy.release.source import ReleaseError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

Json = dict[str, Any]

INDEX = "application/vnd.oci.image.index.v1+json"
LAYOUT = b'{"imageLayoutVersion":"1.0.0"}'
PACKAGES = PurePosixPath("var/lib/dpkg/status.d")
"""Records of Debian's packages in the image."""

CHUNK = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class DebianPackage:
    """A package of Debian in the image."""

    name: str
    version: str
    architecture: str

    @property
    def purl(self) -> str:
        """The package's URL, as SBOMs and provenance name it."""
        return f"pkg:deb/debian/{self.name}@{self.version.replace('+', '%2B')}?arch={self.architecture}"


class OciArchive:
    """An image in an OCI archive, read without unpacking it."""

    def __init__(self, path: Path) -> None:
        """Open it; use it as a context."""
        self._path = path

    def __enter__(self) -> OciArchive:
        """Open the archive."""
        self._archive = tarfile.open(self._path)
        return self

    def __exit__(self, *_: object) -> None:
        """Close it."""
        self._archive.close()

    @property
    def descriptor(self) -> Json:
        """The only image that the archive has, or the index of its images."""
        (found,) = json.load(self._member("index.json"))["manifests"]
        return dict(found)

    def images(self) -> list[Json]:
        """Return the descriptors of images, one an architecture."""
        top = self.descriptor
        return list(self.document(top)["manifests"]) if top["mediaType"] == INDEX else [top]

    def document(self, descriptor: Json) -> Json:
        """Return a blob that is JSON."""
        return dict(json.load(self.blob(descriptor)))

    def blob(self, descriptor: Json) -> IO[bytes]:
        """Open a blob."""
        return self._member(f"blobs/{descriptor['digest'].replace(':', '/')}")

    def blobs(self, image: Json) -> list[Json]:
        """Return the descriptors of all blobs of an image: manifest, configuration, layers."""
        manifest = self.document(image)
        return [image, manifest["config"], *manifest["layers"]]

    def config(self, image: Json) -> Json:
        """Return an image's configuration."""
        return self.document(self.document(image)["config"])

    def packages(self, image: Json) -> list[DebianPackage]:
        """Return Debian's packages in an image, in order of their names."""
        found = []
        for layer in self.document(image)["layers"]:
            with tarfile.open(fileobj=self.blob(layer)) as files:
                found += [_package(files.extractfile(entry)) for entry in files if _is_record(entry)]
        return sorted(found, key=lambda package: package.name)

    def read(self, image: Json, name: str) -> bytes | None:
        """Return a file of an image; None where no layer has it."""
        for layer in self.document(image)["layers"]:
            with tarfile.open(fileobj=self.blob(layer)) as files:
                for entry in files:
                    if entry.isfile() and entry.name.removeprefix("./") == name:
                        content = files.extractfile(entry)
                        return content.read() if content else None
        return None

    def check_blobs(self) -> Iterator[str]:
        """Yield blobs whose content is not what their name says."""
        images = self.images()
        top = [] if images == [self.descriptor] else [self.descriptor]
        for descriptor in (*top, *(blob for image in images for blob in self.blobs(image))):
            digest = hashlib.sha256()
            with self.blob(descriptor) as content:
                while chunk := content.read(CHUNK):
                    digest.update(chunk)
            if descriptor["digest"] != f"sha256:{digest.hexdigest()}":
                yield f"{descriptor['digest']} has sha256:{digest.hexdigest()}"

    def _member(self, name: str) -> IO[bytes]:
        try:
            found = self._archive.extractfile(name)
        except KeyError:
            found = None
        if found is None:
            msg = f"{self._path.name}: no file {name}"
            raise ReleaseError(msg)
        return found


def _is_record(entry: tarfile.TarInfo) -> bool:
    return entry.isfile() and PurePosixPath(entry.name.removeprefix("./")).parent == PACKAGES


def _package(record: IO[bytes] | None) -> DebianPackage:
    fields = Parser().parsestr(record.read().decode() if record else "", headersonly=True)
    return DebianPackage(
        name=fields["Package"], version=fields["Version"], architecture=fields["Architecture"]
    )


def combine(archives: Sequence[Path], output: Path, tag: str) -> str:
    """Write the images of archives into one with an index; the index's digest, by which all are pulled."""
    blobs: dict[str, tuple[Path, Json]] = {}
    entries = []
    for path in archives:
        with OciArchive(path) as archive:
            (image,) = archive.images()
            config = archive.config(image)
            keys = ("mediaType", "digest", "size")
            platform = {"architecture": config["architecture"], "os": config["os"]}
            entries.append({**{key: image[key] for key in keys}, "platform": platform})
            blobs |= {blob["digest"]: (path, blob) for blob in archive.blobs(image)}
    index = _json({"schemaVersion": 2, "mediaType": INDEX, "manifests": entries})
    digest = f"sha256:{hashlib.sha256(index).hexdigest()}"
    top = {"mediaType": INDEX, "digest": digest, "size": len(index)}
    top["annotations"] = {"org.opencontainers.image.ref.name": tag}
    documents = {
        "oci-layout": LAYOUT,
        "index.json": _json({"schemaVersion": 2, "mediaType": INDEX, "manifests": [top]}),
        f"blobs/{digest.replace(':', '/')}": index,
    }
    with tarfile.open(output, "w", format=tarfile.PAX_FORMAT) as written:
        for name, data in documents.items():
            _add(written, name, len(data), io.BytesIO(data))
        for path, blob in (blobs[name] for name in sorted(blobs)):
            with OciArchive(path) as archive, archive.blob(blob) as content:
                _add(written, f"blobs/{blob['digest'].replace(':', '/')}", blob["size"], content)
    return digest


def _add(archive: tarfile.TarFile, name: str, size: int, content: IO[bytes]) -> None:
    entry = tarfile.TarInfo(name)
    entry.size, entry.mode = size, 0o644
    archive.addfile(entry, content)


def _json(document: Mapping[str, Any]) -> bytes:
    return json.dumps(document, separators=(",", ":"), sort_keys=True).encode()
