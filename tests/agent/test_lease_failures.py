"""No lease is left when leasing fails, at whichever call and in whichever way that is."""

from __future__ import annotations

import asyncio
import json
import shutil
from dataclasses import replace

import pytest

from agent.machine import PLUGINS, Machine, asks, call
from k8s_rdma.agent.plugins.ipam import MAX_PARALLEL
from k8s_rdma.errors import K8sRdmaError, Reason

HOST_LOCAL = shutil.which("host-local", path=PLUGINS)
INTERFACES = MAX_PARALLEL + 2
pytestmark = pytest.mark.skipif(HOST_LOCAL is None, reason="needs Debian's containernetworking-plugins")

_FAILING = """#!/bin/sh
# host-local, whose ADD number {number} goes wrong.
if [ "$CNI_COMMAND" = ADD ]; then
  n=0
  while ! mkdir {directory}/add-$n 2>/dev/null; do n=$((n + 1)); done
  if [ $n = {number} ]; then {fault}; fi
fi
exec {host_local}
"""
FAULTS = {
    "before it leases": """echo '{"code":11,"msg":"on purpose"}'; exit 1""",
    "after it leased": """{host_local} >/dev/null; echo '{"code":11,"msg":"on purpose"}'; exit 1""",
    "and tells nonsense": """{host_local} >/dev/null; echo '{"ips":[{"address":"on purpose"}]}'; exit 0""",
    "and is killed": """{host_local} >/dev/null; kill -9 $$""",
}


@pytest.mark.parametrize("number", range(INTERFACES))
@pytest.mark.parametrize("fault", FAULTS)
def test_no_lease_is_left_when_a_call_fails(tmp_path, number, fault):
    machine = Machine(tmp_path)
    plugin = tmp_path / "failing"
    how = FAULTS[fault].replace("{host_local}", str(HOST_LOCAL))
    plugin.write_text(_FAILING.format(number=number, directory=tmp_path, fault=how, host_local=HOST_LOCAL))
    plugin.chmod(0o755)
    env = replace(call("ADD"), path=str(tmp_path))
    stdin = machine.stdin(
        asks(*[{"min_tx_rate": 5}] * INTERFACES),
        ipam={
            "type": "failing",
            "ranges": [[{"subnet": "10.55.0.0/24"}]],
            "dataDir": str(tmp_path / "leases"),
        },
    )

    async def scenario():
        with machine.running() as (node, verbs):
            netns = machine.hardware.create_namespace()
            with pytest.raises(K8sRdmaError) as caught:
                await verbs.add(env, netns, stdin)
            assert caught.value.reason is Reason.IPAM_FAILURE
            assert not node.ledger.receipts
            assert machine.is_pristine()
            assert await verbs.add(env, netns, stdin)
            assert len(machine.leases()) == INTERFACES

    asyncio.run(scenario())


def test_lease_of_an_abandoned_call_is_given_back(tmp_path):
    machine = Machine(tmp_path)
    plugin = tmp_path / "slow"
    plugin.write_text(
        f"#!/bin/sh\n[ $CNI_COMMAND = ADD ] || exec {HOST_LOCAL}\n"
        f"{HOST_LOCAL} >/dev/null; touch {tmp_path}/leased; sleep 1000\n"
    )
    plugin.chmod(0o755)
    ipam = {"type": "slow", "ranges": [[{"subnet": "10.55.0.0/24"}]], "dataDir": str(tmp_path / "leases")}

    async def scenario():
        with machine.running() as (node, verbs):
            netns = machine.hardware.create_namespace()
            env = replace(call("ADD"), path=str(tmp_path))
            adding = asyncio.create_task(verbs.add(env, netns, machine.stdin(asks({}, {}), ipam=ipam)))
            async with asyncio.timeout(120):
                while len(machine.leases()) < 2 or not (tmp_path / "leased").exists():  # noqa: ASYNC110
                    await asyncio.sleep(0.01)
            adding.cancel()
            with pytest.raises(asyncio.CancelledError):
                await adding
            assert not node.ledger.receipts
            assert machine.is_pristine()

    asyncio.run(scenario())


def test_leases_stay_recorded_when_the_plugin_is_gone_and_go_when_it_is_back(tmp_path):
    machine = Machine(tmp_path)
    plugin = tmp_path / "plugin"
    shutil.copy(HOST_LOCAL, plugin)
    ipam = {"type": "plugin", "ranges": [[{"subnet": "10.55.0.0/24"}]], "dataDir": str(tmp_path / "leases")}

    async def scenario():
        with machine.running() as (node, verbs):
            netns = machine.hardware.create_namespace()
            env = replace(call("ADD"), path=str(tmp_path))
            stdin = machine.stdin(asks({}), ipam=ipam)
            await verbs.add(env, netns, stdin)
            plugin.unlink()
            with pytest.raises(
                K8sRdmaError, match=r"addresses of eth0 not given back: .* install it on the node"
            ):
                await verbs.delete(call("DEL"), "net")
            assert machine.kernel.observe() == machine.pristine
            assert json.loads(stdin)["name"] in {key.network for key in node.ledger.receipts}
            shutil.copy(HOST_LOCAL, plugin)
            await verbs.delete(call("DEL"), "net")
            assert not node.ledger.receipts
            assert machine.is_pristine()

    asyncio.run(scenario())


def test_vanished_sandboxes_are_ended_together_as_plugins_may_wait_long(tmp_path):
    machine, pods = Machine(tmp_path), 3
    begun = tmp_path / "begun"
    begun.mkdir()
    (tmp_path / "slow").write_text(
        f"#!/bin/sh\n[ $CNI_COMMAND = DEL ] || exec {HOST_LOCAL}\ntouch {begun}/$CNI_CONTAINERID\n"
        f"while [ $(ls {begun} | wc -l) -lt {pods} ]; do sleep 0.01; done; exec {HOST_LOCAL}\n"
    )
    (tmp_path / "slow").chmod(0o755)
    ipam = {"type": "slow", "ranges": [[{"subnet": "10.55.0.0/24"}]], "dataDir": str(tmp_path / "leases")}

    async def scenario():
        with machine.running() as (node, verbs):
            for number in range(pods):
                env = replace(call("ADD", f"c{number}", f"uid-{number}"), path=str(tmp_path))
                netns = machine.hardware.create_namespace()
                await verbs.add(env, netns, machine.stdin(asks({}), ipam=ipam))
                machine.hardware.destroy_namespace(netns)
            assert await verbs.reconcile()
            assert not node.ledger.receipts
            assert machine.is_pristine()

    asyncio.run(scenario())
