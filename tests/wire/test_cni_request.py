"""Calls of the plugin: variables and configurations as recorded or inherited, and faults by name."""

from __future__ import annotations

import contextlib
import json
import re
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from k8s_rdma.core.types import VfDriver
from k8s_rdma.errors import MalformedError, Reason
from k8s_rdma.wire.cni_request import (
    COMMANDS,
    NetConf,
    ValidAttachment,
    decode_netconf,
    decode_network,
    ifname_fault,
    meaningless_keys,
    parse_environment,
    plugin_type,
)

RECORDINGS = [
    path
    for path in sorted((Path(__file__).parents[1] / "recordings" / "cni").glob("*.json"))
    if "VERSION" not in path.stem  # answered by the executable
]
LEGACY = """{"name":"mynet","type":"rit-k8s-rdma-cni-linux-amd64","ipam":{"type":"host-local",
"subnet":"10.55.206.0/24","rangeStart":"10.55.206.1","rangeEnd":"10.55.206.254",
"routes":[{"dst":"0.0.0.0/0"}],"gateway":"10.55.206.1"}}"""
PREV_RESULT = {"cniVersion": "1.0.0", "ips": []}
A, B = ({"containerID": name, "ifname": "eth0"} for name in "ab")


def text(**keys: object) -> bytes:
    return json.dumps({"cniVersion": "1.0.0", "name": "net", "type": "k8s-rdma-cni", **keys}).encode()


def recorded(path: Path) -> dict[str, Any]:
    """A recorded configuration as ours; the recorder's own key `note` is not the specification's."""
    stdin: dict[str, Any] = json.loads(path.read_text())["stdin"]
    del stdin["note"]
    return {**stdin, "type": "k8s-rdma-cni"}


def refusal(stdin: bytes, *, strict: bool = True) -> str:
    with pytest.raises(MalformedError) as refused:
        decode_netconf(stdin, strict=strict)
    assert refused.value.reason is Reason.INVALID_NETCONF
    assert refused.value.message.startswith("network configuration: ")
    assert refused.value.message.encode()
    return refused.value.message.removeprefix("network configuration: ")


@pytest.mark.parametrize("version", [{}, {"cniVersion": None}, {"cniVersion": ""}])
def test_netconf_without_a_version_is_of_the_first(version: dict[str, str | None]) -> None:
    stdin = json.dumps({"name": "net", "type": "k8s-rdma-cni", **version}).encode()
    assert decode_netconf(stdin).cni_version == "0.1.0"
    assert decode_network(stdin) == ("net", "0.1.0")


@pytest.mark.parametrize("path", RECORDINGS, ids=lambda path: path.stem)
def test_netconf_is_read_as_recorded(path: Path) -> None:
    stdin = recorded(path)
    conf = decode_netconf(json.dumps(stdin).encode())
    assert (conf.cni_version, conf.name) == (stdin["cniVersion"], "labnet")
    assert conf.chained is ("prevResult" in stdin)
    if conf.chained:
        assert json.loads(bytes(conf.prev_result)) == stdin["prevResult"]
    annotations = stdin.get("runtimeConfig", {}).get("io.kubernetes.cri.pod-annotations")
    assert conf.pod_annotations == annotations
    valid = stdin.get("cni.dev/valid-attachments")
    assert conf.valid_attachments == (
        None
        if valid is None
        else tuple(ValidAttachment(item["containerID"], item["ifname"]) for item in valid)
    )


def test_netconf_of_the_replaced_plugin_is_read() -> None:
    conf = decode_netconf(LEGACY.encode())
    assert (conf.cni_version, conf.name, conf.chained) == ("0.1.0", "mynet", False)
    assert plugin_type(conf.ipam, "ipam") == "host-local"
    assert conf.pod_annotations is None


@pytest.mark.parametrize(
    ("runtime_config", "annotations"),
    [
        ({}, None),
        (None, None),
        ({"portMappings": []}, None),
        ({"io.kubernetes.cri.pod-annotations": None}, {}),
        ({"io.kubernetes.cri.pod-annotations": {}}, {}),
        ({"io.kubernetes.cri.pod-annotations": {"a": "b"}}, {"a": "b"}),
    ],
)
def test_annotations_are_none_only_when_the_runtime_delivered_no_field(
    runtime_config: object, annotations: object
) -> None:
    assert decode_netconf(text(runtimeConfig=runtime_config)).pod_annotations == annotations


def test_annotations_are_none_when_there_is_no_runtime_config() -> None:
    assert decode_netconf(text()).pod_annotations is None


@pytest.mark.parametrize(
    "keys",
    [
        {"args": {"cni": {"ips": ["10.0.0.1"]}}},
        {"capabilities": {"x": True}, "dns": {"nameservers": []}, "disableCheck": True, "disableGC": True},
        {"cniVersions": ["1.0.0"], "loadOnlyInlinedPlugins": True, "timeoutMs": 5000},
        {"cni.dev/whatever-comes": [1]},
        {"cniDir": "/var/lib/cni", "l2enable": True},
        {"vlan": 0, "dpdk": {}, "ipMasq": False, "delegate": None, "networks": {}, "emptyResult": False},
        {"vlan": 4094, "dpdk": {"dpdk_driver": ""}},
    ],
)
def test_key_is_let_pass_when_it_is_known_or_neutral(keys: dict[str, object]) -> None:
    assert decode_netconf(text(**keys)).name == "net"


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"interfacenames": "x"}, "interfacenames: unknown key; did you mean interfaceNames?"),
        ({"run-dir": "/x"}, "run-dir: unknown key; did you mean runDir?"),
        ({"note": "x"}, "note: unknown key; "),
        ({"\ud800": 1}, "no valid JSON: "),
        ({"network": {}}, "network: unknown key; did you mean networks?"),
        ({"vlan": 4095}, "vlan: 4095 is not in 0..4094"),
        ({"vlan": -1}, "vlan: -1 is not in 0..4094"),
        ({"vlan": True}, "vlan: true; wanted a whole number"),
        ({"networks": {"a": {"l2enable": None}}}, "networks.a.l2enable: null; wanted true or false"),
        ({"vlan": "7"}, 'vlan: "7"; wanted a whole number'),
        ({"dpdk": {"pci_addr": "1"}}, "dpdk.dpdk_driver: '' is not supported; wanted vfio-pci"),
        ({"dpdk": {"dpdk_driver": "igb_uio"}}, "dpdk.dpdk_driver: igb_uio is not supported; wanted vfio-pci"),
        ({"dpdk": {"dpdk_drive": "x"}}, "dpdk.dpdk_drive: unknown key; did you mean dpdk_driver?"),
        ({"dpdk": {"dpdk_driver": 1}}, "dpdk.dpdk_driver: 1; wanted text"),
        ({"emptyResult": 1}, "emptyResult: 1; wanted true or false"),
        ({"networks": {"a/b": {}}}, "networks.a/b: must be letters"),
        ({"networks": {"net": {}}}, "networks.net: is this network itself"),
        ({"networks": {"a": {"ipma": {}}}}, "networks.a.ipma: unknown key; did you mean ipam?"),
        ({"networks": {"a": {"range": {}}}}, "networks.a.range: unknown key; known are ipam, l2enable"),
        ({"networks": ["a"]}, 'networks: ["a"]; wanted an object'),
        ({"ipMasq": True}, "ipMasq: not supported: "),
        ({"pfOnly": True}, "pfOnly: not supported: pods get VFs, not PFs"),
        ({"if1": "eth1"}, "if1: unknown key; "),
        ({"cniVersion": "one"}, "cniVersion: one is no version of the form 1.0.0"),
        ({"cniVersion": "1.0"}, "cniVersion: 1.0 is no version"),
        ({"cniVersion": 1}, "cniVersion: 1; wanted text"),
        ({"name": "../x"}, "name: ../x must be"),
        ({"name": None}, "name: not set"),
        ({"type": None}, "type: not set"),
        ({"interfaceNames": "net"}, "interfaceNames: net must hold {i} once"),
        ({"interfaceNames": "{i}{i}"}, "interfaceNames: {i}{i} must hold {i} once"),
        ({"interfaceNames": "a/{i}"}, "interfaceNames: a/0 must not be"),
        ({"interfaceNames": "a" * 15 + "{i}"}, f"interfaceNames: {'a' * 15}0 is longer than 15 bytes"),
        ({"if0name": "a b"}, "if0name: a b must not be"),
        ({"l2enable": "yes"}, 'l2enable: "yes"; wanted true or false'),
        ({"runtimeConfig": []}, "runtimeConfig: []; wanted an object"),
        (
            {"runtimeConfig": {"io.kubernetes.cri.pod-annotations": {"a": 1}}},
            "runtimeConfig.io.kubernetes.cri.pod-annotations.a: 1; wanted text",
        ),
        (
            {"cni.dev/valid-attachments": [{"ifname": "e"}]},
            "cni.dev/valid-attachments[0].containerID: not set",
        ),
        (
            {"cni.dev/valid-attachments": [A], "cni.dev/attachments": []},
            "cni.dev/attachments: differs from cni.dev/valid-attachments",
        ),
    ],
)
def test_netconf_is_refused_naming_the_key_when_malformed(keys: dict[str, object], message: str) -> None:
    assert refusal(text(**keys)).startswith(message)


def test_keys_of_earlier_sriov_plugins_pass_and_are_named() -> None:
    conf = text(if0="enp4s0f0", master="enp4s0f0", pfNetdevices=["enp4s0f0"], createmac=True, pfOnly=False)
    assert decode_netconf(conf).name == "net"
    assert meaningless_keys(conf) == ("createmac", "if0", "master", "pfNetdevices")
    assert meaningless_keys(text(if0name="rdma0")) == ()
    assert decode_netconf(text(dpdk={"dpdk_driver": "vfio-pci", "ifname": "x"})).name == "net"


@pytest.mark.parametrize("stdin", [b"", b"[]", b"null", b"{", b"\xff", b'{"a":' + b"[" * 100_000])
def test_netconf_is_refused_when_it_is_no_json_object(stdin: bytes) -> None:
    assert refusal(stdin)


@pytest.mark.parametrize("keys", [{"note": 1}, {"ipMasq": True}, {"interfacenames": "x"}])
def test_unknown_keys_pass_when_not_strict(keys: dict[str, object]) -> None:
    assert decode_netconf(text(**keys), strict=False).name == "net"


def test_decoding_is_strict_by_default() -> None:
    with pytest.raises(MalformedError, match="note: unknown key"):
        decode_netconf(text(note=1))


def test_known_keys_are_checked_all_the_same_when_not_strict() -> None:
    assert refusal(text(interfaceNames="net"), strict=False).startswith("interfaceNames: ")


@pytest.mark.parametrize(
    ("keys", "kept"),
    [
        ({}, None),
        ({"cni.dev/valid-attachments": None}, None),
        ({"cni.dev/valid-attachments": []}, ""),
        ({"cni.dev/attachments": []}, ""),
        ({"cni.dev/attachments": [A]}, "a"),
        ({"cni.dev/valid-attachments": [A, B]}, "ab"),
        ({"cni.dev/valid-attachments": [A, B], "cni.dev/attachments": [B, A]}, "ab"),
        ({"cni.dev/valid-attachments": None, "cni.dev/attachments": [B]}, "b"),
    ],
)
def test_attachments_to_keep_are_read_from_either_key(keys: dict[str, object], kept: str | None) -> None:
    found = decode_netconf(text(**keys)).attachments_to_keep
    assert found == (None if kept is None else {ValidAttachment(name, "eth0") for name in kept})


@pytest.mark.parametrize(
    ("dpdk", "driver"),
    [
        ({}, VfDriver.KERNEL),
        ({"pci_addr": "", "dpdk_driver": ""}, VfDriver.KERNEL),
        ({"dpdk_driver": "vfio-pci"}, VfDriver.VFIO_PCI),
        (
            {"pci_addr": "x", "kernel_driver": "i40evf", "dpdk_driver": "vfio-pci", "dpdk_tool": "/x"},
            VfDriver.VFIO_PCI,
        ),
    ],
)
def test_dpdk_of_the_replaced_plugin_means_a_driver(dpdk: dict[str, str], driver: VfDriver) -> None:
    assert decode_netconf(text(dpdk=dpdk)).driver is driver


def test_networks_are_this_one_and_those_that_it_lists() -> None:
    networks = {"a": {"ipam": {"type": "static"}}, "b": {"l2enable": True}}
    assert decode_netconf(text(networks=networks)).own_networks == {"net", "a", "b"}


@pytest.mark.parametrize("keys", [{}, {"vlan": "x"}, {"ipam": []}, {"dpdk": 1}, {"note": 1}])
def test_network_is_read_from_any_configuration(keys: dict[str, object]) -> None:
    assert decode_network(text(**keys)) == ("net", "1.0.0")


@pytest.mark.parametrize("keys", [{"name": None}, {"name": "../x"}, {"cniVersion": "x"}])
def test_network_is_refused_when_it_has_no_name(keys: dict[str, object]) -> None:
    with pytest.raises(MalformedError, match="network configuration: "):
        decode_network(text(**keys))


@pytest.mark.parametrize("document", [b"", b"null", b"{}"])
def test_plugin_is_none_when_no_object_names_one(document: bytes) -> None:
    assert plugin_type(msgspec.Raw(document), "delegate") is None


@pytest.mark.parametrize(
    ("document", "named"),
    [
        (b'{"subnet": "x"}', "ipam.type: not set"),
        (b'{"type": "../sh"}', "ipam.type: ../sh is no plugin's name"),
        (b"[]", "ipam: []; wanted an object"),
    ],
)
def test_plugin_is_refused_naming_the_key_when_malformed(document: bytes, named: str) -> None:
    with pytest.raises(MalformedError, match=re.escape(named)) as refused:
        plugin_type(msgspec.Raw(document), "ipam")
    assert refused.value.reason is Reason.INVALID_NETCONF


KEYS = st.sampled_from(
    [*NetConf.__struct_encode_fields__, "note", "vlan", "io.kubernetes.cri.pod-annotations", "type"]
)
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5) | st.just("1.0.0"),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(KEYS | st.text(max_size=3), inner, max_size=3)
    ),
)


@given(
    st.binary() | st.dictionaries(KEYS, VALUES).map(lambda found: json.dumps(found).encode()), st.booleans()
)
def test_decoding_raises_only_malformed_for_any_bytes(stdin: bytes, strict: bool) -> None:
    with contextlib.suppress(MalformedError):
        decode_netconf(stdin, strict=strict)
    with contextlib.suppress(MalformedError):
        decode_network(stdin)


@pytest.mark.parametrize(
    ("keys", "device"),
    [
        ({}, ""),
        ({"deviceID": None, "runtimeConfig": {"deviceID": None}}, ""),
        ({"deviceID": "mlx5_3", "pciBusID": "mlx5_3"}, "mlx5_3"),
        ({"runtimeConfig": {"deviceID": "mlx5_3"}}, "mlx5_3"),
        ({"deviceID": "mlx5_3", "runtimeConfig": {}}, "mlx5_3"),
    ],
)
def test_device_that_multus_names_is_read_wherever_it_is(keys: dict[str, Any], device: str) -> None:
    assert decode_netconf(text(**keys)).device_id == device


def test_exclusive_devices_are_yes_or_no() -> None:
    assert decode_netconf(text(exclusiveDevices=True)).exclusive_devices
    assert "exclusiveDevices" in refusal(text(exclusiveDevices="true"))


@pytest.mark.parametrize("keys", [{"deviceID": 3}, {"runtimeConfig": {"deviceID": ["mlx5_3"]}}])
def test_device_that_is_no_text_is_refused(keys: dict[str, Any]) -> None:
    assert "deviceID" in refusal(text(**keys))


CALLS = sorted((Path(__file__).parents[1] / "recordings" / "cni").glob("*.json"))
ADD = {
    "CNI_COMMAND": "ADD",
    "CNI_CONTAINERID": "c1",
    "CNI_NETNS": "/run/netns/n1",
    "CNI_IFNAME": "eth0",
    "CNI_PATH": "/opt/cni/bin:/usr/lib/cni",
}


def environment_refusal(variables: dict[str, str]) -> str:
    with pytest.raises(MalformedError) as refused:
        parse_environment(variables)
    assert refused.value.reason is Reason.INVALID_ENVIRONMENT
    assert refused.value.message.encode()
    return refused.value.message


@pytest.mark.parametrize("path", CALLS, ids=lambda path: path.stem)
def test_environment_is_read_as_recorded(path: Path) -> None:
    variables = json.loads(path.read_text())["env"]
    call = parse_environment(variables)
    assert call.command == variables["CNI_COMMAND"]
    assert call.path == variables["CNI_PATH"]
    if call.command in ("ADD", "DEL", "CHECK"):
        assert call.container_id == variables["CNI_CONTAINERID"]
        assert call.netns == variables["CNI_NETNS"]
        assert call.ifname == variables["CNI_IFNAME"]
    else:
        assert (call.container_id, call.netns, call.ifname) == ("", None, "")


def test_environment_names_the_pod_if_containerd_calls() -> None:
    [path] = [path for path in CALLS if path.stem == "1.1.0-ADD-3"]
    call = parse_environment(json.loads(path.read_text())["env"])
    assert call.pod_namespace == "default"
    assert call.pod_name == "ns1"
    assert call.pod_uid == "7735cd8c-16fe-4c32-81b6-f3ce57d93afd"
    assert call.args["IgnoreUnknown"] == "1"
    assert call.raw_args.startswith("K8S_POD_UID=7735cd8c")


@pytest.mark.parametrize("args", ["", "K8S_POD_NAME=;K8S_POD_NAMESPACE=;K8S_POD_UID="])
def test_environment_without_a_pod_has_none(args: str) -> None:
    call = parse_environment({**ADD, "CNI_ARGS": args})
    assert (call.pod_namespace, call.pod_name, call.pod_uid) == (None, None, None)


def test_args_keep_the_text_behind_the_first_equals_sign() -> None:
    assert parse_environment({**ADD, "CNI_ARGS": "A=b=c;D="}).args == {"A": "b=c", "D": ""}


def test_netns_is_none_when_a_delete_comes_after_it_vanished() -> None:
    assert parse_environment({**ADD, "CNI_COMMAND": "DEL", "CNI_NETNS": ""}).netns is None


@pytest.mark.parametrize(
    ("command", "needed"),
    [
        ("ADD", {"CNI_CONTAINERID", "CNI_NETNS", "CNI_IFNAME", "CNI_PATH"}),
        ("CHECK", {"CNI_CONTAINERID", "CNI_NETNS", "CNI_IFNAME", "CNI_PATH"}),
        ("DEL", {"CNI_CONTAINERID", "CNI_IFNAME", "CNI_PATH"}),
        ("GC", {"CNI_PATH"}),
        ("STATUS", {"CNI_PATH"}),
        ("VERSION", set()),
    ],
)
@pytest.mark.parametrize("variable", ["CNI_CONTAINERID", "CNI_NETNS", "CNI_IFNAME", "CNI_PATH"])
@pytest.mark.parametrize("value", ["", None])
def test_variable_is_missed_only_when_the_command_needs_it(
    command: str, needed: set[str], variable: str, value: str | None
) -> None:
    variables = {**ADD, "CNI_COMMAND": command, variable: value}
    given_ = {name: text for name, text in variables.items() if text is not None}
    if variable in needed:
        assert environment_refusal(given_) == f"{variable}: not set, and {command} needs it"
    else:
        assert parse_environment(given_).command == command


@pytest.mark.parametrize(
    ("variables", "message"),
    [
        ({"CNI_COMMAND": "add"}, "CNI_COMMAND: add is none of ADD, DEL, CHECK, GC, STATUS, VERSION"),
        ({"CNI_COMMAND": ""}, "CNI_COMMAND: '' is none of ADD, DEL, CHECK, GC, STATUS, VERSION"),
        ({"CNI_CONTAINERID": "../x"}, "CNI_CONTAINERID: ../x must be"),
        ({"CNI_CONTAINERID": ".x"}, "CNI_CONTAINERID: .x must be"),
        ({"CNI_CONTAINERID": "a/b"}, "CNI_CONTAINERID: a/b must be"),
        ({"CNI_CONTAINERID": "a\n"}, r"CNI_CONTAINERID: 'a\n' must be"),
        ({"CNI_CONTAINERID": "é"}, r"CNI_CONTAINERID: '\xe9' must be"),
        ({"CNI_IFNAME": "a" * 16}, "CNI_IFNAME: aaaaaaaaaaaaaaaa is longer than 15 bytes"),
        ({"CNI_IFNAME": ".."}, "CNI_IFNAME: .. must not be"),
        ({"CNI_IFNAME": "a/b"}, "CNI_IFNAME: a/b must not be"),
        ({"CNI_IFNAME": "a b"}, "CNI_IFNAME: a b must not be"),
        ({"CNI_ARGS": "A"}, "CNI_ARGS: A is no KEY=VALUE pair"),
        ({"CNI_ARGS": "A=1;"}, "CNI_ARGS: '' is no KEY=VALUE pair"),
        ({"CNI_ARGS": "=1"}, "CNI_ARGS: =1 is no KEY=VALUE pair"),
        ({"CNI_ARGS": "\udcff"}, r"CNI_ARGS: '\udcff' is no KEY=VALUE pair"),
    ],
)
def test_environment_is_refused_naming_the_variable_when_malformed(
    variables: dict[str, str], message: str
) -> None:
    assert environment_refusal({**ADD, **variables}).startswith(message)


@pytest.mark.parametrize("name", ["a", "eth0", "a" * 15, "a.b", "...", "éééé", "veth%d"])
def test_ifname_is_valid_when_the_kernel_takes_it(name: str) -> None:
    assert ifname_fault(name) is None


@pytest.mark.parametrize(
    "name", ["", ".", "..", "a" * 16, "é" * 8, "a:1", "a/1", "a\t", "a\xa0b", "a\0", "\udcff" * 16]
)
def test_ifname_is_faulty_when_the_kernel_refuses_it(name: str) -> None:
    assert ifname_fault(name)


@given(
    st.dictionaries(
        st.sampled_from(
            ["CNI_COMMAND", "CNI_CONTAINERID", "CNI_NETNS", "CNI_IFNAME", "CNI_ARGS", "CNI_PATH"]
        ),
        st.sampled_from([*COMMANDS, "a"]) | st.text(st.characters()),
    )
)
def test_parsing_raises_only_malformed_for_any_variables(variables: dict[str, str]) -> None:
    with contextlib.suppress(MalformedError):
        parse_environment(variables)
