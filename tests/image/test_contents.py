"""The contents of the image, and files that it does not have."""

from __future__ import annotations

import json
import os
import stat
import struct
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import k8s_rdma
from image.containers import Containers, Mount, Rights
from image.seccomp import PROFILE
from k8s_rdma.wire.cni_result import SUPPORTED_VERSIONS

if TYPE_CHECKING:
    from image.oci_image import Image

PYTHON = "/opt/k8s-rdma/bin/python"
PROGRAMS = {
    "/usr/bin": {"python3", "python3.11", "setpriv", "unshare"},
    "/usr/sbin": {"chroot"},
    "/opt/k8s-rdma/bin": {"k8s-rdma", "k8s-rdma-cni", "python", "python3", "python3.11"},
}
ELF_MACHINES = {"amd64": 62, "arm64": 183}
INTERPRETER, SHARED_OBJECT = 3, 3
IMPORT_ALL = Path(__file__).parents[2] / "scripts" / "import_all.py"
MOST_BYTES = 150 << 20


def files(image: Image) -> list[Path]:
    return [Path(where, name) for where, _, names in os.walk(image.root) for name in names]


def test_image_holds_no_programs_but_those_that_processes_execute(image: Image) -> None:
    for directory, programs in PROGRAMS.items():
        assert {path.name for path in (image.root / directory[1:]).iterdir()} == programs


def test_image_has_no_setuid_files_and_no_writable_ones(image: Image) -> None:
    modes = {path: path.lstat() for path in files(image) if not path.is_symlink()}
    assert not [path for path, status in modes.items() if status.st_mode & (stat.S_ISUID | stat.S_ISGID)]
    assert not [path for path, status in modes.items() if status.st_mode & stat.S_IWOTH]
    assert {(status.st_uid, status.st_gid) for status in modes.values()} == {(0, 0)}


def test_image_has_its_labels(image: Image) -> None:
    assert image.user == 65532
    assert image.labels["version"] == k8s_rdma.__version__
    assert image.labels["licenses"] == "Apache-2.0"
    assert set(image.labels) >= {"title", "description", "revision", "source"}


def test_image_brings_licence_and_record_of_every_debian_package(image: Image) -> None:
    records = {path.name for path in (image.root / "var/lib/dpkg/status.d").iterdir()}
    assert len(records) > 15
    for package in records:
        assert (image.root / "usr/share/doc" / package / "copyright").resolve().name == "copyright"
        assert f"Package: {package}\n" in (image.root / "var/lib/dpkg/status.d" / package).read_text()


def test_image_stays_small(image: Image) -> None:
    assert sum(path.lstat().st_size for path in files(image)) < MOST_BYTES


def test_cni_executable_is_static_and_for_the_images_architecture(image: Image) -> None:
    data = (image.root / "opt/k8s-rdma/bin/k8s-rdma-cni").read_bytes()
    kind, machine = struct.unpack_from("<HH", data, 16)
    (offset,) = struct.unpack_from("<Q", data, 32)
    size, count = struct.unpack_from("<HH", data, 54)
    segments = {struct.unpack_from("<I", data, offset + index * size)[0] for index in range(count)}
    assert data[:6] == b"\x7fELF\x02\x01"
    assert (kind, machine) == (SHARED_OBJECT, ELF_MACHINES[image.architecture])
    assert INTERPRETER not in segments


def test_cni_executable_runs(image: Image, emulator: tuple[str, ...]) -> None:
    asked = subprocess.run(
        [*emulator, image.root / "opt/k8s-rdma/bin/k8s-rdma-cni"],
        env={"CNI_COMMAND": "VERSION"},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        check=True,
    )
    assert json.loads(asked.stdout)["supportedVersions"] == list(SUPPORTED_VERSIONS)


def test_image_leaves_demo_stand_ins_and_simulations_out(image: Image) -> None:
    (packages,) = (image.root / "opt/k8s-rdma/lib").glob("python3*/site-packages")
    (record,) = packages.glob("k8s_rdma-*.dist-info/RECORD")
    for package in ("k8s_rdma_demo", "k8s_rdma_simulation"):
        assert not (packages / package).exists()
        assert f"{package}/" not in record.read_text()
    stand_ins = {"api_server", "cri", "cri_pb2", "fakes"}
    assert not [
        path for path in (packages / "k8s_rdma").rglob("*.py") if {path.stem, path.parent.name} & stand_ins
    ]


def test_every_library_is_for_the_images_architecture(image: Image) -> None:
    elf = [path for path in files(image) if not path.is_symlink() and path.read_bytes()[:4] == b"\x7fELF"]
    machines = {struct.unpack_from("<H", path.read_bytes(), 18)[0] for path in elf}
    assert machines == {ELF_MACHINES[image.architecture]}
    assert len(elf) > 30


def test_every_module_imports_for_user_nobody_on_a_read_only_root(containers: Containers) -> None:
    printed = containers.run(
        ["-I", "/import_all.py"],
        Rights(),
        mounts=[Mount(source=IMPORT_ALL, at="/import_all.py")],
        program=[PYTHON],
    )
    assert int(printed) > 250


SHOW_RIGHTS = """
import pathlib, errno
print(pathlib.Path("/proc/self/status").read_text())
for place in ("/", "/tmp", "/opt/k8s-rdma", "/sys", "/proc/sys"):
    try:
        pathlib.Path(place, "made").touch()
        print("Written:", place)
    except OSError as error:
        assert error.errno in (errno.EROFS, errno.EACCES, errno.ENOENT), error
"""


@pytest.mark.parametrize("user", [None, 0], ids=["the image's user", "root"])
def test_containers_of_these_tests_have_only_named_capabilities(
    containers: Containers, user: int | None
) -> None:
    printed = containers.run(["-c", SHOW_RIGHTS], Rights(user=user), program=[PYTHON])
    status = dict(line.split(":", 1) for line in printed.splitlines() if ":" in line)
    assert {int(status[kind], 16) for kind in ("CapEff", "CapPrm", "CapBnd", "CapInh", "CapAmb")} == {0}
    assert int(status["NoNewPrivs"]) == 1
    assert int(status["Uid"].split()[0]) == (65532 if user is None else user)
    assert int(status["Seccomp"]) == (2 if PROFILE.exists() else 0)
    assert "Written" not in status


def test_command_is_the_entry_point(containers: Containers) -> None:
    assert containers.run(["--version"], Rights()) == f"k8s-rdma {k8s_rdma.__version__}\n"
