"""CNI results in every version, built anew and onto recorded results of plugins before."""

from __future__ import annotations

import contextlib
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from k8s_rdma.core.step import Route
from k8s_rdma.errors import STATUS, K8sRdmaError, MalformedError, Reason
from k8s_rdma.wire.cni_result import (
    SUPPORTED_VERSIONS,
    ResultInterface,
    check_version,
    convert,
    decode_error,
    encode_error,
    encode_result,
)
from k8s_rdma.wire.cni_socket import MAX_STDOUT_BYTES, Reply, encode_reply
from k8s_rdma.wire.ipam_result import Dns, IpamResult, IpConfig

RECORDINGS = Path(__file__).parents[1] / "recordings"
ADDS = sorted((RECORDINGS / "cni").glob("*-ADD-*.json"))

NETNS = "/var/run/netns/n1"
V4 = IpConfig("10.55.206.2/24", "10.55.206.1")
V6 = IpConfig("fd00:7::2/64")
FIRST = ResultInterface(
    name="rdma0",
    mac="02:00:00:00:00:01",
    sandbox=NETNS,
    ipam=IpamResult(ips=(V4, V6), routes=(Route("10.0.0.0/8", "10.55.206.1"), Route("fd00::/8"))),
)
SECOND = ResultInterface(
    name="rdma1",
    mac="02:00:00:00:00:02",
    sandbox=NETNS,
    ipam=IpamResult(ips=(IpConfig("10.55.207.2/24"),), dns=Dns(nameservers=("10.0.0.10",), search=("a.b",))),
)
BARE = ResultInterface(name="rdma2", mac="02:00:00:00:00:03", sandbox=NETNS)
OUR_INTERFACES = [
    {"name": "rdma0", "mac": "02:00:00:00:00:01", "sandbox": NETNS},
    {"name": "rdma1", "mac": "02:00:00:00:00:02", "sandbox": NETNS},
]
OUR_ROUTES = [{"dst": "10.0.0.0/8", "gw": "10.55.206.1"}, {"dst": "fd00::/8"}]
OUR_DNS = {"nameservers": ["10.0.0.10"], "search": ["a.b"]}


def our_ips(first_index: int, *, with_version: bool) -> list[dict[str, object]]:
    ips: list[dict[str, object]] = [
        {"version": "4", "interface": first_index, "address": "10.55.206.2/24", "gateway": "10.55.206.1"},
        {"version": "6", "interface": first_index, "address": "fd00:7::2/64"},
        {"version": "4", "interface": first_index + 1, "address": "10.55.207.2/24"},
    ]
    return ips if with_version else [{k: v for k, v in ip.items() if k != "version"} for ip in ips]


@pytest.mark.parametrize(
    ("version", "with_version"),
    [("0.3.0", True), ("0.3.1", True), ("0.4.0", True), ("1.0.0", False), ("1.1.0", False)],
)
def test_result_lists_interfaces_and_addresses_when_the_version_can(version: str, with_version: bool) -> None:
    assert json.loads(encode_result([FIRST, SECOND], version)) == {
        "cniVersion": version,
        "interfaces": OUR_INTERFACES,
        "ips": our_ips(0, with_version=with_version),
        "routes": OUR_ROUTES,
        "dns": OUR_DNS,
    }


@pytest.mark.parametrize("version", ["0.3.0", "0.3.1", "0.4.0", "1.0.0", "1.1.0"])
def test_result_has_mtu_pci_address_and_more_of_routes_if_the_version_can(version: str) -> None:
    route = Route("10.9.0.0/16", mtu=1400, advmss=1360, priority=0, table=7, scope=253)
    netdev = ResultInterface(
        name="rdma0", mac="02:00:00:00:00:01", sandbox=NETNS, mtu=9000, pci="0000:03:00.1",
        ipam=IpamResult(ips=(V4,), routes=(route,)),
    )  # fmt: skip
    function = ResultInterface(name="rdma1", mac="", sandbox=NETNS, pci="0000:03:00.2")
    result = json.loads(encode_result([netdev, function], version))
    details: list[dict[str, object]] = [{"mtu": 9000, "pciID": "0000:03:00.1"}, {"pciID": "0000:03:00.2"}]
    more: dict[str, object] = {"mtu": 1400, "advmss": 1360, "priority": 0, "table": 7, "scope": 253}
    if version != "1.1.0":
        details, more = [{}, {}], {}
    assert result["interfaces"] == [
        {"name": "rdma0", "mac": "02:00:00:00:00:01", "sandbox": NETNS} | details[0],
        {"name": "rdma1", "sandbox": NETNS} | details[1],
    ]
    assert result["routes"] == [{"dst": "10.9.0.0/16"} | more]
    assert [ip["interface"] for ip in result["ips"]] == [0]


@pytest.mark.parametrize("version", ["0.1.0", "0.2.0"])
def test_old_result_keeps_the_addresses_of_the_plugin_before(version: str) -> None:
    before = json.dumps({"cniVersion": version, "ip4": {"ip": "10.0.0.1/8"}, "dns": {"domain": "d"}, "x": 1})
    assert json.loads(encode_result([FIRST, SECOND], version, before.encode())) == {
        **json.loads(before),
        "ip6": {"ip": "fd00:7::2/64", "routes": [{"dst": "fd00::/8"}]},
    }


@pytest.mark.parametrize("version", ["0.1.0", "0.2.0"])
def test_result_is_the_first_address_of_each_family_when_the_version_is_old(version: str) -> None:
    assert json.loads(encode_result([FIRST, SECOND], version)) == {
        "cniVersion": version,
        "ip4": {
            "ip": "10.55.206.2/24",
            "gateway": "10.55.206.1",
            "routes": [{"dst": "10.0.0.0/8", "gw": "10.55.206.1"}],
        },
        "ip6": {"ip": "fd00:7::2/64", "routes": [{"dst": "fd00::/8"}]},
        "dns": OUR_DNS,
    }


def test_old_result_has_a_route_by_its_family_if_its_destination_has_host_bits() -> None:
    ipam = IpamResult(ips=(V4,), routes=(Route("10.1.2.3/8"), Route("fd00::1/8")))
    interface = ResultInterface(name="eth0", mac="02:00:00:00:00:01", sandbox=NETNS, ipam=ipam)
    assert json.loads(encode_result([interface], "0.2.0"))["ip4"]["routes"] == [{"dst": "10.1.2.3/8"}]


def test_result_has_no_address_for_an_interface_without_one() -> None:
    assert json.loads(encode_result([BARE], "1.0.0")) == {
        "cniVersion": "1.0.0",
        "interfaces": [{"name": "rdma2", "mac": "02:00:00:00:00:03", "sandbox": NETNS}],
        "ips": [],
        "routes": [],
    }


@pytest.mark.parametrize("version", SUPPORTED_VERSIONS)
def test_result_is_empty_when_there_is_no_interface(version: str) -> None:
    assert json.loads(encode_result([], version)) == {"cniVersion": version}


@pytest.mark.parametrize("path", ADDS, ids=lambda path: path.stem)
def test_result_extends_the_recorded_one_when_chained(path: Path) -> None:
    before: dict[str, Any] = json.loads(path.read_text())["stdin"]["prevResult"]
    version = before["cniVersion"]
    result = json.loads(encode_result([FIRST, SECOND], version, json.dumps(before).encode()))
    assert result == {
        **before,
        "interfaces": before["interfaces"] + OUR_INTERFACES,
        "ips": before["ips"] + our_ips(3, with_version=version.startswith("0.")),
        "routes": before["routes"] + OUR_ROUTES,
        "dns": OUR_DNS,
    }


@pytest.mark.parametrize("path", ADDS, ids=lambda path: path.stem)
def test_result_is_the_recorded_one_byte_by_byte_when_there_are_no_interfaces(path: Path) -> None:
    recording = json.loads(path.read_text())
    before = recording["stdout"].encode()
    assert encode_result([], recording["stdin"]["cniVersion"], before) == before


def test_result_keeps_unknown_fields_of_the_previous_one() -> None:
    before = (
        b'{"cniVersion":"1.1.0","interfaces":[{"name":"eth0","mtu":1500, "pciID":"x"}],"ips":null,'
        b'"dns":{"domain":"d"},"x-new":[1.50]}'
    )
    result = encode_result([SECOND], "1.1.0", before)
    assert b'{"name":"eth0","mtu":1500, "pciID":"x"}' in result
    decoded = json.loads(result)
    assert decoded["x-new"] == [1.5]
    assert decoded["dns"] == {"domain": "d"}
    assert decoded["ips"] == [{"interface": 1, "address": "10.55.207.2/24"}]


def test_result_extends_one_without_a_version_of_its_own() -> None:
    result = json.loads(encode_result([BARE], "0.4.0", b'{"ips":[]}'))
    assert (result["cniVersion"], len(result["interfaces"])) == ("0.4.0", 1)


@pytest.mark.parametrize(
    ("version", "before"),
    [
        ("0.4.0", "0.3.0"),
        ("0.4.0", "0.3.1"),
        ("0.3.1", "0.4.0"),
        ("1.0.0", "1.1.0"),
        ("1.1.0", "1.0.0"),
        ("0.2.0", "0.1.0"),
    ],
)
@pytest.mark.parametrize("interfaces", [[], [BARE]])
def test_previous_result_of_another_version_of_the_same_form_counts_as_one_of_this(
    version: str, before: str, interfaces: list[ResultInterface]
) -> None:
    previous = {"cniVersion": before, "dns": {"domain": "example"}, "theirs": 7}
    result = json.loads(encode_result(interfaces, version, json.dumps(previous).encode()))
    expected = {"cniVersion": version, "dns": {"domain": "example"}, "theirs": 7}
    assert {key: result[key] for key in expected} == expected


@pytest.mark.parametrize("interfaces", [[], [FIRST]])
@pytest.mark.parametrize(
    ("version", "before", "named"),
    [
        ("1.0.0", b'{"cniVersion":"0.4.0"}', "prevResult.cniVersion: 0.4.0 is not the configuration's 1.0.0"),
        ("1.0.0", b'{"cniVersion":4}', "prevResult.cniVersion: Expected `str`"),
        ("1.0.0", b"[]", "prevResult: Expected `object`"),
        ("1.0.0", b"{", "prevResult: no valid JSON: "),
        ("0.2.0", b'{"cniVersion":"1.0.0"}', "prevResult.cniVersion: 1.0.0 is not the configuration's 0.2.0"),
    ],
)
def test_previous_result_is_refused_naming_the_field_when_it_does_not_fit(
    interfaces: list[ResultInterface], version: str, before: bytes, named: str
) -> None:
    with pytest.raises(MalformedError) as refused:
        encode_result(interfaces, version, before)
    assert refused.value.reason is Reason.INVALID_NETCONF
    assert refused.value.message.startswith(f"network configuration: {named}")


@pytest.mark.parametrize("key", ["interfaces", "ips", "routes"])
def test_previous_result_is_refused_naming_the_key_when_it_holds_no_list(key: str) -> None:
    with pytest.raises(MalformedError, match=rf"prevResult\.{key}: Expected `array"):
        encode_result([FIRST], "1.0.0", json.dumps({key: {}}).encode())


@pytest.mark.parametrize("version", ["", "2.0.0", "1.0", "\ud800"])
def test_version_is_refused_when_it_is_not_supported(version: str) -> None:
    with pytest.raises(K8sRdmaError) as refused:
        encode_result([FIRST], version)
    assert refused.value.reason is Reason.INCOMPATIBLE_CNI_VERSION
    assert "1.1.0" in refused.value.details
    assert refused.value.message.encode()


@pytest.mark.parametrize("version", SUPPORTED_VERSIONS)
def test_version_is_accepted_when_it_is_supported(version: str) -> None:
    check_version(version)


@pytest.mark.parametrize("reason", Reason)
def test_error_document_holds_the_code_of_its_reason(reason: Reason) -> None:
    error = K8sRdmaError("what", reason=reason, details="more")
    assert json.loads(encode_error(error, "0.4.0")) == {
        "cniVersion": "0.4.0",
        "code": STATUS[reason].cni,
        "msg": "what",
        "details": "more",
    }


def test_error_document_is_in_the_newest_version_when_the_requested_one_is_unknown() -> None:
    document = json.loads(encode_error(K8sRdmaError("what"), "9.9.9"))
    assert document == {"cniVersion": "1.1.0", "code": 199, "msg": "what"}


def test_error_document_joins_the_lines_of_another_plugins_error() -> None:
    document = json.loads(encode_error(K8sRdmaError("plugin x: a\n  b\tc\r\n", details="a\nb"), "1.0.0"))
    assert (document["msg"], document["details"]) == ("plugin x: a b c", "a\nb")


@pytest.mark.parametrize("text", ["x", '"', "\x01", "é", "\udc80"])
def test_error_document_fits_the_frame_however_much_a_plugin_says(text: str) -> None:
    error = K8sRdmaError(text * MAX_STDOUT_BYTES, details=text * MAX_STDOUT_BYTES)
    encode_reply(Reply(exit_status=1, stdout=encode_error(error, "1.0.0")))


def test_previous_result_is_refused_when_ours_does_not_fit_beside_it() -> None:
    interface = ResultInterface(name="rdma0", mac="02:00:00:00:00:01", sandbox="/run/netns/a")
    room = MAX_STDOUT_BYTES - len(encode_result([interface], "1.0.0")) - len('"x":"",')
    fits, exceeds = (f'{{"x":"{"x" * size}"}}'.encode() for size in (room, room + 1))
    encode_reply(Reply(exit_status=0, stdout=encode_result([interface], "1.0.0", fits)))
    with pytest.raises(MalformedError, match="prevResult") as caught:
        encode_result([interface], "1.0.0", exceeds)
    assert caught.value.reason is Reason.INVALID_NETCONF


def test_result_of_a_delegate_is_refused_when_it_fits_no_more_once_it_is_converted() -> None:
    """An older version has the IP version of each address; a result beyond any frame would end the agent."""
    ip = '{"address":"10.0.0.1/32","x":"%s"}' % ("x" * 80)
    ips = ",".join([ip] * ((MAX_STDOUT_BYTES - 100) // (len(ip) + 1)))
    result = convert(f'{{"cniVersion":"1.0.0","ips":[{ips}]}}'.encode(), "0.3.1", "result of plugin bridge")
    with pytest.raises(MalformedError, match=f"{MAX_STDOUT_BYTES} at most"):
        encode_result([], "0.3.1", result)


def test_error_document_is_written_when_the_text_is_no_unicode() -> None:
    document = json.loads(encode_error(K8sRdmaError("file \udcff", details="\ud800"), "1.0.0"))
    assert (document["msg"], document["details"]) == (r"file \udcff", r"\ud800")


@pytest.mark.parametrize(
    ("stdout", "text"),
    [
        (b'{"code":1,"msg":"a","details":"b"}', "a; b"),
        (b'{"cniVersion":"0.1.0","code":1,"msg":"a"}', "a"),
        (b"", None),
        (b"panic: x", None),
        (b'{"ips":[]}', None),
    ],
)
def test_error_is_read_when_the_plugin_printed_one(stdout: bytes, text: str | None) -> None:
    assert decode_error(stdout) == text


def test_error_survives_when_encoded_and_decoded() -> None:
    assert decode_error(encode_error(K8sRdmaError("a", details="b"), "1.0.0")) == "a; b"


@given(
    st.binary()
    | st.recursive(
        st.none() | st.integers() | st.sampled_from(["10.0.0.1/8", "10.0.0.1", "::1/128", "x"]),
        lambda inner: (
            st.lists(inner, max_size=3)
            | st.dictionaries(
                st.sampled_from(["ips", "ip4", "ip", "address", "gateway", "routes", "dst", "gw"]),
                inner,
                max_size=4,
            )
        ),
    ).map(lambda found: json.dumps(found).encode())
)
def test_decoding_raises_only_malformed_for_any_bytes(printed: bytes) -> None:
    decode_error(printed)
    with contextlib.suppress(MalformedError):
        encode_result([FIRST], "1.0.0", printed)
