from __future__ import annotations

import json
from dataclasses import replace

from factories import PF0, PF1, interface, receipt
from k8s_rdma.core.options import InterfaceOptions
from k8s_rdma.core.types import VfDriver
from k8s_rdma.wire.ipam_result import Dns, IpamResult, IpConfig
from k8s_rdma.wire.network_status import (
    device_info,
    encode_device_info,
    encode_network_status,
    network_status,
)

PROGRAM = InterfaceOptions(driver=VfDriver.VFIO_PCI)


def shown(*interfaces, results=None):
    return json.loads(encode_network_status(network_status(receipt("c", *interfaces), results or {})))


def test_device_information_has_the_function_its_pf_and_its_rdma_device():
    given = replace(interface(PF1, 2), rdma_device="mlx5_7")
    assert json.loads(encode_device_info(device_info(given))) == {
        "type": "pci",
        "version": "1.1.0",
        "pci": {"pci-address": "0000:03:00.2", "rdma-device": "mlx5_7", "pf-pci-address": "0000:03:00.1"},
    }


def test_device_information_leaves_out_an_rdma_device_that_is_not_there():
    assert "rdma-device" not in json.loads(encode_device_info(device_info(interface())))["pci"]


def test_status_has_an_entry_for_each_interface_with_its_own_addresses():
    first, second = interface(PF0, 0, "rdma0"), interface(PF0, 1, "rdma1")
    ipam = IpamResult(
        ips=(IpConfig("10.0.0.2/24"), IpConfig("fd00::2/64")),
        dns=Dns(nameservers=("10.0.0.1",), domain="a.b"),
    )
    entries = shown(first, second, results={"rdma1": ipam})
    assert [(each["interface"], each.get("ips"), each.get("dns")) for each in entries] == [
        ("rdma0", None, None),
        ("rdma1", ["10.0.0.2", "fd00::2"], {"nameservers": ["10.0.0.1"], "domain": "a.b"}),
    ]
    assert all(each["name"] == "net" and each["default"] is False for each in entries)


def test_status_has_the_requested_mac_mtu_and_network_of_the_interface():
    options = InterfaceOptions(mac="0a:11:22:33:44:55", mtu=9000, network="storage")
    [entry] = shown(replace(interface(), options=options))
    assert (entry["mac"], entry["mtu"], entry["name"]) == ("0a:11:22:33:44:55", 9000, "storage")


def test_status_of_a_function_for_a_program_names_its_cdi_device_and_no_mtu():
    [entry] = shown(replace(interface(), options=PROGRAM))
    assert entry["cdi-device"] == "k8s-rdma.io/vf=0000:03:00.0"
    assert "mtu" not in entry
    [other] = shown(interface())
    assert "cdi-device" not in other
