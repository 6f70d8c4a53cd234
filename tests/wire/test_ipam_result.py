"""Output of IPAM plugins, as real ones print it in every version, and results that no interface can have."""

from __future__ import annotations

import contextlib
import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from k8s_rdma.core.step import Route
from k8s_rdma.errors import MalformedError, Reason
from k8s_rdma.wire.ipam_result import NO_DNS, Dns, IpamResult, IpConfig, decode_ipam_result

HOST_LOCAL = sorted((Path(__file__).parents[1] / "recordings" / "ipam").glob("host-local-*.json"))


@pytest.mark.parametrize("path", HOST_LOCAL, ids=lambda path: path.stem)
def test_ipam_result_is_read_as_host_local_prints_it(path: Path) -> None:
    result = decode_ipam_result(path.read_bytes())
    assert result == IpamResult(
        ips=(IpConfig("10.55.206.2/24", "10.55.206.1"), IpConfig("fd00:7::1/64", "fd00:7::ff")),
        routes=(Route("0.0.0.0/0", "10.55.206.1"), Route("fd00::/8", "fd00:7::9")),
        dns=Dns(nameservers=("10.0.0.10",), search=("a.b", "c")),
    )
    assert result.addresses == ("10.55.206.2/24", "fd00:7::1/64")


def test_ipam_result_is_empty_when_the_plugin_gave_no_address() -> None:
    nulls = b'{"cniVersion":"1.0.0","ips":null,"routes":null,"dns":null,"ip4":null,"extra":1}'
    assert decode_ipam_result(nulls) == IpamResult() == decode_ipam_result(b"{}")
    assert IpamResult().dns is NO_DNS


@pytest.mark.parametrize(
    ("ips", "dst", "gateway"),
    [
        ([{"address": "10.0.0.2/8", "gateway": "10.0.0.1"}], "0.0.0.0/0", "10.0.0.1"),
        ([{"address": "10.0.0.2/8", "gateway": "10.0.0.1"}], "::/0", None),
        ([{"address": "10.0.0.2/8", "gateway": ""}], "0.0.0.0/0", None),
        ([{"address": "10.0.0.2/8"}], "0.0.0.0/0", None),
        ([], "192.0.2.1/24", None),
    ],
)
def test_route_without_a_gateway_uses_that_of_its_family(
    ips: list[object], dst: str, gateway: str | None
) -> None:
    printed = json.dumps({"ips": ips, "routes": [{"dst": dst}]}).encode()
    assert decode_ipam_result(printed).routes == (Route(dst, gateway),)


@pytest.mark.parametrize(
    ("route", "gateway"),
    [
        ({"dst": "10.9.0.0/16", "scope": 253}, None),
        ({"dst": "10.9.0.0/16", "scope": 254}, None),
        ({"dst": "10.9.0.0/16", "scope": 200}, "10.0.0.1"),
        ({"dst": "10.9.0.0/16", "gw": "10.0.0.7", "scope": 0}, "10.0.0.7"),
        ({"dst": "10.9.0.0/16", "gw": "0.0.0.0"}, None),
        ({"dst": "fd01::/64", "gw": "::"}, None),
    ],
)
def test_route_on_the_link_gets_no_gateway(route: dict[str, object], gateway: str | None):
    ips = [{"address": "10.0.0.2/8", "gateway": "10.0.0.1"}, {"address": "fd00::2/64", "gateway": "fd00::1"}]
    [found] = decode_ipam_result(json.dumps({"ips": ips, "routes": [route]}).encode()).routes
    assert found.gateway == gateway


def test_route_has_the_fields_of_version_1_1_0() -> None:
    route = {
        "dst": "10.9.0.0/16",
        "mtu": 1400,
        "advmss": 1360,
        "priority": 0,
        "table": 2**32 - 1,
        "scope": 253,
    }
    assert decode_ipam_result(json.dumps({"routes": [route]}).encode()).routes == (
        Route("10.9.0.0/16", mtu=1400, advmss=1360, priority=0, table=2**32 - 1, scope=253),
    )


@pytest.mark.parametrize(
    ("printed", "named"),
    [
        (b"", "ends too early"),
        (b"ok", "no valid JSON: Expecting value at character 1"),
        (b"[]", "Expected `object`"),
        (b'{"ips":[{}]}', "`address` - at `$.ips[0]`"),
        (b'{"ips":[{"address":"10.0.0.2"}]}', "ips[0].address: 10.0.0.2 is no address with a prefix length"),
        (b'{"ips":[{"address":"10.0.0.2/33"}]}', "ips[0].address: 10.0.0.2/33 is no address"),
        (b'{"ips":[{"address":"10.0.0.2/8","gateway":"g"}]}', "ips[0].gateway: g is no address"),
        (
            b'{"ips":[{"address":"10.0.0.2/8","gateway":"fd00::1"}]}',
            "ips[0].gateway: fd00::1 is no IPv4 address",
        ),
        (
            b'{"ips":[{"address":"fd00::2/8","gateway":"10.0.0.1"}]}',
            "ips[0].gateway: 10.0.0.1 is no IPv6 address",
        ),
        (
            b'{"ips":[{"address":"10.0.0.2/8","gateway":"10.0.0.2"}]}',
            "ips[0].gateway: 10.0.0.2 is the address itself",
        ),
        (
            b'{"ips":[{"address":"0.0.0.0/0"}]}',
            "ips[0].address: 0.0.0.0/0 is no address that an interface can have",
        ),
        (
            b'{"ips":[{"address":"ff02::1/64"}]}',
            "ips[0].address: ff02::1/64 is no address that an interface can have",
        ),
        (b'{"ips":[{"address":"127.0.0.1/8"}]}', "ips[0].address: 127.0.0.1/8 is no address that"),
        (b'{"ip4":{"ip":"x/8"}}', "ips[0].address: x/8 is no address"),
        (b'{"routes":[{"dst":"::/0","priority":-1}]}', "`int` >= 0 - at `$.routes[0].priority`"),
        (b'{"routes":[{"dst":"::/0","table":4294967296}]}', "`int` <= 4294967295 - at `$.routes[0].table`"),
        (b'{"routes":[{"dst":"::/0","scope":256}]}', "`int` <= 255 - at `$.routes[0].scope`"),
        (b'{"routes":[{"dst":"default"}]}', "routes[0].dst: default is no destination"),
        (b'{"routes":[{"dst":"0.0.0.0/0","gw":"g"}]}', "routes[0].gw: g is no address"),
        (b'{"routes":[{"dst":"::/0","gw":"10.0.0.1"}]}', "routes[0].gw: 10.0.0.1 is no IPv6 address"),
    ],
)
def test_ipam_result_is_refused_naming_the_field_when_malformed(printed: bytes, named: str) -> None:
    with pytest.raises(MalformedError) as refused:
        decode_ipam_result(printed)
    assert refused.value.reason is Reason.IPAM_FAILURE
    assert refused.value.message.startswith("IPAM result: ")
    assert named in refused.value.message


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
    with contextlib.suppress(MalformedError):
        decode_ipam_result(printed)
