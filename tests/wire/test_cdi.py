from __future__ import annotations

import json

import pytest

from k8s_rdma.errors import MalformedError
from k8s_rdma.wire.cdi import (
    ContainerEdits,
    Device,
    DeviceNode,
    decode_specification,
    encode_specification,
    qualified_name,
    vf_file_name,
    vf_of_file_name,
    vfio_device,
)

NODE = ContainerEdits(device_nodes=(DeviceNode(path="/dev/x"),))


def encode(*devices: Device, vendor: str = "k8s-rdma.io", device_class: str = "vf") -> dict[str, object]:
    data = encode_specification(devices, vendor=vendor, device_class=device_class)
    assert decode_specification(data) == (f"{vendor}/{device_class}", devices)
    return json.loads(data)


def test_specification_of_a_vf_gives_its_group_and_the_container_of_groups():
    assert encode(vfio_device("0000:03:00.2", "/dev/vfio/42")) == {
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


def test_specification_leaves_out_what_is_as_by_default():
    edits = ContainerEdits(env=("A=b=c",), device_nodes=(DeviceNode(path="/dev/x", host_path="/dev/y"),))
    document = encode(Device(name="a", container_edits=edits))
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
def test_kind_that_is_none_is_refused(vendor, device_class, field):
    with pytest.raises(MalformedError, match=f"kind: its {field}"):
        encode(Device(name="a", container_edits=NODE), vendor=vendor, device_class=device_class)
    with pytest.raises(MalformedError, match=f"kind: its {field}"):
        qualified_name("a", vendor=vendor, device_class=device_class)


@pytest.mark.parametrize("name", ["", "-a", "a-", "a b", "a/b", "ä", "a=b", "a\n"])
def test_device_of_no_name_is_refused(name):
    with pytest.raises(MalformedError, match=r"devices\[0\].name"):
        encode(Device(name=name, container_edits=NODE))
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
        encode(Device(name="a", container_edits=edits))


def test_specification_without_devices_or_with_one_twice_is_refused():
    with pytest.raises(MalformedError, match="wanted at least one"):
        encode()
    with pytest.raises(MalformedError, match="none twice"):
        encode(*[Device(name="a", container_edits=NODE)] * 2)


@pytest.mark.parametrize("data", [b"", b"[]", b"{}", b'{"cdiVersion": "0.5.0", "kind": "a/b", "devices": 1}'])
def test_what_is_no_specification_is_refused(data):
    with pytest.raises(MalformedError, match="CDI specification"):
        decode_specification(data)


def test_file_name_tells_the_vf_and_is_of_nobody_else():
    pci = "0000:03:00.2"
    assert vf_of_file_name(vf_file_name(pci)) == pci
    assert vf_file_name(pci) == "k8s-rdma.io-vf_0000:03:00.2.json"
    for other in (
        "vendor.com-gpu.json",
        "k8s-rdma.io-vf.json",
        "k8s-rdma.io-vf_.json",
        "xk8s-rdma.io-vf_a.json",
    ):
        assert vf_of_file_name(other) is None


def test_qualified_name_is_what_a_runtime_is_asked_for():
    assert qualified_name("0000:03:00.2") == "k8s-rdma.io/vf=0000:03:00.2"
