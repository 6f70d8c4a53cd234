"""An image of one program, and pods of it that see the guest's own programs."""

from __future__ import annotations

import json
from typing import Any

from image_archive import image_archive
from lab.places import ANNOTATION
from tests.lab.site import IMAGE, MOUNT

FOLDERS = {
    "bin": "/bin",
    "lib": "/lib",
    "lib64": "/lib64",
    "sbin": "/sbin",
    "usr": "/usr",
    "verbs": "/etc/libibverbs.d",
}
"""Of the guest, mounted into containers by these names: they run Debian's programs."""
FOR_EVER = ["/busybox", "sleep", "1000000"]


def archive(busybox: bytes) -> bytes:
    """The image as `docker save` writes it: busybox alone."""
    return image_archive(IMAGE, {"busybox": busybox}, entrypoint=FOR_EVER)


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
    annotations = {ANNOTATION: json.dumps(interfaces)} if interfaces else {}
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
