"""Results of each version as those of each other, and without some of their interfaces."""

from __future__ import annotations

import contextlib
import itertools
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from k8s_rdma.errors import K8sRdmaError, MalformedError, Reason
from k8s_rdma.wire.cni_result import SUPPORTED_VERSIONS, convert, without_interfaces

INTERFACES = [{"name": "br0"}, {"name": "eth0", "sandbox": "/run/netns/n"}]
ROUTES = [{"dst": "0.0.0.0/0"}, {"dst": "fd00::/8", "gw": "fd00::1"}]
DNS = {"nameservers": ["10.0.0.10"]}
V4 = {"address": "10.0.0.5/24", "gateway": "10.0.0.1", "interface": 1}
V6 = {"address": "fd00::5/64", "interface": 1}


def result(version):
    """One result as each version has it, with a key that is unknown to all of them."""
    if version in ("0.1.0", "0.2.0"):
        return {
            "cniVersion": version,
            "ip4": {"ip": "10.0.0.5/24", "gateway": "10.0.0.1", "routes": ROUTES[:1]},
            "ip6": {"ip": "fd00::5/64", "routes": ROUTES[1:]},
            "dns": DNS,
            "x-new": [1.5],
        }
    numbered = version.startswith("0.")
    ips = [V4 | ({"version": "4"} if numbered else {}), V6 | ({"version": "6"} if numbered else {})]
    new = {"cniVersion": version, "interfaces": INTERFACES, "ips": ips, "routes": ROUTES, "dns": DNS}
    return new | {"x-new": [1.5]}


def expected(source, version):
    """The rest: an old result knows no interfaces, so that neither does its conversion."""
    wanted = result(version)
    if source in ("0.1.0", "0.2.0") and "ips" in wanted:
        del wanted["interfaces"]
        wanted["ips"] = [{key: ip[key] for key in ip if key != "interface"} for ip in wanted["ips"]]
    return wanted


@pytest.mark.parametrize(
    ("source", "version"), list(itertools.product(SUPPORTED_VERSIONS, SUPPORTED_VERSIONS))
)
def test_result_is_converted_from_each_version_to_each(source, version):
    printed = json.dumps(result(source)).encode()
    assert json.loads(convert(printed, version, "result")) == expected(source, version)


@pytest.mark.parametrize("version", SUPPORTED_VERSIONS)
def test_result_is_the_same_byte_by_byte_when_it_is_of_that_version(version):
    printed = json.dumps(result(version), indent=3).encode()
    assert convert(printed, version, "result") == printed


def test_result_without_a_version_is_read_by_its_form():
    new = b'{"ips":[{"address":"10.0.0.5/24"}],"routes":null}'
    assert json.loads(convert(new, "0.4.0", "result")) == {
        "cniVersion": "0.4.0",
        "ips": [{"address": "10.0.0.5/24", "version": "4"}],
        "routes": [],
    }
    old = b'{"ip4":{"ip":"10.0.0.5/24","routes":null},"ip6":null}'
    assert json.loads(convert(old, "1.0.0", "result")) == {
        "cniVersion": "1.0.0",
        "ips": [{"address": "10.0.0.5/24"}],
    }


def test_old_result_holds_the_first_address_of_each_family():
    ips = [{"address": address} for address in ("fd00::1/64", "10.0.0.1/8", "10.0.0.2/8", "fd00::2/64")]
    printed = json.dumps({"cniVersion": "1.0.0", "ips": ips}).encode()
    assert json.loads(convert(printed, "0.2.0", "result")) == {
        "cniVersion": "0.2.0",
        "ip4": {"ip": "10.0.0.1/8"},
        "ip6": {"ip": "fd00::1/64"},
    }


@pytest.mark.parametrize(
    ("printed", "named"),
    [
        (b"", "no valid JSON: ends too early"),
        (b"[]", "Expected `object`"),
        (b'{"cniVersion":1}', "cniVersion: Expected `str`"),
        (b'{"ips":{}}', "ips: Expected `array"),
        (b'{"ips":[{}]}', "address: '' does not appear"),
        (b'{"ips":[{"address":"x"}]}', "address: 'x' does not appear"),
        (b'{"ip4":[]}', "Expected `object`"),
    ],
)
def test_result_is_refused_naming_its_source_and_the_field(printed, named):
    with pytest.raises(MalformedError) as refused:
        convert(printed, "0.4.0", "result of plugin p")
    assert refused.value.message.startswith(f"result of plugin p: {named}")
    assert refused.value.reason is Reason.PLUGIN_FAILURE


def test_unknown_version_is_refused():
    with pytest.raises(K8sRdmaError, match=r"incompatible CNI version: .* 3\.0\.0"):
        convert(b"{}", "3.0.0", "result")


def test_interfaces_are_left_out_with_their_addresses_and_indices_are_right_again():
    before = {
        "cniVersion": "1.1.0",
        "interfaces": [
            {"name": "rdma0"},
            {"name": "eth0", "mtu": 1400},
            {"name": "rdma1"},
            {"name": "veth1"},
        ],
        "ips": [
            {"interface": 0, "address": "10.1.0.1/8"},
            {"interface": 1, "address": "10.0.0.1/8"},
            {"address": "10.2.0.1/8"},
            {"interface": 3, "address": "10.3.0.1/8", "gateway": "10.0.0.9"},
            {"interface": None, "address": "10.4.0.1/8"},
        ],
        "routes": [{"dst": "10.9.0.0/16", "mtu": 1300}],
    }
    left = json.loads(without_interfaces(json.dumps(before).encode(), {"rdma0", "rdma1"}, "prevResult"))
    assert left == before | {
        "interfaces": [{"name": "eth0", "mtu": 1400}, {"name": "veth1"}],
        "ips": [
            {"interface": 0, "address": "10.0.0.1/8"},
            {"address": "10.2.0.1/8"},
            {"interface": 1, "address": "10.3.0.1/8", "gateway": "10.0.0.9"},
            {"interface": None, "address": "10.4.0.1/8"},
        ],
    }


@pytest.mark.parametrize("before", [b'{ "interfaces": [{"name": "eth0"}]}', b"{ }", b'{"interfaces":null }'])
def test_result_is_the_same_byte_by_byte_when_no_interface_is_left_out(before):
    assert without_interfaces(before, {"rdma0"}, "prevResult") == before


@given(
    st.recursive(
        st.none() | st.integers() | st.sampled_from(["10.0.0.1/8", "::1/128", "x", "0.4.0", "eth0"]),
        lambda inner: (
            st.lists(inner, max_size=3)
            | st.dictionaries(
                st.sampled_from(
                    ["ips", "ip4", "ip", "address", "routes", "dst", "interfaces", "name", "interface"]
                ),
                inner,
                max_size=4,
            )
        ),
    ),
    st.sampled_from(SUPPORTED_VERSIONS),
)
def test_conversion_raises_only_malformed_for_any_document(document, version):
    printed = json.dumps(document).encode()
    with contextlib.suppress(MalformedError):
        convert(printed, version, "result")
    with contextlib.suppress(MalformedError):
        without_interfaces(printed, {"eth0"}, "prevResult")
