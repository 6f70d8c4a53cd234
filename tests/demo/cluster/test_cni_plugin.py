from __future__ import annotations

import asyncio
import os
from pathlib import Path

import pytest

from demo.cluster.annotated_pod import POD
from k8s_rdma_demo.cluster.cni_runtime import AttachError

pytestmark = pytest.mark.anyio


# The protocol, against the recordings


async def test_environment_is_that_of_the_recorded_add(runtime, plugins, recording):
    sandbox = await runtime.add(POD)
    env, seen = plugins.calls()[0].env, recording("cni/1.1.0-ADD-3")["env"]
    assert set(env) == set(seen)
    assert env["CNI_COMMAND"] == "ADD"
    assert env["CNI_CONTAINERID"] == sandbox.container_id
    assert len(sandbox.container_id) == len(seen["CNI_CONTAINERID"])
    assert env["CNI_NETNS"] == sandbox.netns
    assert Path(sandbox.netns).name.startswith("cni-")
    assert (env["CNI_IFNAME"], env["CNI_PATH"]) == ("eth0", str(plugins.path))
    arguments = [dict(part.split("=") for part in e["CNI_ARGS"].split(";")) for e in (env, seen)]
    assert set(arguments[0]) == set(arguments[1])
    assert arguments[0]["K8S_POD_UID"] == "1-2-3"
    assert arguments[0]["K8S_POD_INFRA_CONTAINER_ID"] == sandbox.container_id
    assert plugins.calls()[0].cwd == "/"


async def test_every_variable_is_empty_in_a_status_call(runtime, plugins, recording):
    plugins.conflist("first", "second", version="1.1.0")
    await runtime.status()
    env = recording("cni/1.1.0-STATUS-1")["env"] | {"CNI_PATH": str(plugins.path)}
    assert [call.env for call in plugins.calls()] == [env, env]
    assert set(plugins.calls()[0].stdin) == {"type", "capabilities", "name", "cniVersion"}


# Errors of plugins


@pytest.mark.parametrize(
    ("script", "says"),
    [
        ("exit 3", "netplugin failed with no error message: exit status 3"),
        ("echo oh >&2; exit 1", r'netplugin failed: "oh\\n": exit status 1'),
        ("echo oh; exit 1", r'netplugin failed but error parsing its diagnostic message "oh\\n": '),
        ("kill -9 $$", "netplugin failed with no error message: signal: killed"),
        ("echo nonsense; exit 0", "error parsing the plugin's result"),
        ("echo '[]'; exit 0", "error parsing the plugin's result"),
        ("""echo '{"code": 7, "msg": "m", "details": "d"}'; exit 1""", "m; d"),
    ],
)
async def test_plugin_that_breaks_the_protocol_is_reported_in_the_words_of_the_library(
    runtime, plugins, script, says
):
    plugins.on("ADD", "first", script)
    with pytest.raises(AttachError, match="^" + 'plugin type="first" failed \\(add\\): ' + says):
        await runtime.add(POD)


async def test_plugin_that_is_missing_or_cannot_be_run_is_named(runtime, plugins):
    plugins.conflist("third")
    with pytest.raises(AttachError) as failed:
        await runtime.add(POD)
    assert f'failed to find plugin "third" in path [{plugins.path}]' in str(failed.value)
    (plugins.path / "third").write_text("no executable")
    with pytest.raises(AttachError, match=r"fork/exec .*third: permission denied"):
        await runtime.add(POD)


async def test_plugin_is_killed_when_it_takes_too_long(runtime, plugins):
    runtime.timeout_s = 0.2
    plugins.on("ADD", "first", "exec sleep 1000")
    with pytest.raises(AttachError, match=r"signal: killed after 0\.2 s"):
        await runtime.add(POD)


async def test_plugin_is_killed_when_its_caller_is_cancelled(runtime, plugins):
    started = plugins.directory / "started"
    os.mkfifo(started)
    plugins.on("ADD", "first", f"echo $$ > {started}; exec sleep 1000")
    adding = asyncio.ensure_future(runtime.add(POD))
    pid = int(await asyncio.to_thread(started.read_text))
    adding.cancel()
    with pytest.raises(asyncio.CancelledError):
        await adding
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)
