"""Parts of a machine that are replaced, and that it stays the same machine."""

from __future__ import annotations

import msgspec
import pytest

from k8s_rdma.wire.machine import (
    About,
    LinkEntry,
    Machine,
    PortEntry,
    RdmaEntry,
    RefusedAnswer,
    SymbolicLink,
    VfEntry,
    decode_machine,
    disguised,
    encode_machine,
)

MACHINE = Machine(
    about=About(machine="one port", source="written for this test", kernel="6.1.0"),
    links=(
        LinkEntry(index=2, name="enxb8599f123456", mac="b8:59:9f:12:34:56", device="0000:3b:00.0"),
        LinkEntry(index=3, name="ib0", mac="00:00:10:87:fe:80:00:00:00:00:00:00:b8:59:9f:03:00:12:34:57"),
        LinkEntry(index=4, name="lo", mac="00:00:00:00:00:00"),
    ),
    vfs={2: (VfEntry(index=0, mac="B8:59:9F:12:34:56", port_guid="b8:59:9f:03:00:12:34:57"),)},
    rdma_devices=(
        RdmaEntry(
            index=0,
            name="rocexb8599f0300123456",
            node_guid="b859:9f03:0012:3456",
            ports=(PortEntry(number=1, state="ACTIVE", netdev_index=2),),
        ),
    ),
    firmware={"enxb8599f123456": "16.35.2000 (MT_0000000012)"},
    refused={"firmware enxb8599f123456": "EIO"},
    sysfs={
        "class/net/enxb8599f123456": SymbolicLink("/devices/0000:3b:00.0/net/enxb8599f123456"),
        "devices/0000:3b:00.0/net/enxb8599f123456/address": "b8:59:9f:12:34:56",
        "devices/0000:3b:00.0/net/enxb8599f123456/phys_switch_id": "563412000003",
        "devices/0000:3b:00.0/net/enxb8599f123456/speed": RefusedAnswer("EINVAL"),
        "devices/0000:3b:00.0/net/enxb8599f123456/broadcast": "ff:ff:ff:ff:ff:ff",
        "devices/0000:3b:00.0/uevent": "PCI_SLOT_NAME=0000:3b:00.0\nMODALIAS=pci:v000015B3d00001017",
        "devices/0000:3b:00.0/sriov/0/config": "VF         : 0\nMAC        : b8:59:9f:12:34:56\nVLAN : 0",
        "devices/0000:3b:00.0/empty": None,
    },
)


@pytest.mark.parametrize("secret", ["12:34:56", "123456", "0012:3456", "12:34:57", "563412"])
def test_no_address_of_the_machine_is_left(secret: str) -> None:
    assert secret in encode_machine(MACHINE).lower()
    assert secret not in encode_machine(disguised(MACHINE)).lower()


def test_addresses_that_are_one_stay_one_in_every_spelling() -> None:
    machine = disguised(MACHINE)
    assert [link.mac for link in machine.links] == [
        "b8:59:9f:00:00:01",
        "00:00:10:87:fe:80:00:00:00:00:00:00:b8:59:9f:03:00:00:00:02",
        "00:00:00:00:00:00",
    ]
    assert machine.links[0].name == "enxb8599f000001"
    assert machine.vfs[2][0] == VfEntry(index=0, mac="B8:59:9F:00:00:01", port_guid="b8:59:9f:03:00:00:00:02")
    assert (machine.rdma_devices[0].name, machine.rdma_devices[0].node_guid) == (
        "rocexb8599f0300000001",
        "b859:9f03:0000:0001",
    )
    assert list(machine.firmware) == ["enxb8599f000001"]
    assert list(machine.refused) == ["firmware enxb8599f000001"]
    assert machine.sysfs["class/net/enxb8599f000001"] == SymbolicLink(
        "/devices/0000:3b:00.0/net/enxb8599f000001"
    )
    assert "MAC        : b8:59:9f:00:00:01\n" in machine.sysfs["devices/0000:3b:00.0/sriov/0/config"]


def test_addresses_are_one_whatever_the_case_of_their_digits() -> None:
    texts = {"a/address": "b8:59:9f:ab:cd:ef", "b/config": "MAC : B8:59:9F:AB:CD:EF"}
    machine = disguised(msgspec.structs.replace(MACHINE, links=(), vfs={}, sysfs=texts))
    assert machine.sysfs["a/address"][-8:] == machine.sysfs["b/config"][-8:] != "AB:CD:EF"


def test_everything_else_stays() -> None:
    machine = disguised(MACHINE)
    home = "devices/0000:3b:00.0"
    assert machine.about == MACHINE.about
    assert machine.sysfs[f"{home}/uevent"] == MACHINE.sysfs[f"{home}/uevent"]
    assert machine.sysfs[f"{home}/net/enxb8599f000001/broadcast"] == "ff:ff:ff:ff:ff:ff"
    assert machine.sysfs[f"{home}/net/enxb8599f000001/speed"] == RefusedAnswer("EINVAL")
    assert machine.sysfs[f"{home}/empty"] is None
    assert machine.firmware["enxb8599f000001"] == "16.35.2000 (MT_0000000012)"
    assert machine.links[0].device == "0000:3b:00.0"
    assert machine.rdma_devices[0].ports == MACHINE.rdma_devices[0].ports


def test_switch_ids_stay_equal_or_different() -> None:
    ids = {
        "a/phys_switch_id": "0123456789ab",
        "b/phys_switch_id": "0123456789ab",
        "c/phys_switch_id": "ff0000",
    }
    machine = disguised(msgspec.structs.replace(MACHINE, sysfs=ids))
    assert machine.sysfs == {
        "a/phys_switch_id": "000000000001",
        "b/phys_switch_id": "000000000001",
        "c/phys_switch_id": "000002",
    }


def test_disguised_machine_is_disguised_already() -> None:
    machine = disguised(MACHINE)
    assert disguised(machine) == machine
    assert decode_machine(encode_machine(machine)) == machine
