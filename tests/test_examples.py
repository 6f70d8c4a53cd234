"""Every file of examples/ is valid, and the pods fit on a node of the demo as examples/README.md says."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
import yaml

from k8s_rdma.agent.cni.add_call import interface_names
from k8s_rdma.core.inventory import Inventory, Pf
from k8s_rdma.core.pf_use import Used
from k8s_rdma.core.placement import Placement, Rejection, place
from k8s_rdma.core.request import InterfaceRequest, PfPolicy, Request
from k8s_rdma.core.types import NodeName, Setting, pci_address
from k8s_rdma.errors import Reason
from k8s_rdma.wire.annotation import KEYS, read_pod
from k8s_rdma.wire.cni_request import POD_ANNOTATIONS, decode_netconf

EXAMPLES = Path(__file__).resolve().parent.parent / "examples"
DOCS = EXAMPLES.parent / "docs"
PODS = sorted((EXAMPLES / "pods").iterdir())
CONFLISTS = sorted((EXAMPLES / "cni").glob("*.conflist"))

DEMO_NODE = Inventory(
    node=NodeName("w1"),
    pfs=tuple(
        Pf(
            name=f"enp1s0f{port}",
            pci=pci_address(f"01:00.{port}"),
            capacity_vfs=64,
            link_mbps=1000,
            supported_settings=frozenset(Setting) - {Setting.QOS, Setting.VLAN_PROTO, Setting.VFIO_PCI},
            mtu=1500,
        )
        for port in range(2)
    ),
)


def outcome(pod: str) -> Placement | Rejection:
    manifest = yaml.safe_load((EXAMPLES / "pods" / f"{pod}.yaml").read_text())
    asked = read_pod(manifest["metadata"].get("annotations", {}), strict=True)
    return place(asked.request, DEMO_NODE, {})


def usage(pod: str) -> list[tuple[int, int]]:
    """VFs and reserved Mb/s on each PF that the pod uses."""
    placement = outcome(pod)
    assert isinstance(placement, Placement), placement
    return [(used.vfs, used.mbps) for _, used in sorted(placement.usage(DEMO_NODE).items())]


@pytest.mark.parametrize("path", PODS, ids=lambda path: path.name)
def test_pod_is_one_that_the_api_server_would_take(path):
    pod = yaml.safe_load(path.read_text())
    assert (pod["apiVersion"], pod["kind"], pod["metadata"]["name"]) == ("v1", "Pod", path.stem)
    assert all(isinstance(text, str) for text in pod["metadata"].get("annotations", {}).values())
    assert [container["name"] for container in pod["spec"]["containers"]] == ["main"]


def test_all_example_pods_are_described():
    readme = (EXAMPLES / "README.md").read_text()
    assert not [path.name for path in PODS if f"`{path.name}`" not in readme]


def test_reservations_and_caps_fits_on_one_pf():
    assert usage("reservations-and-caps") == [(4, 500)]


def test_pod_of_example_without_rdma_uses_no_interface():
    assert usage("without-rdma") == []


def test_needs_both_pfs_is_spread_over_both():
    assert usage("needs-both-pfs") == [(1, 600), (1, 600)]


def test_one_interface_a_rail_is_on_both_though_one_pf_had_room_for_all():
    assert usage("one-interface-a-rail") == [(1, 200), (1, 200)]


def test_selected_pf_is_the_one_that_all_are_on():
    placement = outcome("selected-pf")
    assert isinstance(placement, Placement)
    assert [placed.pf for placed in placement.interfaces] == [pci_address("01:00.1")] * 4


def test_vlan_and_mac_fits_on_one_pf():
    assert usage("vlan-and-mac") == [(2, 300)]
    first, second = outcome("vlan-and-mac").request().interfaces
    assert (first.options.name, first.options.vlan, first.options.mac) == ("data0", 100, "02:00:5e:10:00:01")
    assert (second.options.mtu, second.options.spoof_check) == (1400, True)


def test_two_networks_asks_for_addresses_of_both():
    assert usage("two-networks") == [(2, 500)]
    assert [placed.options.network for placed in outcome("two-networks").interfaces] == ["", "storage"]


def test_dpdk_is_refused_if_vfs_are_no_pci_functions():
    rejection = outcome("dpdk")
    assert isinstance(rejection, Rejection)
    assert rejection.reason is Reason.DRIVER_REFUSES
    assert rejection.message == "needs 1 interface; enp1s0f0, enp1s0f1: its VFs cannot be given to vfio-pci"


def test_fits_nowhere_is_refused_for_good():
    rejection = outcome("fits-nowhere")
    assert isinstance(rejection, Rejection)
    assert rejection.reason is Reason.EXCEEDS_CAPACITY


def test_sixty_interfaces_fill_both_pfs():
    assert usage("sixty-interfaces") == [(30, 990), (30, 990)]


@pytest.mark.parametrize("path", CONFLISTS, ids=lambda path: path.stem)
def test_conflist_has_our_plugin_at_its_end(path):
    conflist = json.loads(path.read_text())
    *before, ours = conflist["plugins"]
    assert ours["type"] == "k8s-rdma-cni"
    assert ours["capabilities"] == {POD_ANNOTATIONS: True}
    told = {key: conflist[key] for key in ("cniVersion", "name")} | ours
    netconf = decode_netconf(json.dumps(told | ({"prevResult": {"ips": []}} if before else {})).encode())
    assert netconf.chained == bool(before)
    assert bool(netconf.delegate) == (not before)
    interfaces = tuple(enumerate((InterfaceRequest(), InterfaceRequest())))
    assert interface_names(netconf, interfaces, "eth0") == ("rdma0", "rdma1")


def test_configuration_of_the_plugin_before_is_read():
    conf = (EXAMPLES / "cni" / "rit.conf").read_bytes()
    assert decode_netconf(conf).type == "rit-k8s-rdma-cni-linux-amd64"


def test_network_of_multus_is_read():
    network = yaml.safe_load((EXAMPLES / "cni" / "multus" / "network.yaml").read_text())
    assert (network["kind"], network["metadata"]) == ("NetworkAttachmentDefinition", {"name": "rdma"})
    assert decode_netconf(network["spec"]["config"].encode()).name == "rdma"
    pod = yaml.safe_load((EXAMPLES / "cni" / "multus" / "pod.yaml").read_text())
    assert len(read_pod(pod["metadata"]["annotations"], strict=True).request.interfaces) == 2
    json.loads((EXAMPLES / "cni" / "multus" / "daemon-config.json").read_text())


def test_all_example_configurations_are_described():
    readme = (EXAMPLES / "cni" / "README.md").read_text()
    files = [path for path in (EXAMPLES / "cni").rglob("*") if path.is_file() and path.suffix != ".md"]
    assert not [path.name for path in files if path.name not in readme]


def test_reference_of_annotations_has_every_key_and_no_other():
    told = re.findall(r"^\| `([a-z0-9_]+)` \|", (DOCS / "annotation.md").read_text(), re.MULTILINE)
    of_pf = ["name", "pci", "vendor", "driver"]
    rows = told[: told.index("pci") - 1]  # up to the table of keys that `pf` selects by
    assert sorted(rows) == sorted(KEYS)
    assert told[len(rows) : len(rows) + len(of_pf)] == of_pf


def test_annotations_reference_shows_annotations_that_are_some():
    text = (DOCS / "annotation.md").read_text()
    shown = [yaml.safe_load(each) for each in re.findall(r"```yaml\n(.*?)```", text, re.DOTALL)]
    asked = [read_pod(each["metadata"]["annotations"], strict=True).request for each in shown]
    assert [(len(request.interfaces), request.policy) for request in asked] == [
        (4, PfPolicy.ANY),
        (4, PfPolicy.SPREAD_PFS),
        (1, PfPolicy.ANY),
    ]


RAILS = Inventory(
    node=NodeName("w1"),
    pfs=tuple(
        Pf(
            name=f"enp{at}s0",
            pci=pci_address(f"0{at}:00.0"),
            capacity_vfs=8,
            link_mbps=100_000,
            numa_node=at // 2,
        )
        for at in range(4)
    ),
)


@pytest.mark.parametrize(
    ("policy", "interfaces", "used"),
    [
        (PfPolicy.SPREAD_PFS, [50_000] * 4, [Used(8, 0), Used(1, 60_000)]),
        (PfPolicy.SAME_PF, [40_000] * 2, [Used(1, 50_000), Used(1, 30_000), Used(1, 50_000), Used(8, 0)]),
        (PfPolicy.SAME_NUMA, [60_000] * 3, []),
    ],
)
def test_annotations_reference_shows_refusals_as_they_are(policy, interfaces, used):
    request = Request(tuple(InterfaceRequest(min_tx_rate_mbps=rate) for rate in interfaces), policy)
    taken = {pf.pci: there for pf, there in zip(RAILS.pfs, used, strict=False)}
    found = place(request, RAILS, taken)
    assert isinstance(found, Rejection)
    assert f"\n{found.numbers}\n" in (DOCS / "annotation.md").read_text()
