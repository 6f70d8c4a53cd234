"""Pods of CRI-O, our plugin chained behind `bridge`: its differences from containerd."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from e2e.cri import CriError
from e2e.crio import Crio
from e2e.processes import pod
from e2e.real_pods import beside_agent, end, interfaces, without_us
from e2e.runtimes import runtime_obstacle
from e2e.test_rebuild_ledger import held, lost, spoilt

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from e2e.node import Node

WHY_NOT = runtime_obstacle(Crio.name)

pytestmark = pytest.mark.skipif(WHY_NOT is not None, reason=str(WHY_NOT))

NO_AGENT = "the k8s-rdma agent of this node cannot be reached"


@pytest.fixture
def node(make_node: Callable[[int], Node]) -> Node:
    return make_node(4)


@pytest.fixture
def crio(node: Node) -> Iterator[Crio]:
    runtime = Crio(node.directory / "crio", plugins=node.cni_path, deadline_s=node.deadline_s)
    with beside_agent(node, runtime):
        yield runtime


def use(node: Node, crio: Crio, **fields: object) -> None:
    """Have CRI-O take the network with these fields of the list."""
    path = node.runtime(chained=True).conflist
    path.write_text(json.dumps(json.loads(path.read_text()) | fields))
    crio.use(path)


def use_alone(node: Node, crio: Crio, **fields: object) -> None:
    """Have CRI-O take a network of our plugin alone, with `bridge` as its delegate and these fields."""
    delegate = json.loads(node.runtime(chained=True).conflist.read_text())["plugins"][0]
    path = node.runtime(chained=False, ours={"delegate": delegate, "interfaceNames": "rdma{i}"}).conflist
    path.write_text(json.dumps(json.loads(path.read_text()) | fields))
    crio.use(path)


@pytest.mark.parametrize("count", [0, 1, 3])
def test_pods_get_their_interfaces_and_give_them_back(node: Node, crio: Crio, count: int) -> None:
    """The agent has no way to an API server: CRI-O gives it the annotations."""
    sandbox = crio.cri.run_sandbox(pod("p", *([{"min_tx_rate": 100, "max_tx_rate": 200}] * count)))
    found = interfaces(node, crio, sandbox)
    assert found.pop("eth0") == ["10.244.0.3"]  # .2 was the probe's
    assert sorted(found) == [f"rdma{number}" for number in range(count)]
    assert sorted(found.values()) == [[f"10.56.0.{number + 2}"] for number in range(count)]
    assert list(node.rates().values()).count(("100Mbit", "200Mbit")) == count
    assert node.markers() == [sandbox] * bool(count)
    end(crio, sandbox)
    assert node.leftovers() == {}


def test_pods_end_whose_sandboxes_were_made_before_crio_was_killed(node: Node, crio: Crio) -> None:
    sandbox = crio.cri.run_sandbox(pod("p", {}, {}))
    crio.kill()
    crio.start()
    assert sorted(interfaces(node, crio, sandbox)) == ["eth0", "rdma0", "rdma1"]
    end(crio, sandbox)
    assert node.leftovers() == {}


def test_new_sandbox_of_a_pod_gets_the_interfaces_of_the_old_one(node: Node, crio: Crio) -> None:
    wish = pod("p", {"min_tx_rate": 100}, {})
    first = crio.cri.run_sandbox(wish)
    before = [rates for rates in node.rates().values() if rates not in node.pristine["rates"].values()]
    with pytest.raises(CriError, match="still holds its interfaces"):
        crio.cri.run_sandbox(wish, attempt=1)
    crio.cri.stop_sandbox(first)
    second = crio.cri.run_sandbox(wish, attempt=1)
    now = [rates for rates in node.rates().values() if rates not in node.pristine["rates"].values()]
    assert now == before
    end(crio, second)
    assert node.leftovers() == {}


def test_ordinary_pods_start_and_stop_while_the_agent_is_dead(node: Node, crio: Crio) -> None:
    """CRI-O calls CHECK for every pod as soon as it is added."""
    node.kill_agent()
    plain = crio.cri.run_sandbox(pod("plain"))
    assert list(interfaces(node, crio, plain)) == ["eth0"]
    with pytest.raises(CriError, match=NO_AGENT):
        crio.cri.run_sandbox(pod("asks", {}))
    end(crio, plain)
    node.start_agent()
    assert node.leftovers() == {}


def test_pod_keeps_its_address_when_crio_starts_while_the_agent_is_dead(node: Node, crio: Crio) -> None:
    """It calls CHECK then, and has no address to report to kubelet if that fails."""
    use_alone(node, crio)
    sandbox = crio.cri.run_sandbox(pod("p", {}))
    address = crio.cri.sandbox_address(sandbox)
    assert address.startswith("10.244.0.")
    node.kill_agent()
    crio.kill()
    crio.start()
    assert crio.cri.sandbox_address(sandbox) == address
    node.start_agent()
    end(crio, sandbox)
    assert node.leftovers() == {}


def test_pod_ends_while_the_agent_is_dead(node: Node, crio: Crio) -> None:
    """It calls DEL but once, and no plugin before one whose DEL fails."""
    sandbox = crio.cri.run_sandbox(pod("rdma", {"min_tx_rate": 100}))
    assert len(node.leases("pods")) == 1
    node.kill_agent()
    end(crio, sandbox)
    assert node.deferred_deletions() == [f"{sandbox}:eth0:net"]
    assert node.leases("pods") == []
    node.start_agent()
    assert node.leftovers() == {}


def test_pods_with_interfaces_do_not_start_if_check_is_on(node: Node, crio: Crio) -> None:
    """`bridge` looks for all addresses of the result at its own interface."""
    use(node, crio, disableCheck=False)
    end(crio, crio.cri.run_sandbox(pod("plain")))
    with pytest.raises(CriError, match=r"Failed to match addr .*10\.56\.0\.2.* on interface eth0"):
        crio.cri.run_sandbox(pod("rdma", {}))
    assert node.leftovers() == {}


@pytest.fixture
def at_1_1_0(node: Node, crio: Crio) -> Crio:
    """Its network is of the version that has GC and STATUS."""
    require_version(node, "bridge", "1.1.0")
    use(node, crio, cniVersion="1.1.0")
    return crio


def require_version(node: Node, plugin: str, version: str) -> None:
    path = shutil.which(plugin, path=os.pathsep.join(map(str, node.cni_path)))
    call = {"CNI_COMMAND": "VERSION"}
    said = subprocess.run([path], env=call, input=b'{"cniVersion": "1.0.0"}', capture_output=True, check=True)
    if version not in json.loads(said.stdout)["supportedVersions"]:
        pytest.skip(f"needs a {plugin} that speaks CNI {version}, in CNI_PATH")


def test_sandboxes_that_crio_forgot_are_given_back_when_it_starts(node: Node, at_1_1_0: Crio) -> None:
    kept, forgotten = (at_1_1_0.cri.run_sandbox(pod(name, {})) for name in ("kept", "forgotten"))
    at_1_1_0.kill()
    for stored in at_1_1_0.directory.glob("*/vfs-containers/*containers.json"):
        known = json.loads(stored.read_text())
        stored.write_text(json.dumps([each for each in known if each["id"] != forgotten]))
    at_1_1_0.start()
    assert at_1_1_0.cri.list_sandboxes() == [kept]
    node.wait("its VFs", lambda: node.markers() == [kept])
    end(at_1_1_0, kept)
    assert node.leftovers() == {}


def test_lost_ledger_is_rebuilt_from_the_cache_of_crio(node: Node, crio: Crio) -> None:
    sandbox = crio.cri.run_sandbox(pod("p", {"min_tx_rate": 100, "max_tx_rate": 200}, {}))
    before = held(node), node.kernel_state()
    node.kill_agent()
    spoilt(node, lost)
    config = node.config("agent", node.document() | {"cniPath": ":".join(map(str, node.cni_path))})
    rebuild = [sys.executable, "-m", "k8s_rdma", "agent", "--rebuild-ledger", "--config", str(config)]
    done = subprocess.run([*node.enter, *rebuild], capture_output=True, text=True, check=True)
    assert "1 attachments rebuilt" in done.stdout
    node.start_agent()
    assert (held(node), node.kernel_state()) == before
    end(crio, sandbox)
    assert node.leftovers() == {}


def test_network_is_ready_though_the_agent_never_ran(node: Node, at_1_1_0: Crio) -> None:
    assert at_1_1_0.cri.network_problem() == ""
    node.kill_agent()
    shutil.rmtree(node.run_dir)
    at_1_1_0.kill()
    at_1_1_0.start()
    at_1_1_0.wait(lambda: at_1_1_0.cri.network_problem() == "", "the network is not ready")


def test_network_of_our_plugin_alone_is_ready_once_the_agent_runs(node: Node, at_1_1_0: Crio) -> None:
    use_alone(node, at_1_1_0, cniVersion="1.1.0")
    node.kill_agent()
    at_1_1_0.kill()
    at_1_1_0.start()
    at_1_1_0.wait(lambda: NO_AGENT in at_1_1_0.cri.network_problem(), "the network is ready")
    node.start_agent()
    at_1_1_0.wait(lambda: at_1_1_0.cri.network_problem() == "", "the network is not ready")


def test_network_that_crio_is_configured_with_is_ours_if_both_have_its_name(node: Node) -> None:
    options = {"plugins": node.cni_path, "deadline_s": node.deadline_s, "network": "net"}
    crio = Crio(node.directory / "crio", **options)
    chained = node.runtime(chained=True).conflist
    confs = {"00-k8s-rdma": chained, "10-net": without_us(chained)}
    for name, conf in confs.items():
        shutil.copy(conf, crio.directory / "net.d" / f"{name}.conflist")
    with crio:
        node.enter = crio.entering
        node.start_agent()
        sandbox = crio.cri.run_sandbox(pod("p", {}))
        assert list(interfaces(node, crio, sandbox)) == ["eth0", "rdma0"]
        end(crio, sandbox)
    assert node.leftovers() == {}
