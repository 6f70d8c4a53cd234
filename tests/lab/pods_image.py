"""An image of one program, and pods of it that see the guest's own programs."""

from __future__ import annotations

import hashlib
import io
import json
import tarfile
from typing import Any

from tests.lab.site import IMAGE, MOUNT

FOLDERS = {
    "bin": "/bin",
    "lib": "/lib",
    "lib64": "/lib64",
    "sbin": "/sbin",
    "usr": "/usr",
    "verbs": "/etc/libibverbs.d",
}
"""Of the guest, mounted into containers by these names: what they run is Debian's."""
FOR_EVER = ["/busybox", "sleep", "1000000"]


def archive(busybox: bytes) -> bytes:
    """As `docker save` writes it: one layer with busybox alone."""
    layer = _tar({"busybox": busybox}, mode=0o755)
    rootfs = {"type": "layers", "diff_ids": [f"sha256:{hashlib.sha256(layer).hexdigest()}"]}
    config = {"architecture": "amd64", "os": "linux", "config": {"Entrypoint": FOR_EVER}, "rootfs": rootfs}
    manifest = [{"Config": "config.json", "RepoTags": [IMAGE], "Layers": ["layer.tar"]}]
    files = {"config.json": json.dumps(config).encode(), "layer.tar": layer}
    return _tar(files | {"manifest.json": json.dumps(manifest).encode()}, mode=0o644)


def pod(name: str, *interfaces: dict[str, Any], node: str | None = None) -> dict[str, Any]:
    """A pod that asks for these interfaces and for /dev/infiniband. node: the only one that it may go to."""
    container = {
        "name": "main",
        "image": IMAGE,
        "command": FOR_EVER,
        "securityContext": {"capabilities": {"add": ["IPC_LOCK", "NET_RAW"]}},
        "volumeMounts": [
            {"name": name, "mountPath": path, "readOnly": True} for name, path in FOLDERS.items()
        ],
        "resources": {"limits": {MOUNT: "1"}, "requests": {MOUNT: "1"}},
    }
    annotations = {"rdma_interfaces_required": json.dumps(interfaces)} if interfaces else {}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "namespace": "default", "annotations": annotations},
        "spec": {
            "containers": [container],
            "volumes": [{"name": name, "hostPath": {"path": path}} for name, path in FOLDERS.items()],
            **({"nodeSelector": {"kubernetes.io/hostname": node}} if node else {}),
        },
    }


def _tar(files: dict[str, bytes], *, mode: int) -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as archive:
        for name, data in files.items():
            entry = tarfile.TarInfo(name)
            entry.size, entry.mode = len(data), mode
            archive.addfile(entry, io.BytesIO(data))
    return out.getvalue()
