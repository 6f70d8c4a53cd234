"""Addresses of a pod's interfaces: by scripted plugins, and by Debian's host-local and static."""

from __future__ import annotations

import asyncio
import json
import os
import re
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from agent.scripted_plugin import ERROR, MODERN, ScriptedPlugin, addresses
from factories import PF0, interface, receipt
from k8s_rdma.agent.plugins.execution import Plugins
from k8s_rdma.agent.plugins.ipam import MAX_PARALLEL, IpamPlugins, addressing
from k8s_rdma.core.ledger import DelegatedPlugin
from k8s_rdma.core.options import InterfaceOptions
from k8s_rdma.core.step import Route
from k8s_rdma.core.types import VfDriver
from k8s_rdma.errors import K8sRdmaError, Reason
from k8s_rdma.wire.ipam_result import Dns, IpamResult, IpConfig

PLUGINS = os.environ.get("CNI_PATH") or "/opt/cni/bin:/usr/lib/cni"
needs_plugins = pytest.mark.skipif(
    None in [shutil.which(name, path=PLUGINS) for name in ("host-local", "static")],
    reason="needs Debian's containernetworking-plugins",
)
GIVES = addresses("10.0.0.5/24", "fd00::5/64", routes=[{"dst": "0.0.0.0/0", "gw": "10.0.0.1"}])
COUNTS = addresses("10.0.0.${CNI_IFNAME#rdma}/24").replace("'", '"').replace('"', r"\"")
COUNTS = 'echo "' + COUNTS.removeprefix(r"echo \"").removesuffix(r"\"") + '"'
"""An address that ends with the interface's number."""

GIVEN = b'{"cniVersion":"1.1.0","ips":[{"address":"10.1.0.9/24","gateway":"10.1.0.1"}]}'


@pytest.fixture
def script(tmp_path):
    return ScriptedPlugin(tmp_path)


@pytest.fixture
def ipams():
    return IpamPlugins(Plugins(host_root=Path("/"), timeout_s=30))


def pod_with(count, ipam=None, **changes):
    """A receipt with so many interfaces: rdma1, rdma2, ..."""
    interfaces = [interface(PF0, index, f"rdma{index + 1}") for index in range(count)]
    return receipt("c1", *interfaces, ipam=ipam, **changes)


def with_options(of, ifname, **options):
    interfaces = [
        replace(each, options=InterfaceOptions(**options)) if each.ifname == ifname else each
        for each in of.interfaces
    ]
    return replace(of, interfaces=tuple(interfaces))


def refusal(coroutine):
    with pytest.raises(K8sRdmaError) as caught:
        asyncio.run(coroutine)
    return caught.value


def test_each_interface_is_a_call_under_its_own_name(script, ipams):
    script.speak(MODERN, ADD=COUNTS)
    results = asyncio.run(ipams.add(pod_with(12, script.plugin(ipam={"type": "scripted"}))))
    assert list(results) == [f"rdma{number}" for number in range(1, 13)]
    assert [result.addresses for result in results.values()] == [(f"10.0.0.{n}/24",) for n in range(1, 13)]
    calls = script.calls("ADD")
    assert sorted(call.ifname for call in calls) == sorted(results)
    assert {(call.container, call.netns) for call in calls} == {("c1", "/run/netns/c1")}
    assert calls[0].stdin == {"cniVersion": "1.1.0", "name": "net", "ipam": {"type": "scripted"}}


def test_several_calls_run_at_a_time_and_no_more_than_that(script, ipams):
    count = script.directory / "running"
    count.mkdir()
    meets = (
        f"touch {count}/$CNI_IFNAME; "
        f"while [ $(ls {count} | wc -l) -lt {MAX_PARALLEL} ]; do :; done; "
        f"ls {count} | wc -l >{script.directory}/$CNI_IFNAME; "
        # No call ends before all that run now have counted.
        f"while [ $(ls -d {script.directory}/rdma* | wc -l) -lt {MAX_PARALLEL} ]; do :; done; {COUNTS}"
    )
    script.speak(MODERN, ADD=meets)
    asyncio.run(ipams.add(pod_with(MAX_PARALLEL + 1, script.plugin())))
    seen = [int(path.read_text()) for path in script.directory.glob("rdma*")]
    assert sorted(seen) == [MAX_PARALLEL] * MAX_PARALLEL + [MAX_PARALLEL + 1]


@pytest.mark.parametrize(
    ("theirs", "version"),
    [(("0.1.0", "0.2.0"), "0.2.0"), (("0.3.1", "0.4.0", "1.0.0"), "1.0.0"), (MODERN, "1.1.0")],
)
def test_plugin_is_called_at_its_highest_version_whatever_was_recorded(script, ipams, theirs, version):
    script.speak(theirs, ADD=GIVES)
    asyncio.run(ipams.add(pod_with(1, script.plugin(cniVersion="0.3.1"))))
    assert script.calls("ADD")[0].stdin["cniVersion"] == version


def test_addresses_and_routes_are_those_of_the_plan(script, ipams):
    script.speak(MODERN, ADD=GIVES)
    results = asyncio.run(ipams.add(pod_with(1, script.plugin())))
    assert addressing(results) == {
        "rdma1": (("10.0.0.5/24", "fd00::5/64"), (Route("0.0.0.0/0", "10.0.0.1"),))
    }


def test_interface_gets_addresses_of_the_network_that_it_names(tmp_path, ipams):
    ours, theirs = ScriptedPlugin(tmp_path, "ours"), ScriptedPlugin(tmp_path, "theirs")
    ours.speak(MODERN, ADD=addresses("10.0.0.1/24"))
    theirs.speak(("1.0.0",), ADD=addresses("10.7.0.1/24"))
    pod = pod_with(3, ours.plugin(), ipams=(("storage", theirs.plugin(name="net-storage")),))
    pod = with_options(pod, "rdma2", network="storage")
    pod = with_options(pod, "rdma3", driver=VfDriver.VFIO_PCI)
    results = asyncio.run(ipams.add(pod))
    assert {name: result.addresses for name, result in results.items()} == {
        "rdma1": ("10.0.0.1/24",),
        "rdma2": ("10.7.0.1/24",),
    }
    assert [(call.ifname, call.stdin["name"]) for call in theirs.calls("ADD")] == [("rdma2", "net-storage")]
    asyncio.run(ipams.delete(pod))
    assert [call.ifname for call in ours.calls("DEL")] == ["rdma1"]
    assert [call.ifname for call in theirs.calls("DEL")] == ["rdma2"]


def test_no_plugin_is_called_for_interfaces_without_addresses(ipams):
    assert asyncio.run(ipams.add(pod_with(2))) == {}
    asyncio.run(ipams.delete(pod_with(2)))
    asyncio.run(ipams.check(pod_with(2), {}))


@pytest.mark.parametrize("gives", ["{}", '{"ips":[]}', '{"ips":null,"routes":[{"dst":"10.0.0.0/8"}]}'])
def test_add_fails_when_the_plugin_gives_no_address(script, ipams, gives):
    script.speak(MODERN, ADD=f"echo '{gives}'")
    error = refusal(ipams.add(pod_with(1, script.plugin())))
    assert error.message.startswith("plugin scripted: ADD of rdma1: it gave no address; ")
    assert error.reason is Reason.IPAM_FAILURE


def test_add_fails_when_two_interfaces_get_one_address(script, ipams):
    script.speak(MODERN, ADD=GIVES)
    error = refusal(ipams.add(pod_with(2, script.plugin())))
    assert error.message.startswith("plugin scripted: it gave 10.0.0.5/24 to both rdma1 and rdma2; ")


def test_one_address_in_two_networks_is_two_addresses(tmp_path, ipams):
    script = ScriptedPlugin(tmp_path)
    script.speak(MODERN, ADD=GIVES)
    pod = pod_with(2, script.plugin(), ipams=(("other", script.plugin(name="net-other")),))
    assert len(asyncio.run(ipams.add(with_options(pod, "rdma2", network="other")))) == 2


def test_add_fails_naming_the_field_when_the_result_is_malformed(script, ipams):
    script.speak(MODERN, ADD=addresses("10.0.0.5"))
    error = refusal(ipams.add(pod_with(1, script.plugin())))
    assert error.message == (
        "plugin scripted: ADD of rdma1: IPAM result: "
        "ips[0].address: 10.0.0.5 is no address with a prefix length"
    )


def test_add_begins_no_further_call_after_a_failure_and_ends_those_under_way(script, ipams):
    done = script.directory / "done"
    slow = f"while [ ! -e {script.directory}/failed ]; do :; done; touch {done}-$CNI_IFNAME; {COUNTS}"
    fails = f"touch {script.directory}/failed; {ERROR}"
    script.speak(MODERN, ADD=f"if [ $CNI_IFNAME = rdma2 ]; then {fails}; else {slow}; fi")
    error = refusal(ipams.add(pod_with(MAX_PARALLEL + 9, script.plugin())))
    assert error.message == "plugin scripted: ADD of rdma2: no; more"
    assert len(script.calls("ADD")) == len(list(script.directory.glob("done-*"))) + 1 < 2 * MAX_PARALLEL


def test_delete_tries_every_interface_and_names_those_that_failed(script, ipams):
    script.speak(MODERN, DEL=f"case $CNI_IFNAME in rdma2|rdma4) {ERROR};; esac")
    error = refusal(ipams.delete(pod_with(6, script.plugin())))
    found = re.fullmatch(
        r"container c1: addresses of (.*) not given back: plugin .*: no; more", error.message
    )
    assert set(found[1].split(", ")) == {"rdma2", "rdma4"}
    assert "DEL of rdma2" in error.details
    assert "DEL of rdma4" in error.details
    assert error.reason is Reason.IPAM_FAILURE
    assert len(script.calls("DEL")) == 6


def test_delete_asks_no_more_of_a_plugin_that_does_not_answer(script):
    script.speak(MODERN, DEL="case $CNI_IFNAME in rdma1) ;; *) exec sleep 1000;; esac")
    ipams = IpamPlugins(Plugins(host_root=Path("/"), timeout_s=2))
    error = refusal(ipams.delete(pod_with(3 * MAX_PARALLEL, script.plugin())))
    assert len(script.calls("DEL")) == MAX_PARALLEL + 1
    found = re.fullmatch(
        r"container c1: addresses of (.*) not given back: .*: no answer within 2 s", error.message
    )
    assert set(found[1].split(", ")) == {f"rdma{number}" for number in range(2, 3 * MAX_PARALLEL + 1)}


def test_delete_gives_advice_when_the_plugin_is_no_longer_on_the_node(script, ipams):
    script.file.unlink()
    error = refusal(ipams.delete(pod_with(3, script.plugin())))
    assert error.message == (
        "container c1: addresses of rdma1, rdma2, rdma3 not given back: plugin 'scripted' is not in CNI_PATH "
        f"'/nowhere:{script.file.parent}' (below /); install it on the node"
    )
    assert error.details.count("install it") == 1


def test_delete_is_at_the_version_of_the_plugin_that_is_there_now(script, ipams):
    script.speak(("1.0.0",), ADD=GIVES)
    pod = pod_with(1, script.plugin())
    asyncio.run(ipams.add(pod))
    script.speak(("0.4.0",))
    asyncio.run(ipams.delete(pod))
    assert [call.stdin["cniVersion"] for call in script.calls("ADD", "DEL")] == ["1.0.0", "0.4.0"]


def test_check_passes_the_result_of_every_interface(script, ipams):
    script.speak(("0.4.0",))
    asyncio.run(ipams.check(pod_with(2, script.plugin()), {"rdma1": GIVEN}))
    seen = {call.ifname: call.stdin for call in script.calls("CHECK")}
    ip = {"version": "4", "address": "10.1.0.9/24", "gateway": "10.1.0.1"}
    given = {"cniVersion": "0.4.0", "ips": [ip]}
    assert seen["rdma1"] == {"cniVersion": "0.4.0", "name": "net", "prevResult": given}
    assert "prevResult" not in seen["rdma2"]


def test_check_fails_with_the_plugin_and_passes_if_it_has_no_check(script, ipams):
    pod = pod_with(2, script.plugin())
    script.speak(MODERN, CHECK=ERROR)
    assert refusal(ipams.check(pod, {})).message.endswith("no; more")
    script.speak(("0.3.1",), CHECK=ERROR)
    asyncio.run(ipams.check(pod, {}))


def test_check_passes_if_the_plugin_lacks_it_despite_its_version(script, ipams):
    """As whereabouts answers, whose pods would not start on CRI-O."""
    error = '{"cniVersion": "1.0.0", "code": 999, "msg": "CNI CHECK method is not implemented"}'
    script.speak(MODERN, CHECK=f"echo '{error}'; exit 1")
    asyncio.run(ipams.check(pod_with(2, script.plugin()), {}))
    assert len(script.calls("CHECK")) == 2


def test_collect_lists_our_interfaces_of_this_plugin_and_network(tmp_path, ipams):
    script, other = ScriptedPlugin(tmp_path), ScriptedPlugin(tmp_path, "other")
    mine = pod_with(2, script.plugin(), ipams=(("storage", script.plugin(name="net-storage")),))
    held = [
        with_options(mine, "rdma2", network="storage"),
        replace(mine, attachment=replace(mine.attachment, container="c2")),
        pod_with(3, other.plugin()),
        pod_with(1),
    ]
    asyncio.run(ipams.collect([script.plugin()], held))
    [call] = script.calls("GC")
    valid = [
        {"containerID": "c1", "ifname": "rdma1"},
        {"containerID": "c2", "ifname": "rdma1"},
        {"containerID": "c2", "ifname": "rdma2"},
    ]
    assert call.stdin["cni.dev/valid-attachments"] == call.stdin["cni.dev/attachments"] == valid
    assert call.stdin["cniVersion"] == "1.1.0"
    assert (call.container, call.ifname) == ("", "")
    assert not other.calls("GC")


def test_collect_calls_no_plugin_without_gc(script, ipams):
    script.speak(("0.4.0", "1.0.0"), GC=ERROR)
    asyncio.run(ipams.collect([script.plugin()], []))
    assert not script.calls("GC")


# Debian's own


def host_local(directory, *subnets, name="net-rdma", **ipam):
    ranges = [[{"subnet": subnet}] for subnet in subnets]
    config = {"type": "host-local", "ranges": ranges, "dataDir": str(directory / "leases")} | ipam
    return DelegatedPlugin(
        plugin="host-local",
        netconf=json.dumps({"name": name, "ipam": config}).encode(),
        cni_path=PLUGINS,
        cni_args="IgnoreUnknown=1",
    )


def leases(directory):
    """Who has which address: container and interface."""
    files = [
        path for path in (directory / "leases").glob("*/*") if path.name[0].isdigit() or ":" in path.name
    ]
    return {path.name: tuple(path.read_text().split()) for path in files}


@needs_plugins
def test_host_local_leases_both_families_and_takes_them_back(tmp_path, ipams):
    routes = [{"dst": "0.0.0.0/0"}, {"dst": "fd00:9::/48", "gw": "fd00:7::9"}]
    ipam = host_local(tmp_path, "10.55.206.0/24", "fd00:7::/64", routes=routes)
    pod = pod_with(20, ipam)
    results = asyncio.run(ipams.add(pod))
    assert len({address for result in results.values() for address in result.addresses}) == 40
    assert all(
        result.routes == (Route("0.0.0.0/0", "10.55.206.1"), Route("fd00:9::/48", "fd00:7::9"))
        for result in results.values()
    )
    given = {
        ip.partition("/")[0]: ("c1", name) for name, result in results.items() for ip in result.addresses
    }
    assert leases(tmp_path) == given
    asyncio.run(ipams.check(pod, {}))
    asyncio.run(ipams.delete(pod))
    assert not leases(tmp_path)
    with pytest.raises(K8sRdmaError, match="plugin host-local: CHECK of rdma"):
        asyncio.run(ipams.check(pod, {}))
    asyncio.run(ipams.delete(pod))


@needs_plugins
def test_host_local_without_free_addresses_leaves_no_lease_when_undone(tmp_path, ipams):
    pod = pod_with(20, host_local(tmp_path, "10.0.0.0/28"))
    error = refusal(ipams.add(pod))
    assert "no IP addresses available in range set: 10.0.0.1-10.0.0.14" in error.message
    assert leases(tmp_path)
    asyncio.run(ipams.delete(pod))
    assert not leases(tmp_path)


@needs_plugins
def test_host_local_that_knows_no_gc_is_not_called_for_it(tmp_path, ipams):
    ipam = host_local(tmp_path, "10.0.0.0/28")
    asyncio.run(ipams.add(pod_with(1, ipam)))
    asyncio.run(ipams.collect([ipam], []))
    assert len(leases(tmp_path)) == 1


def static(**ipam):
    return DelegatedPlugin(
        plugin="static",
        netconf=json.dumps({"name": "net", "ipam": {"type": "static"}} | ipam).encode(),
        cni_path=PLUGINS,
        cni_args="IgnoreUnknown=1",
    )


@needs_plugins
def test_static_gives_configured_addresses_and_checks_them(ipams):
    configured = {
        "type": "static",
        "addresses": [{"address": "10.1.0.9/24", "gateway": "10.1.0.1"}, {"address": "fd00:1::9/64"}],
        "routes": [{"dst": "10.9.0.0/16"}],
        "dns": {"nameservers": ["10.1.0.53"], "domain": "a.b"},
    }
    pod = pod_with(1, static(ipam=configured))
    results = asyncio.run(ipams.add(pod))
    assert results["rdma1"] == IpamResult(
        ips=(IpConfig("10.1.0.9/24", "10.1.0.1"), IpConfig("fd00:1::9/64")),
        routes=(Route("10.9.0.0/16", "10.1.0.1"),),
        dns=Dns(nameservers=("10.1.0.53",), domain="a.b"),
    )
    asyncio.run(ipams.check(pod, {"rdma1": GIVEN}))
    with pytest.raises(K8sRdmaError, match="plugin static: CHECK of rdma1"):
        asyncio.run(ipams.check(pod, {"rdma1": GIVEN.replace(b'"10.1.0.1"', b'"10.1.0.2"')}))
    asyncio.run(ipams.delete(pod))


@needs_plugins
@pytest.mark.parametrize(
    "asked",
    [{"runtimeConfig": {"ips": ["10.1.0.7/24"]}}, {"args": {"cni": {"ips": ["10.1.0.7/24"]}}}],
    ids=lambda asked: next(iter(asked)),
)
def test_static_gives_requested_addresses_of_the_call(ipams, asked):
    pod = pod_with(1, static(capabilities={"ips": True}, **asked))
    assert asyncio.run(ipams.add(pod))["rdma1"].addresses == ("10.1.0.7/24",)


@needs_plugins
def test_static_cannot_serve_two_interfaces_in_one_network(ipams):
    configured = {"type": "static", "addresses": [{"address": "10.1.0.9/24"}]}
    error = refusal(ipams.add(pod_with(2, static(ipam=configured))))
    assert "it gave 10.1.0.9/24 to both rdma1 and rdma2" in error.message


@needs_plugins
def test_static_without_addresses_is_refused(ipams):
    error = refusal(ipams.add(pod_with(1, static())))
    assert "it gave no address" in error.message
