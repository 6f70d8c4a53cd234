from __future__ import annotations

import json

import pytest

from cdi_documents import decode_specification
from k8s_rdma.errors import MalformedError
from k8s_rdma.wire.cdi import (
    SLOT_CLASS,
    VF_CLASS,
    CdiDevice,
    ContainerEdits,
    DeviceNode,
    character_node,
    device_of_file_name,
    encode_own,
    encode_specification,
    file_name,
    qualified_name,
    vfio_nodes,
)

NODE = ContainerEdits(device_nodes=(DeviceNode(path="/dev/x"),))


def encode(*devices: CdiDevice, vendor: str = "k8s-rdma.io", device_class: str = "vf") -> dict[str, object]:
    data = encode_specification(devices, vendor=vendor, device_class=device_class)
    assert decode_specification(data) == (f"{vendor}/{device_class}", devices)
    return json.loads(data)


def test_specification_of_a_vf_gives_its_group_and_the_container_of_groups():
    edits = ContainerEdits(device_nodes=vfio_nodes("/dev/vfio/42"))
    assert encode(CdiDevice(name="0000:03:00.2", container_edits=edits)) == {
        "cdiVersion": "0.5.0",
        "kind": "k8s-rdma.io/vf",
        "devices": [
            {
                "name": "0000:03:00.2",
                "containerEdits": {
                    "deviceNodes": [
                        {"path": "/dev/vfio/vfio", "permissions": "rw"},
                        {"path": "/dev/vfio/42", "permissions": "rw"},
                    ]
                },
            }
        ],
    }


def test_specification_leaves_out_default_values():
    edits = ContainerEdits(env=("A=b=c",), device_nodes=(DeviceNode(path="/dev/x", host_path="/dev/y"),))
    document = encode(CdiDevice(name="a", container_edits=edits))
    assert document["devices"] == [
        {
            "name": "a",
            "containerEdits": {
                "env": ["A=b=c"],
                "deviceNodes": [{"path": "/dev/x", "hostPath": "/dev/y"}],
            },
        }
    ]


@pytest.mark.parametrize(
    ("vendor", "device_class", "field"),
    [
        ("", "vf", "vendor"),
        ("Upper.io", "vf", "vendor"),
        ("a..b", "vf", "vendor"),
        ("a/b", "vf", "vendor"),
        ("a" * 64 + ".io", "vf", "vendor"),
        (".".join(["a" * 60] * 5), "vf", "vendor"),
        ("k8s-rdma.io", "", "class"),
        ("k8s-rdma.io", "1vf", "class"),
        ("k8s-rdma.io", "vf-", "class"),
        ("k8s-rdma.io", "v/f", "class"),
        ("k8s-rdma.io", "v" * 65, "class"),
    ],
)
def test_text_that_is_no_kind_is_refused(vendor, device_class, field):
    with pytest.raises(MalformedError, match=f"kind: its {field}"):
        encode(CdiDevice(name="a", container_edits=NODE), vendor=vendor, device_class=device_class)
    with pytest.raises(MalformedError, match=f"kind: its {field}"):
        qualified_name("a", vendor=vendor, device_class=device_class)


@pytest.mark.parametrize("name", ["", "-a", "a-", "a b", "a/b", "ä", "a=b", "a\n"])
def test_device_of_no_name_is_refused(name):
    with pytest.raises(MalformedError, match=r"devices\[0\].name"):
        encode(CdiDevice(name=name, container_edits=NODE))
    with pytest.raises(MalformedError, match=r"devices\[0\].name"):
        qualified_name(name)


@pytest.mark.parametrize(
    ("edits", "field"),
    [
        (ContainerEdits(), "containerEdits: edits nothing"),
        (ContainerEdits(device_nodes=(DeviceNode(path="dev/x"),)), r"deviceNodes\[0\].path"),
        (ContainerEdits(device_nodes=(DeviceNode(path="/dev/../x"),)), r"deviceNodes\[0\].path"),
        (ContainerEdits(device_nodes=(DeviceNode(path="/x", host_path="y"),)), r"deviceNodes\[0\].hostPath"),
        (ContainerEdits(device_nodes=(DeviceNode(path="/x", permissions="rx"),)), "permissions"),
        (ContainerEdits(env=("A",)), r"env\[0\]"),
        (ContainerEdits(env=("=b",)), r"env\[0\]"),
    ],
)
def test_edit_that_no_runtime_takes_is_refused(edits, field):
    with pytest.raises(MalformedError, match=field):
        encode(CdiDevice(name="a", container_edits=edits))


def test_specification_without_devices_or_with_one_twice_is_refused():
    with pytest.raises(MalformedError, match="wanted at least one"):
        encode()
    with pytest.raises(MalformedError, match="none twice"):
        encode(*[CdiDevice(name="a", container_edits=NODE)] * 2)


def test_file_name_has_the_device_and_no_other_class():
    pci = "0000:03:00.2"
    assert file_name(VF_CLASS, pci) == "k8s-rdma.io-vf_0000:03:00.2.json"
    assert device_of_file_name(VF_CLASS, file_name(VF_CLASS, pci)) == pci
    assert device_of_file_name(SLOT_CLASS, file_name(VF_CLASS, pci)) is None
    for other in (
        "vendor.com-gpu.json",
        "k8s-rdma.io-vf.json",
        "k8s-rdma.io-vf_.json",
        "xk8s-rdma.io-vf_a.json",
        ".k8s-rdma.io-vf_a.json.new",
    ):
        assert device_of_file_name(VF_CLASS, other) is None


def test_character_device_is_specified_with_its_numbers():
    node = character_node("/dev/infiniband/uverbs3", 231, 195)
    edits = ContainerEdits(env=("A=b",), device_nodes=(node,))
    document = json.loads(encode_own(SLOT_CLASS, "k8s-rdma.io_slot.slot-3", edits))
    assert document["kind"] == "k8s-rdma.io/slot"
    assert document["devices"] == [
        {
            "name": "k8s-rdma.io_slot.slot-3",
            "containerEdits": {
                "env": ["A=b"],
                "deviceNodes": [
                    {
                        "path": "/dev/infiniband/uverbs3",
                        "type": "c",
                        "major": 231,
                        "minor": 195,
                        "permissions": "rw",
                    }
                ],
            },
        }
    ]


def test_qualified_name_is_the_one_that_runtimes_resolve():
    assert qualified_name("0000:03:00.2") == "k8s-rdma.io/vf=0000:03:00.2"
