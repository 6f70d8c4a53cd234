from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import PurePosixPath
from typing import TYPE_CHECKING

import pytest

from factories import PF0, PF1, interface, receipt
from k8s_rdma.agent.cdi_specs import DEVICE_INFO_DIR, AttachmentSpecs, CdiDirectory, device_info_file
from k8s_rdma.agent.claim_metadata import ClaimMetadata
from k8s_rdma.agent.host_files import HostFiles
from k8s_rdma.core.ledger import Attachment, Ledger
from k8s_rdma.core.options import InterfaceOptions
from k8s_rdma.core.types import ContainerId, VfDriver
from k8s_rdma.errors import KernelError, MalformedError, Reason
from k8s_rdma.linux.atomic_file import write_file

if TYPE_CHECKING:
    from pathlib import Path

PROGRAM = InterfaceOptions(driver=VfDriver.VFIO_PCI)
INFO = f"{DEVICE_INFO_DIR}/net-c1_net1"
CDI = "/var/run/cdi"
NONE = Ledger()
OTHER = Attachment("net", ContainerId("c2"), "eth0")
OURS = "k8s-rdma.io-vf_0000:03:00.1.json"


class Nodes:
    """The group of a function is its last figure; no VF has RDMA devices."""

    def vfio_group(self, pci: str) -> str:
        return f"/dev/vfio/{pci[-1]}"

    def of_vf(self, pci: str, rdma_device: str) -> tuple[()]:
        return ()

    of_devices = of_vf

    def rdma_cm(self) -> None:
        return None


@pytest.fixture
def host(tmp_path: Path) -> Path:
    """A node's root, in which `/var/run` is a link as it is on real ones."""
    root = tmp_path / "host"
    (root / "run").mkdir(parents=True)
    (root / "var").mkdir()
    (root / "var" / "run").symlink_to("/run")
    return root


@pytest.fixture
def files(host: Path) -> AttachmentSpecs:
    directory = CdiDirectory(HostFiles(host), PurePosixPath(CDI), Nodes())
    metadata = ClaimMetadata(directory.files, PurePosixPath("/run/k8s-rdma/claim-metadata"), lambda _: ())
    return AttachmentSpecs(directory, metadata)


def given(*interfaces, info: str = INFO):
    return replace(receipt("c1", *interfaces), device_info_file=info)


def function(pf: str = PF0, index: int = 1):
    return replace(interface(pf, index, f"net{index}"), options=PROGRAM)


def ledger(*receipts):
    return Ledger({receipt.attachment: receipt for receipt in receipts})


def everything(host: Path) -> list[str]:
    return sorted(str(path.relative_to(host)) for path in host.rglob("*") if path.is_file())


@pytest.mark.parametrize("name", ["blocks.json", "é" * 127])
def test_file_is_replaced_whole_and_no_link_leads_its_draft_elsewhere(tmp_path: Path, name: str):
    elsewhere, file = tmp_path / "elsewhere", tmp_path / "state" / name
    write_file(file, b"first")
    draft = file.with_name(f".{os.fsdecode(os.fsencode(name)[:250])}.new")
    draft.symlink_to(elsewhere)
    write_file(file, b"second")
    assert file.read_bytes() == b"second"
    assert not elsewhere.exists()
    assert [path.name for path in file.parent.iterdir()] == [name]


def test_file_that_cannot_be_replaced_stays_without_a_draft_beside_it(tmp_path: Path):
    (tmp_path / "file" / "in it").mkdir(parents=True)
    with pytest.raises(OSError, match="file"):
        write_file(tmp_path / "file", b"data")
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_device_information_is_written_to_the_path_that_the_runtime_reads(host, files):
    receipt = given(interface(PF1, 2), interface(PF0, 0, "net2"))
    files.write(receipt, NONE)
    written = host / "run/k8s.cni.cncf.io/devinfo/cni/net-c1_net1"
    assert json.loads(written.read_bytes())["pci"]["pci-address"] == "0000:03:00.2"
    assert written.stat().st_mode & 0o777 == 0o644
    files.remove(receipt, NONE)
    assert everything(host) == []
    files.remove(receipt, NONE)


def test_no_file_is_written_for_netdevs_without_a_requested_file(host, files):
    files.write(given(info=""), NONE)
    files.remove(given(info=""), NONE)
    assert everything(host) == []


def test_each_function_for_a_program_has_a_specification(host, files):
    receipt = given(function(PF0, 1), interface(PF0, 2, "net2"), function(PF0, 3), info="")
    files.write(receipt, NONE)
    assert everything(host) == ["run/cdi/" + OURS, "run/cdi/k8s-rdma.io-vf_0000:03:00.3.json"]
    document = json.loads((host / "run/cdi" / OURS).read_bytes())
    nodes = document["devices"][0]["containerEdits"]["deviceNodes"]
    assert [each["path"] for each in nodes] == ["/dev/vfio/vfio", "/dev/vfio/1"]
    files.remove(receipt, NONE)
    assert everything(host) == []


def test_writing_again_after_a_crash_is_the_same_as_once(host, files):
    (host / "run/cdi").mkdir()
    (host / "run/cdi" / f".{OURS}.new").write_text("cut short")
    (host / "run/cdi" / OURS).write_text("of the VF's last holder")
    for _ in range(2):
        files.write(given(function()), NONE)
    assert len(everything(host)) == 2
    assert json.loads((host / "run/cdi" / OURS).read_bytes())["kind"] == "k8s-rdma.io/vf"


def test_information_that_another_one_wrote_stays_as_it_is(host, files):
    path = host / "run/k8s.cni.cncf.io/devinfo/cni/net-c1_net1"
    path.parent.mkdir(parents=True)
    path.write_text("a device plugin's")
    files.write(given(), NONE)
    files.remove(given(), NONE)
    assert path.read_text() == "a device plugin's"


def test_specifications_of_no_receipt_are_removed_and_those_of_others_are_not(host, files):
    directory = host / "run/cdi"
    files.write(given(function(), info=""), NONE)
    files.write(given(function(PF0, 2), info=""), NONE)
    (directory / "vendor.com-gpu.json").write_text("{}")
    (directory / "k8s-rdma.io-vf.json").write_text("{}")
    files.restore(ledger(given(function()), replace(given(interface(PF0, 2)), attachment=OTHER)))
    assert sorted(path.name for path in directory.iterdir()) == [
        "k8s-rdma.io-vf.json",
        OURS,
        "vendor.com-gpu.json",
    ]


def test_specifications_of_no_receipt_are_removed_when_their_directory_is_a_link_of_the_node(host, files):
    (host / "run/cdi").symlink_to("/etc/cdi")
    (host / "etc/cdi").mkdir(parents=True)
    files.write(given(function(), info=""), NONE)
    assert [path.name for path in (host / "etc/cdi").iterdir()] == [OURS]
    files.restore(ledger())
    assert list((host / "etc/cdi").iterdir()) == []


def test_node_without_such_a_directory_has_no_file_to_remove(host, files):
    files.restore(NONE)
    files.remove(given(function()), NONE)
    assert everything(host) == []


@pytest.mark.parametrize("there", ["link", "dangling link", "directory"])
def test_no_link_leads_the_agent_to_another_file(host, files, there, tmp_path):
    outside = tmp_path / "precious"
    outside.write_text("precious")
    path = host / "run/cdi" / OURS
    path.parent.mkdir()
    if there == "directory":
        (path / "x").mkdir(parents=True)
        with pytest.raises(KernelError, match="cannot be written"):
            files.write(given(function(), info=""), NONE)
        with pytest.raises(KernelError, match="cannot be removed"):
            files.remove(given(function(), info=""), NONE)
        return
    path.symlink_to(outside if there == "link" else tmp_path / "absent")
    files.write(given(function(), info=""), NONE)
    assert not path.is_symlink()
    assert outside.read_text() == "precious"
    assert not (tmp_path / "absent").exists()


def test_draft_that_is_a_link_is_not_followed(host, files, tmp_path):
    outside = tmp_path / "precious"
    outside.write_text("precious")
    (host / "run/cdi").mkdir()
    (host / "run/cdi" / f".{OURS}.new").symlink_to(outside)
    files.write(given(function(), info=""), NONE)
    assert outside.read_text() == "precious"


def test_failure_names_the_file_as_the_node_knows_it(host, files):
    (host / "run/cdi").write_text("a file where the directory should be")
    with pytest.raises(KernelError, match=f"device file {CDI}/{OURS}: cannot be written: "):
        files.write(given(function(), info=""), NONE)
    files.remove(given(function(), info=""), NONE)  # it is not there, in any case


@pytest.mark.parametrize(
    "path",
    [
        "relative",
        "/etc/passwd",
        DEVICE_INFO_DIR,
        f"{DEVICE_INFO_DIR}/",
        f"{DEVICE_INFO_DIR}/.",
        f"{DEVICE_INFO_DIR}/..",
        f"{DEVICE_INFO_DIR}/../dp/x",
        f"{DEVICE_INFO_DIR}/a/b",
        f"{DEVICE_INFO_DIR}//a",
        f"/{DEVICE_INFO_DIR}/a",
        f"{DEVICE_INFO_DIR}x/a",
        "/var/run/k8s.cni.cncf.io/devinfo/dp/a",
        f"{DEVICE_INFO_DIR}/a\nb",
        f"{DEVICE_INFO_DIR}/a\0b",
        f"{DEVICE_INFO_DIR}/{'ä' * 128}",
    ],
)
def test_path_that_is_not_right_in_the_directory_is_refused(path):
    with pytest.raises(MalformedError, match=r"runtimeConfig\.CNIDeviceInfoFile") as refused:
        device_info_file(path)
    assert refused.value.reason is Reason.INVALID_NETCONF


def test_path_that_multus_gives_is_taken():
    assert device_info_file(INFO) == INFO
    assert device_info_file("") == ""
