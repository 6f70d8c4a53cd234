"""The network configuration: recorded ones, the inherited ones, and every key that is not ours."""

from __future__ import annotations

import contextlib
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from k8s_rdma.errors import MalformedError, Reason
from k8s_rdma.wire.netconf import Attachment, NetConf, decode_netconf, ipam_of

RECORDINGS = [
    path
    for path in sorted((Path(__file__).parents[1] / "recordings" / "cni").glob("*.json"))
    if "VERSION" not in path.stem  # answered by the executable
]
LEGACY = """{"name":"mynet","type":"rit-k8s-rdma-cni-linux-amd64","ipam":{"type":"host-local",
"subnet":"10.55.206.0/24","rangeStart":"10.55.206.1","rangeEnd":"10.55.206.254",
"routes":[{"dst":"0.0.0.0/0"}],"gateway":"10.55.206.1"}}"""
PREV_RESULT = {"cniVersion": "1.0.0", "ips": []}


def text(**keys: object) -> bytes:
    return json.dumps({"cniVersion": "1.0.0", "name": "net", "type": "k8s-rdma-cni", **keys}).encode()


def recorded(path: Path) -> dict[str, Any]:
    """A recorded configuration as ours; the recorder's own key `note` is none of the specification's."""
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
        None if valid is None else tuple(Attachment(item["containerID"], item["ifname"]) for item in valid)
    )


def test_netconf_of_the_replaced_plugin_is_read() -> None:
    conf = decode_netconf(LEGACY.encode())
    assert (conf.cni_version, conf.name, conf.chained) == ("0.1.0", "mynet", False)
    assert conf.interface_names(2) == ("eth0", "eth1")
    ipam = ipam_of(LEGACY.encode())
    assert ipam is not None
    assert ipam.plugin == "host-local"
    assert json.loads(ipam.netconf) == {**json.loads(LEGACY), "cniVersion": "0.1.0"}


@pytest.mark.parametrize(
    ("keys", "names"),
    [
        ({}, ("eth0", "eth1", "eth2")),
        ({"prevResult": PREV_RESULT}, ("rdma0", "rdma1", "rdma2")),
        ({"prevResult": None}, ("eth0", "eth1", "eth2")),
        ({"interfaceNames": "net{i}"}, ("net0", "net1", "net2")),
        ({"interfaceNames": "{i}.ib", "prevResult": PREV_RESULT}, ("0.ib", "1.ib", "2.ib")),
        ({"interfaceNames": None}, ("eth0", "eth1", "eth2")),
        ({"if0name": "ib0"}, ("ib0", "eth1", "eth2")),
        ({"if0name": ""}, ("eth0", "eth1", "eth2")),
    ],
)
def test_interface_names_follow_the_pattern(keys: dict[str, object], names: tuple[str, ...]) -> None:
    conf = decode_netconf(text(**keys))
    assert conf.interface_names(3) == names
    assert conf.interface_names(1) == names[:1]
    assert conf.interface_names(0) == ()


@pytest.mark.parametrize(
    ("keys", "named"),
    [({"interfaceNames": "fourteen-chars{i}"}, "interfaceNames"), ({"if0name": "eth1"}, "if0name")],
)
def test_interface_names_are_refused_when_so_many_do_not_fit(keys: dict[str, object], named: str) -> None:
    conf = decode_netconf(text(**keys))
    conf.interface_names(1)
    with pytest.raises(MalformedError, match=f"network configuration: {named}: ") as refused:
        conf.interface_names(11)
    assert refused.value.reason is Reason.INVALID_NETCONF


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
def test_annotations_are_none_only_when_the_runtime_delivered_none(
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
        {"vlan": 0, "dpdk": {}, "ipMasq": False, "delegate": None},
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
        ({"\ud800": 1}, "Input data"),
        ({"vlan": 7}, "vlan: not supported: VFs are given without a VLAN of their own"),
        ({"dpdk": {"pci_addr": "1"}}, "dpdk: not supported: "),
        ({"ipMasq": True}, "ipMasq: not supported: "),
        ({"delegate": {"type": "bridge"}}, "delegate: not supported: list the other plugin before this one"),
        ({"cniVersion": "one"}, "cniVersion: one is no version of the form 1.0.0"),
        ({"cniVersion": "1.0"}, "cniVersion: 1.0 is no version"),
        ({"cniVersion": 1}, "Expected `str`, got `int` - at `$.cniVersion`"),
        ({"name": "../x"}, "name: ../x must be"),
        ({"name": None}, "Object missing required field `name`"),
        ({"type": None}, "Object missing required field `type`"),
        ({"interfaceNames": "net"}, "interfaceNames: net must hold {i} once"),
        ({"interfaceNames": "{i}{i}"}, "interfaceNames: {i}{i} must hold {i} once"),
        ({"interfaceNames": "a/{i}"}, "interfaceNames: a/0 must not be"),
        ({"interfaceNames": "a" * 15 + "{i}"}, f"interfaceNames: {'a' * 15}0 is longer than 15 bytes"),
        ({"if0name": "a b"}, "if0name: a b must not be"),
        ({"l2enable": "yes"}, "Expected `bool`, got `str` - at `$.l2enable`"),
        ({"runtimeConfig": []}, "Expected `object | null`, got `array` - at `$.runtimeConfig`"),
        (
            {"runtimeConfig": {"io.kubernetes.cri.pod-annotations": {"a": 1}}},
            "Expected `str`, got `int` - at `$.runtimeConfig.io.kubernetes.cri.pod-annotations[...]`",
        ),
        ({"cni.dev/valid-attachments": [{"ifname": "e"}]}, "Object missing required field `containerID`"),
    ],
)
def test_netconf_is_refused_naming_the_key_when_malformed(keys: dict[str, object], message: str) -> None:
    assert refusal(text(**keys)).startswith(message)


@pytest.mark.parametrize("stdin", [b"", b"[]", b"null", b"{", b"\xff", b'{"a":' + b"[" * 100_000])
def test_netconf_is_refused_when_it_is_no_json_object(stdin: bytes) -> None:
    assert refusal(stdin)


@pytest.mark.parametrize("keys", [{"note": 1}, {"vlan": 7}, {"interfacenames": "x"}])
def test_unknown_keys_pass_when_not_strict(keys: dict[str, object]) -> None:
    assert decode_netconf(text(**keys), strict=False).name == "net"


def test_decoding_is_strict_when_nothing_is_said() -> None:
    with pytest.raises(MalformedError, match="note: unknown key"):
        decode_netconf(text(note=1))


def test_ipam_is_told_whatever_else_the_configuration_holds() -> None:
    ipam = ipam_of(text(note=1, vlan=7, ipam={"type": "static"}))
    assert ipam is not None
    assert json.loads(ipam.netconf).keys() == {"cniVersion", "name", "type", "ipam"}


def test_known_keys_are_checked_all_the_same_when_not_strict() -> None:
    assert refusal(text(interfaceNames="net"), strict=False).startswith("interfaceNames: ")


@pytest.mark.parametrize(
    "keys", [{}, {"ipam": None}, {"ipam": {}}, {"ipam": {"type": "host-local"}, "l2enable": True}]
)
def test_ipam_is_none_when_interfaces_get_no_addresses(keys: dict[str, object]) -> None:
    assert ipam_of(text(**keys)) is None


@pytest.mark.parametrize(
    ("version", "asked"), [("1.1.0", "1.0.0"), ("1.0.0", "1.0.0"), ("0.4.0", "0.4.0"), ("0.3.1", "0.3.1")]
)
def test_ipam_plugin_is_asked_for_a_version_it_speaks(version: str, asked: str) -> None:
    ipam = ipam_of(text(cniVersion=version, ipam={"type": "static"}))
    assert ipam is not None
    assert json.loads(ipam.netconf)["cniVersion"] == asked


def test_ipam_plugin_reads_the_configuration_without_what_is_not_for_it() -> None:
    ipam_keys = b'{"type":"host-local", "ranges":[[{"subnet":"10.0.0.0/8"}]], "x": 1.50}'
    stdin = text(
        ipam="IPAM",
        dns={"nameservers": ["10.0.0.10"]},
        args={"cni": {}},
        runDir="/run/x",
        interfaceNames="x{i}",
        prevResult=PREV_RESULT,
        runtimeConfig={"ips": ["10.1.1.1/8"], "io.kubernetes.cri.pod-annotations": {"a": "b"}},
        **{"cni.dev/attachments": []},
    ).replace(b'"IPAM"', ipam_keys)
    ipam = ipam_of(stdin)
    assert ipam is not None
    assert ipam_keys in ipam.netconf
    assert json.loads(ipam.netconf) == {
        "cniVersion": "1.0.0",
        "name": "net",
        "type": "k8s-rdma-cni",
        "ipam": json.loads(ipam_keys),
        "dns": {"nameservers": ["10.0.0.10"]},
        "args": {"cni": {}},
        "runtimeConfig": {"ips": ["10.1.1.1/8"]},
    }


@pytest.mark.parametrize(
    ("ipam", "named"),
    [
        ({"subnet": "x"}, "ipam: Object missing required field `type`"),
        ({"type": "../sh"}, "ipam.type: ../sh"),
        ([], "ipam"),
    ],
)
def test_ipam_is_refused_naming_the_key_when_malformed(ipam: object, named: str) -> None:
    with pytest.raises(MalformedError, match=named.replace(".", r"\.")) as refused:
        ipam_of(text(ipam=ipam))
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
def test_decoding_raises_nothing_but_malformed_for_any_bytes(stdin: bytes, strict: bool) -> None:
    with contextlib.suppress(MalformedError):
        decode_netconf(stdin, strict=strict)
    with contextlib.suppress(MalformedError):
        ipam_of(stdin)
