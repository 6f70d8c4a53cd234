"""Images of containers made without a builder: programs, and which of them runs."""

from __future__ import annotations

import hashlib
import io
import json
import tarfile
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


def image_archive(image: str, programs: Mapping[str, bytes], *, entrypoint: Sequence[str]) -> bytes:
    """As `docker save` writes it: one layer that holds the programs."""
    layer = _tar(programs, mode=0o755)
    config = {
        "architecture": "amd64",
        "os": "linux",
        "config": {"Entrypoint": entrypoint},
        "rootfs": {"type": "layers", "diff_ids": [f"sha256:{hashlib.sha256(layer).hexdigest()}"]},
    }
    manifest = [{"Config": "config.json", "RepoTags": [image], "Layers": ["layer.tar"]}]
    files = {"config.json": json.dumps(config).encode(), "layer.tar": layer}
    return _tar(files | {"manifest.json": json.dumps(manifest).encode()}, mode=0o644)


def _tar(files: Mapping[str, bytes], *, mode: int) -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as archive:
        for name, data in files.items():
            entry = tarfile.TarInfo(name)
            entry.size, entry.mode = len(data), mode
            archive.addfile(entry, io.BytesIO(data))
    return out.getvalue()
