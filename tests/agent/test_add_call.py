"""Names of interfaces, and which field an error gives if a name is not possible."""

from __future__ import annotations

import json

import pytest

from k8s_rdma.agent.cni.add_call import interface_names
from k8s_rdma.core.options import InterfaceOptions
from k8s_rdma.core.request import InterfaceRequest
from k8s_rdma.core.types import VfDriver
from k8s_rdma.errors import MalformedError, Reason
from k8s_rdma.wire.cni_request import NetConf, decode_netconf

PREV_RESULT = {"cniVersion": "1.0.0", "ips": []}
CHAINED = {"prevResult": PREV_RESULT}


def conf(**keys: object) -> NetConf:
    document = {"cniVersion": "1.0.0", "name": "net", "type": "k8s-rdma-cni", **keys}
    return decode_netconf(json.dumps(document).encode())


def asked(*names: str, driver: VfDriver = VfDriver.KERNEL) -> tuple[InterfaceRequest, ...]:
    """Return interfaces with these names; an empty name is unset."""
    return tuple(InterfaceRequest(options=InterfaceOptions(name=name, driver=driver)) for name in names)


@pytest.mark.parametrize(
    ("keys", "ifname", "names"),
    [
        ({}, "eth0", ("eth0", "eth1", "eth2")),
        (CHAINED, "eth0", ("rdma0", "rdma1", "rdma2")),
        (CHAINED, "net1", ("rdma0", "rdma1", "rdma2")),
        ({}, "net1", ("net1", "net1-1", "net1-2")),
        ({"interfaceNames": "ib{i}"}, "eth0", ("ib0", "ib1", "ib2")),
        ({"interfaceNames": "ib{i}"}, "net1", ("ib0", "ib1", "ib2")),
        ({"interfaceNames": "{i}.ib"} | CHAINED, "eth0", ("0.ib", "1.ib", "2.ib")),
        ({"if0name": "ib0"}, "eth0", ("ib0", "eth1", "eth2")),
        ({"if0name": "ib0"}, "net1", ("ib0", "net1-1", "net1-2")),
    ],
)
def test_names_are_as_the_configuration_has_them(
    keys: dict[str, object], ifname: str, names: tuple[str, ...]
) -> None:
    interfaces = tuple(enumerate(asked("", "", "")))
    assert interface_names(conf(**keys), interfaces, ifname) == names
    assert interface_names(conf(**keys), interfaces[:1], ifname) == names[:1]
    assert interface_names(conf(**keys), (), ifname) == ()


def test_names_count_by_the_place_in_the_request_so_that_attachments_do_not_meet() -> None:
    part = tuple(zip((2, 5), asked("", ""), strict=True))
    assert interface_names(conf(), part, "eth0") == ("eth2", "eth5")
    assert interface_names(conf(**CHAINED), part, "net1") == ("rdma2", "rdma5")
    assert interface_names(conf(), part, "net1") == ("net1", "net1-1")


def test_names_that_the_pod_chose_stand_and_the_others_count_on() -> None:
    interfaces = tuple(enumerate(asked("storage", "", "compute", "")))
    assert interface_names(conf(), interfaces, "eth0") == ("storage", "eth1", "compute", "eth3")
    assert interface_names(conf(), interfaces, "net1") == ("storage", "net1", "compute", "net1-1")
    assert interface_names(conf(if0name="ib0"), interfaces, "eth0") == ("storage", "ib0", "compute", "eth3")


def test_pci_functions_leave_the_pods_own_interface_its_name() -> None:
    functions = tuple(enumerate(asked("", "", driver=VfDriver.VFIO_PCI)))
    assert interface_names(conf(), functions, "eth0") == ("vfio-pci0", "vfio-pci1")
    assert interface_names(conf(**CHAINED), functions, "eth0") == ("rdma0", "rdma1")
    assert interface_names(conf(interfaceNames="x{i}"), functions, "eth0") == ("x0", "x1")


@pytest.mark.parametrize(
    ("keys", "names", "present", "message"),
    [
        ({}, ("a", "a"), "", "rdma_interfaces_required[1].name: a is also the name of another interface"),
        ({}, ("", "eth0"), "", "rdma_interfaces_required[1].name: eth0 is also the name of another"),
        ({}, ("eth1", ""), "", "rdma_interfaces_required[0].name: eth1 is also the name of another"),
        ({"if0name": "eth1"}, ("", ""), "", "network configuration: if0name: eth1 is also the name of"),
        ({"if0name": "b"}, ("", "b"), "", "rdma_interfaces_required[1].name: b is also the name of another"),
        ({}, ("a",), "a", "rdma_interfaces_required[0].name: a is the name of an interface that the pod has"),
        ({}, ("",), "eth0", "network configuration: interfaceNames: eth0 is the name of an interface that"),
        ({"interfaceNames": "fourteen-chars{i}"}, 11, "", "network configuration: interfaceNames: fourteen-"),
    ],
)
def test_name_is_refused_by_the_field_that_chose_it(
    keys: dict[str, object], names: tuple[str, ...] | int, present: str, message: str
) -> None:
    interfaces = asked(*names) if isinstance(names, tuple) else asked(*[""] * names)
    with pytest.raises(MalformedError) as refused:
        interface_names(conf(**keys), tuple(enumerate(interfaces)), "eth0", {present} if present else set())
    assert refused.value.message.startswith(message)
    by_pod = message.startswith("rdma_interfaces_required")
    assert refused.value.reason is (Reason.MALFORMED_ANNOTATION if by_pod else Reason.INVALID_NETCONF)


def test_name_made_of_cni_ifname_is_refused_when_it_gets_too_long() -> None:
    interfaces = tuple(enumerate(asked("", "")))
    with pytest.raises(MalformedError, match="CNI_IFNAME: fourteen-chars-1 is longer than 15 bytes"):
        interface_names(conf(), interfaces, "fourteen-chars")
