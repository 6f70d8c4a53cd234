"""Programs of an image for another architecture, by user-mode emulation instead of a runtime."""

from __future__ import annotations

import json
import platform
import shutil
import subprocess
import time
from typing import TYPE_CHECKING

import httpx2
import pytest

import k8s_rdma
from image.oci_image import MACHINES, Image
from image.test_contents import IMPORT_ALL, PYTHON

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


PORT = 54005
IMPORT_S, START_S = 600, 120
"""Emulation is slow."""


class Emulated:
    """Runs the image's programs as its user, on a root of their own. given: what they have at `/given`."""

    def __init__(self, image: Image, emulator: str, directory: Path) -> None:
        self._image, self._root, self.given = image, directory / "root", directory / "given"
        self._emulator = emulator
        for each in (self._root, self.given):
            each.mkdir(mode=0o755)

    def start(self, *command: str) -> subprocess.Popen[str]:
        inside = ("chroot", f"--userspec={self._image.user}:{self._image.user}", str(self._root), "/emulator")
        return subprocess.Popen(
            ["unshare", "--mount", "sh", "-ec", self._prepared(), "sh", *inside, *command],
            env=dict(each.split("=", 1) for each in self._image.environment),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def run(self, *command: str) -> str:
        """What it prints; it ends with status 0."""
        with self.start(*command) as process:
            printed, _ = process.communicate(timeout=IMPORT_S)
        assert process.returncode == 0, printed
        return printed

    def _prepared(self) -> str:
        image, root = self._image.root, self._root
        shown = {f"{image}/{name}": name for name in ("etc", "opt", "usr")}
        shown |= {"/proc": "proc", str(self.given): "given"}
        return "\n".join(
            [
                f"mount -t tmpfs -o mode=0755 tmpfs {root}",
                f"cp --no-dereference {image}/bin {image}/sbin {image}/lib* {root}",
                *(f"mkdir {root}/{at} && mount --bind {of} {root}/{at}" for of, at in shown.items()),
                f"cp {self._emulator} {root}/emulator",
                f"mount -o remount,ro {root}",
                'exec "$@"',
            ]
        )


@pytest.fixture
def emulated(image: Image, tmp_path: Path) -> Emulated:
    machine = MACHINES[image.architecture]
    if machine == platform.machine():
        pytest.skip("this machine runs the image's programs itself")
    emulator = shutil.which(f"qemu-{machine}-static")
    if emulator is None:
        pytest.skip(f"needs qemu-{machine}-static (Debian's qemu-user-static)")
    return Emulated(image, emulator, tmp_path)


@pytest.mark.timeout(IMPORT_S)
def test_every_module_imports_on_the_images_architecture(emulated: Emulated) -> None:
    shutil.copy(IMPORT_ALL, emulated.given)
    assert int(emulated.run(PYTHON, "-I", f"/given/{IMPORT_ALL.name}")) > 300


@pytest.mark.timeout(IMPORT_S)
def test_command_says_its_version_on_the_images_architecture(emulated: Emulated, image: Image) -> None:
    assert emulated.run(PYTHON, *image.command, "--version") == f"k8s-rdma {k8s_rdma.__version__}\n"


@pytest.mark.timeout(IMPORT_S)
def test_server_answers_on_the_images_architecture(emulated: Emulated, image: Image) -> None:
    (emulated.given / "server.yaml").write_text(json.dumps({"node": "w1", "runDir": "/given"}))
    with emulated.start(PYTHON, *image.command, "server", "--config", "/given/server.yaml") as process:
        for status_code in asked(process):
            if status_code == 200:
                break
        process.terminate()
        printed, _ = process.communicate(timeout=START_S)
    assert process.returncode == 0, printed


def asked(process: subprocess.Popen[str]) -> Iterator[int | None]:
    """How a server answers whether it is alive, again and again; None while nobody listens."""
    end = time.monotonic() + START_S
    with httpx2.Client(base_url=f"http://127.0.0.1:{PORT}", trust_env=False) as http:
        while process.poll() is None and time.monotonic() < end:
            try:
                yield http.get("/healthz").status_code
            except httpx2.TransportError:
                yield None
            time.sleep(0.1)
    raise AssertionError(process.communicate()[0])
