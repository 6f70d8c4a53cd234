"""What agent and device plugin leave on a node, and what of the hardware is still as `init` made it."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING

from k8s_rdma.errors import K8sRdmaError
from k8s_rdma.wire.cdi import SHARED_CLASS, SLOT_CLASS, VF_CLASS, device_of_file_name

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

OF_RUN_DIR = (
    "exclusive-devices",
    "deletions",
    "deletions.withheld",
    "cni.sock",
    "cdi.sock",
    "state.sock",
    "attachments",
    "attachments.new",
)
"""The first one first: while it is there and no agent runs, no pod of the node starts."""


def remove_run_dir(run_dir: Path) -> bool:
    """Remove what the agent made in its runDir, and that if nothing else is in it; whether it was there.

    K8sRdmaError names what cannot be removed.
    """
    if not run_dir.is_dir():
        return False
    try:
        for path in (run_dir / name for name in OF_RUN_DIR):
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path)
            else:
                path.unlink(missing_ok=True)
        run_dir.rmdir()
    except OSError as error:
        msg = f"{error.filename or run_dir}: cannot be removed: {error.strerror}"
        raise K8sRdmaError(msg) from error
    return True


def remove_specifications(cdi_dir: Path) -> tuple[Path, ...]:
    """Remove our CDI specifications; K8sRdmaError names what cannot be removed."""
    if not cdi_dir.is_dir():
        return ()
    ours = tuple(path for path in sorted(cdi_dir.iterdir()) if _is_specification(path.name))
    try:
        for path in ours:
            path.unlink()
    except OSError as error:
        msg = f"{error.filename}: cannot be removed: {error.strerror}"
        raise K8sRdmaError(msg) from error
    return ours


def _is_specification(name: str) -> bool:
    classes = (VF_CLASS, SLOT_CLASS, SHARED_CLASS)
    return any(device_of_file_name(each, name) is not None for each in classes)


def functions_with_vfs(devices: Path) -> Iterator[str]:
    """PCI addresses and numbers of VFs, `0000:01:00.0 (8)`. devices: `/sys/bus/pci/devices`."""
    for path in sorted(devices.glob("*/sriov_numvfs")):
        if number := int(path.read_text()):
            yield f"{path.parent.name} ({number})"
