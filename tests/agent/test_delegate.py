"""A whole plugin called in our place: scripted, and Debian's bridge in real namespaces."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import subprocess
from pathlib import Path

import pytest

from agent.scripted_plugin import ERROR, MODERN, ScriptedPlugin
from contract.linux_lab import needs_namespaces
from k8s_rdma.agent.plugins.execution import Plugins, PluginTarget
from k8s_rdma.agent.plugins.ipam import Delegate
from k8s_rdma.core.ledger import DelegatedPlugin
from k8s_rdma.errors import K8sRdmaError, Reason
from k8s_rdma.wire.cni_result import SUPPORTED_VERSIONS
from network_namespaces import create_namespace

PLUGINS = os.environ.get("CNI_PATH") or "/opt/cni/bin:/usr/lib/cni"
TARGET = PluginTarget(container="c1", netns="/run/netns/c1", ifname="eth0")
RESULT = {"cniVersion": "1.0.0", "interfaces": [{"name": "eth0"}], "ips": [{"address": "10.0.0.5/24"}]}
GIVES = f"echo '{json.dumps(RESULT)}'"


@pytest.fixture
def script(tmp_path):
    return ScriptedPlugin(tmp_path)


@pytest.fixture
def delegate():
    return Delegate(Plugins(host_root=Path("/"), timeout_s=30, reason=Reason.PLUGIN_FAILURE))


def test_add_answers_in_the_runtimes_version_whatever_the_delegate_speaks(script, delegate):
    script.speak(("0.4.0", "1.0.0"), ADD=GIVES)
    plugin = script.plugin(cniVersion="1.1.0", type="scripted")
    assert json.loads(asyncio.run(delegate.add(plugin, TARGET))) == RESULT | {"cniVersion": "1.1.0"}
    [call] = script.calls("ADD")
    assert call.stdin == {"cniVersion": "1.0.0", "name": "net", "type": "scripted"}
    assert (call.container, call.netns, call.ifname) == ("c1", "/run/netns/c1", "eth0")


def test_add_is_in_the_runtimes_version_when_the_delegate_speaks_newer_ones_too(script, delegate):
    script.speak(MODERN, ADD='echo \'{"cniVersion": "0.4.0"}\'')
    assert (
        asyncio.run(delegate.add(script.plugin(cniVersion="0.4.0"), TARGET)) == b'{"cniVersion": "0.4.0"}\n'
    )
    assert script.calls("ADD")[0].stdin["cniVersion"] == "0.4.0"


def test_add_fails_when_no_version_is_common(script, delegate):
    script.speak(("1.1.0",))
    with pytest.raises(K8sRdmaError) as caught:
        asyncio.run(delegate.add(script.plugin(cniVersion="0.3.1"), TARGET))
    assert caught.value.reason is Reason.INCOMPATIBLE_CNI_VERSION


@pytest.mark.parametrize(
    ("answer", "named"), [(ERROR, "no; more"), ("echo '[]'", "result of plugin scripted: E")]
)
def test_add_fails_when_the_delegate_does_or_answers_no_result(script, delegate, answer, named):
    script.speak(MODERN, ADD=answer)
    with pytest.raises(K8sRdmaError, match=named) as caught:
        asyncio.run(delegate.add(script.plugin(cniVersion="1.0.0"), TARGET))
    assert caught.value.reason is Reason.PLUGIN_FAILURE


def test_delete_and_check_hand_over_the_previous_result_in_the_delegates_version(script, delegate):
    script.speak(("0.4.0",))
    plugin = script.plugin(cniVersion="1.0.0")
    asyncio.run(delegate.delete(plugin, TARGET, json.dumps(RESULT).encode()))
    asyncio.run(delegate.check(plugin, TARGET, json.dumps(RESULT).encode()))
    asyncio.run(delegate.delete(plugin, TARGET))
    deleted, checked, again = script.calls("DEL", "CHECK")
    given = {
        "cniVersion": "0.4.0",
        "interfaces": [{"name": "eth0"}],
        "ips": [{"address": "10.0.0.5/24", "version": "4"}],
    }
    assert deleted.stdin["prevResult"] == checked.stdin["prevResult"] == given
    assert "prevResult" not in again.stdin


@pytest.mark.parametrize("verb", ["CHECK", "STATUS", "GC"])
def test_delegate_is_not_called_with_verbs_unknown_to_its_version(script, delegate, verb):
    script.speak(("0.3.1",), **{verb: ERROR})
    asyncio.run(of(delegate, script.plugin(cniVersion="1.1.0"), verb))
    assert not script.calls(verb)


@pytest.mark.parametrize("verb", ["CHECK", "STATUS", "GC"])
def test_error_of_a_called_delegate_is_passed_on(script, delegate, verb):
    script.speak(MODERN, **{verb: ERROR})
    with pytest.raises(K8sRdmaError, match="no; more"):
        asyncio.run(of(delegate, script.plugin(cniVersion="1.1.0"), verb))


def of(delegate, plugin, verb):
    if verb == "CHECK":
        return delegate.check(plugin, TARGET, b"")
    return delegate.status(plugin) if verb == "STATUS" else delegate.collect(plugin, [("c1", "eth0")])


def test_gc_hands_over_the_attachments_of_the_runtime(script, delegate):
    asyncio.run(delegate.collect(script.plugin(cniVersion="1.1.0"), [("c1", "eth0")]))
    [call] = script.calls("GC")
    assert call.stdin["cni.dev/valid-attachments"] == [{"containerID": "c1", "ifname": "eth0"}]


def test_status_fails_when_the_delegate_is_not_on_the_node(script, delegate):
    script.file.unlink()
    with pytest.raises(K8sRdmaError, match="is not in CNI_PATH"):
        asyncio.run(delegate.status(script.plugin(cniVersion="1.1.0")))
    with pytest.raises(K8sRdmaError, match="is not in CNI_PATH"):
        delegate.require(script.plugin())


@needs_namespaces
@pytest.mark.skipif(
    None in [shutil.which(name, path=PLUGINS) for name in ("bridge", "host-local")],
    reason="needs Debian's containernetworking-plugins",
)
@pytest.mark.parametrize("version", SUPPORTED_VERSIONS)
def test_bridge_gives_a_pod_its_interface_in_every_version(tmp_path, delegate, version):
    descriptor = create_namespace()
    bridge = f"br-{os.getpid()}"
    netconf = {
        "cniVersion": version,
        "name": "net",
        "type": "bridge",
        "bridge": bridge,
        "ipam": {"type": "host-local", "subnet": "10.88.0.0/24", "dataDir": str(tmp_path)},
    }
    plugin = DelegatedPlugin(
        plugin="bridge", netconf=json.dumps(netconf).encode(), cni_path=PLUGINS, cni_args="IgnoreUnknown=1"
    )
    target = PluginTarget(container="c1", netns=f"/proc/{os.getpid()}/fd/{descriptor}", ifname="eth0")
    try:
        result = json.loads(asyncio.run(delegate.add(plugin, target)))
        assert result["cniVersion"] == version
        assert "10.88.0.2/24" in json.dumps(result)
        if version >= "0.4.0":
            asyncio.run(delegate.check(plugin, target, json.dumps(result).encode()))
        asyncio.run(delegate.delete(plugin, target, json.dumps(result).encode()))
        assert not list(tmp_path.glob("net/10.*"))
    finally:
        os.close(descriptor)
        subprocess.run(["ip", "link", "delete", bridge], check=False)
