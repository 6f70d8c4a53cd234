"""containerd's part in a pod's network: chains of plugins, and namespaces."""

from __future__ import annotations

import asyncio
import ipaddress
import json
import shutil
import subprocess
from pathlib import Path

import pytest

from demo.cluster.annotated_pod import ANNOTATIONS, CNI_PATH, POD
from k8s_rdma.errors import KernelError
from k8s_rdma_demo.cluster.cni_plugin import CniError
from k8s_rdma_demo.cluster.cni_runtime import (
    AttachError,
    CniRuntime,
    create_namespace_at,
    is_namespace,
    remove_namespace_at,
)

pytestmark = pytest.mark.anyio


def in_namespace(path: Path | str, *command: str) -> bytes:
    return subprocess.run(["nsenter", f"--net={path}", *command], capture_output=True, check=True).stdout


# The chain


async def test_each_plugin_gets_the_result_before_it_when_added(runtime, plugins):
    sandbox = await runtime.add(POD)
    first, second = plugins.calls()
    assert [first.short, second.short] == ["ADD first", "ADD second"]
    assert "prevResult" not in first.stdin
    assert [ip["address"] for ip in second.stdin["prevResult"]["ips"]] == ["10.0.0.1/24"]
    assert sandbox.ips == ["10.0.0.1", "10.0.0.2"]
    for call in (first, second):
        assert call.stdin["runtimeConfig"] == {"io.kubernetes.cri.pod-annotations": ANNOTATIONS}
        assert (call.stdin["name"], call.stdin["cniVersion"]) == ("net", "1.0.0")


async def test_chain_is_reversed_and_gets_the_last_result_when_deleted(runtime, plugins):
    sandbox = await runtime.add(POD)
    await runtime.delete(sandbox)
    calls = plugins.calls()[2:]
    assert [call.short for call in calls] == ["DEL second", "DEL first"]
    assert [call.stdin["prevResult"] for call in calls] == [sandbox.result] * 2
    assert [call.env["CNI_NETNS"] for call in calls] == [sandbox.netns] * 2
    assert [call.stdin["runtimeConfig"] for call in calls] == [
        {"io.kubernetes.cri.pod-annotations": ANNOTATIONS}
    ] * 2
    assert not is_namespace(Path(sandbox.netns))
    assert list(runtime.netns_dir.iterdir()) == []


async def test_failed_add_is_followed_by_del_of_the_whole_chain_without_result(runtime, plugins):
    plugins.fail("ADD", "second", "no free VF", details="3 of 8")
    with pytest.raises(AttachError) as failed:
        await runtime.add(POD)
    assert str(failed.value) == 'plugin type="second" failed (add): no free VF; 3 of 8'
    assert (failed.value.code, failed.value.leftover) == (100, None)
    assert plugins.short() == ["ADD first", "ADD second", "DEL second", "DEL first"]
    assert all("prevResult" not in call.stdin for call in plugins.calls()[2:])
    assert len({call.env["CNI_NETNS"] for call in plugins.calls()}) == 1
    assert list(runtime.netns_dir.iterdir()) == []


async def test_sandbox_is_left_for_delete_when_a_failed_add_cannot_be_taken_back(runtime, plugins):
    plugins.fail("ADD", "second", "no")
    plugins.fail("DEL", "first", "not yet")
    with pytest.raises(AttachError) as failed:
        await runtime.add(POD)
    assert is_namespace(Path(failed.value.leftover.netns))
    plugins.on("DEL", "first", "")
    await runtime.delete(failed.value.leftover)
    assert plugins.short()[-2:] == ["DEL second", "DEL first"]
    assert list(runtime.netns_dir.iterdir()) == []


async def test_pod_without_an_address_is_refused_and_taken_back_with_its_result(runtime, plugins):
    (plugins.directory / "second.result").write_text('{"cniVersion": "1.0.0"}')
    with pytest.raises(AttachError, match="failed to find network info for sandbox"):
        await runtime.add(POD)
    assert plugins.short()[2:] == ["DEL second", "DEL first"]
    assert plugins.calls()[2].stdin["prevResult"] == {"cniVersion": "1.0.0"}


async def test_failed_del_ends_the_chain_and_keeps_the_namespace(runtime, plugins):
    sandbox = await runtime.add(POD)
    plugins.fail("DEL", "second", "busy")
    with pytest.raises(CniError) as failed:
        await runtime.delete(sandbox)
    assert str(failed.value) == 'plugin type="second" failed (delete): busy'
    assert plugins.short()[2:] == ["DEL second"]
    assert is_namespace(Path(sandbox.netns))
    plugins.on("DEL", "second", "")
    await runtime.delete(sandbox)
    assert plugins.short()[3:] == ["DEL second", "DEL first"]


async def test_netns_is_empty_when_the_namespace_has_vanished(runtime, plugins):
    sandbox = await runtime.add(POD)
    remove_namespace_at(Path(sandbox.netns))
    await runtime.delete(sandbox)
    await runtime.delete(sandbox)
    assert [call.env["CNI_NETNS"] for call in plugins.calls()[2:]] == [""] * 4


async def test_del_uses_the_conflist_of_now(runtime, plugins):
    sandbox = await runtime.add(POD)
    plugins.conflist("first", version="1.1.0")
    await runtime.delete(sandbox)
    assert plugins.short()[2:] == ["DEL first"]
    assert plugins.calls()[2].stdin["prevResult"]["cniVersion"] == "1.1.0"


async def test_del_gets_no_result_when_the_version_is_before_0_4_0(runtime, plugins):
    plugins.conflist("first", version="0.3.1")
    await runtime.delete(await runtime.add(POD))
    assert "prevResult" not in plugins.calls()[1].stdin


async def test_check_gets_the_last_result_in_order(runtime, plugins):
    sandbox = await runtime.add(POD)
    await runtime.check(sandbox)
    calls = plugins.calls()[2:]
    assert [call.short for call in calls] == ["CHECK first", "CHECK second"]
    assert [call.stdin["prevResult"] for call in calls] == [sandbox.result] * 2
    plugins.fail("CHECK", "first", "gone")
    with pytest.raises(CniError, match="gone"):
        await runtime.check(sandbox)
    plugins.conflist("first", disableCheck=True)
    await runtime.check(sandbox)
    plugins.conflist("first", version="0.3.1")
    with pytest.raises(CniError, match="does not support the CHECK command"):
        await runtime.check(sandbox)


@pytest.mark.parametrize(("version", "asked"), [("1.0.0", 0), ("1.1.0", 2)])
async def test_status_and_gc_are_called_from_version_1_1_0_on(runtime, plugins, version, asked):
    plugins.conflist("first", "second", version=version)
    await runtime.status()
    await runtime.gc([])
    assert len(plugins.calls()) == 2 * asked


async def test_status_fails_with_the_plugins_own_words(runtime, plugins):
    plugins.conflist("first", version="1.1.0")
    plugins.fail("STATUS", "first", "not ready", code=50, details="no agent")
    with pytest.raises(CniError) as failed:
        await runtime.status()
    assert (str(failed.value), failed.value.code) == ("not ready; no agent", 50)


async def test_gc_names_attachments_in_use_and_calls_every_plugin(runtime, plugins):
    plugins.conflist("first", "second", version="1.1.0")
    sandbox = await runtime.add(POD)
    plugins.fail("GC", "first", "a")
    with pytest.raises(CniError, match=r"^a$"):
        await runtime.gc([sandbox])
    attachments = [{"containerID": sandbox.container_id, "ifname": "eth0"}]
    calls = plugins.calls()[2:]
    assert [call.short for call in calls] == ["GC first", "GC second"]
    for call in calls:
        assert call.stdin["cni.dev/attachments"] == attachments
        assert call.stdin["cni.dev/valid-attachments"] == attachments
        assert call.env["CNI_CONTAINERID"] == ""


async def test_conflist_that_cannot_be_read_is_an_error_of_the_pod(runtime, plugins):
    runtime.conflist.unlink()
    with pytest.raises(AttachError, match="cni config load failed") as failed:
        await runtime.add(POD)
    assert failed.value.leftover is not None
    remove_namespace_at(Path(failed.value.leftover.netns))


# Namespaces


def test_namespace_is_made_with_loopback_up_and_removed(netns_dir):
    path = netns_dir / "cni-1"
    create_namespace_at(path)
    assert is_namespace(path)
    links = json.loads(in_namespace(path, "ip", "-j", "link"))
    assert [link["ifname"] for link in links] == ["lo"]
    assert "UP" in links[0]["flags"]
    remove_namespace_at(path)
    assert not path.exists()
    remove_namespace_at(path)


def test_namespace_is_refused_when_something_is_at_its_path(netns_dir):
    netns_dir.mkdir(exist_ok=True)
    (netns_dir / "taken").write_text("kept")
    with pytest.raises(KernelError, match="taken"):
        create_namespace_at(netns_dir / "taken")
    assert (netns_dir / "taken").read_text() == "kept"
    assert not is_namespace(netns_dir / "taken")
    assert not is_namespace(netns_dir / "nowhere")


def test_own_thread_stays_in_its_namespace_when_one_is_made(netns_dir):
    own = Path("/proc/thread-self/ns/net")
    before = own.stat().st_ino
    create_namespace_at(netns_dir / "cni-2")
    assert own.stat().st_ino == before
    assert (netns_dir / "cni-2").stat().st_ino != before


# Real plugins


@pytest.fixture
def node(netns_dir, tmp_path):
    """A node of its own: a namespace, and plugins that run in it."""
    create_namespace_at(netns_dir / "node")
    path = tmp_path / "bin"
    path.mkdir()
    for name in ("bridge", "ptp", "host-local"):
        real = shutil.which(name, path=":".join(CNI_PATH))
        if real is None:
            pytest.skip(f"no CNI plugin {name} here")
        (path / name).write_text(f"#!/bin/sh\nexec nsenter --net={netns_dir}/node {real}\n")
        (path / name).chmod(0o755)
    return path


@pytest.mark.parametrize("kind", ["bridge", "ptp"])
async def test_real_plugins_give_a_pod_an_address_and_take_it_back(node, netns_dir, tmp_path, kind):
    ipam = {
        "type": "host-local",
        "ranges": [[{"subnet": "10.244.9.0/24"}]],
        "dataDir": str(tmp_path / "ipam"),
    }
    plugin = {"type": kind, "bridge": "cni0", "isGateway": True, "ipam": ipam}
    conflist = tmp_path / "net.conflist"
    conflist.write_text(json.dumps({"cniVersion": "1.0.0", "name": "net", "plugins": [plugin]}))
    runtime = CniRuntime([node], conflist, netns_dir)
    sandbox = await runtime.add(POD)
    shown = await asyncio.to_thread(in_namespace, sandbox.netns, "ip", "-j", "-4", "address")
    eth0 = next(link for link in json.loads(shown) if link["ifname"] == "eth0")
    assert eth0["addr_info"][0]["local"] == sandbox.ips[0]
    assert ipaddress.ip_address(sandbox.ips[0]) in ipaddress.ip_network("10.244.9.0/24")
    await runtime.check(sandbox)
    await runtime.delete(sandbox)
    await runtime.delete(sandbox)
    assert not list((tmp_path / "ipam" / "net").glob("10.*"))
