"""A node from end to end on real PFs: `init`, agent, server and executable as they run on a node.

Needs two PFs whose VFs may all be removed, the executable built, and CNI's plugin host-local (CNI_PATH).
`K8S_RDMA_CABLE` may name a program that pulls and plugs a PF's cable: called with the PF and `off` or `on`.
"""

from __future__ import annotations

import asyncio
import os
import shutil
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from contract.linux_lab import run
from e2e.conftest import PLUGINS
from e2e.processes import pod
from e2e.test_attachments import inside, told
from hardware.sriov_node import SriovNode
from hardware.test_init import PFS, VARIABLE, remove_vfs
from k8s_rdma_demo.cluster.cni_runtime import AttachError, remove_namespace_at
from server.exposition_reader import read

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from k8s_rdma_demo.cluster.sandboxes import Sandbox

SHIM = Path(__file__).parents[2] / "build/k8s-rdma-cni"
CABLE = os.environ.get("K8S_RDMA_CABLE")
VFS = 4
CAP = {"max_tx_rate": 50}
QUIET_S = 3
PINGS = 20
PING_BYTES = 1000

pytestmark = [
    pytest.mark.skipif(
        len(PFS) != 2, reason=f"needs two PFs whose VFs may be removed: set {VARIABLE}, such as to eth0,eth1"
    ),
    pytest.mark.timeout(600),
]


class Nodes:
    """The node that tests share; another one is made after a test that left something on it."""

    def __init__(self) -> None:
        self._stack = ExitStack()
        self._node: SriovNode | None = None

    def get(self) -> SriovNode:
        """With VFs that `init` made, the agent and the server."""
        if self._node is None:
            self._remove_vfs()
            self._stack.callback(self._remove_vfs)
            node = self._stack.enter_context(SriovNode(pfs=PFS, vfs=VFS, plugins=PLUGINS, shim=SHIM))
            node.init()
            node.start_agent()
            node.start_server()
            self._node = node
        return self._node

    def close(self) -> None:
        self._node = None
        self._stack.close()

    def _remove_vfs(self) -> None:
        for pf in PFS:
            remove_vfs(pf)


@pytest.fixture(scope="module")
def nodes() -> Iterator[Nodes]:
    if not SHIM.exists():
        pytest.skip("no executable: needs `make cni`")
    for program in ("ping", "host-local"):
        if shutil.which(program, path=f"{PLUGINS}:{os.environ['PATH']}") is None:
            pytest.skip(f"needs {program}")
    with closing(Nodes()) as made:
        yield made


@pytest.fixture
def node(nodes: Nodes) -> Iterator[SriovNode]:
    """Whose VFs, leases and ledger are as before the first pod when the test is over."""
    try:
        node = nodes.get()
    except BaseException:
        nodes.close()
        raise
    yield node
    left = node.leftovers()
    if left or node.agent is None:
        nodes.close()
    assert left == {}


@contextmanager
def down(node: SriovNode, pf: str) -> Iterator[None]:
    """A PF set down by hand."""
    run("ip", "link", "set", pf, "down")
    try:
        yield
    finally:
        run("ip", "link", "set", pf, "up")
        node.await_link(pf)


@contextmanager
def cable_pulled(node: SriovNode, pf: str) -> Iterator[None]:
    """A PF that is up and has no carrier."""
    assert CABLE is not None
    run(CABLE, pf, "off")
    try:
        node.wait("no carrier", lambda: node.ip("link", "show", "dev", pf)[0]["operstate"] == "DOWN")
        yield
    finally:
        run(CABLE, pf, "on")
        node.await_link(pf)


def held(document: dict[str, Any], sandbox: Sandbox) -> dict[str, Any] | None:
    """A sandbox's allocation of `/v1/node`."""
    found = [each for each in document["allocations"] if each["container_id"] == sandbox.container_id]
    return found[0] if found else None


def shown(node: SriovNode, *sandboxes: Sandbox) -> dict[str, Any]:
    """`/v1/node` that has all of them attached."""
    return node.until(
        "attached in /v1/node",
        lambda document: all(
            (found := held(document, each)) is not None and found["phase"] == "attached" for each in sandboxes
        ),
    )


def vfs_of(document: dict[str, Any], sandbox: Sandbox) -> list[tuple[str, int]]:
    """PF and index of each interface, by `/v1/node`."""
    names = {pf["pci"]: pf["name"] for pf in document["pfs"]}
    return [(names[each["pf"]], each["vf"]) for each in held(document, sandbox)["interfaces"]]


def ping(node: SriovNode, sender: Sandbox, receiver: Sandbox) -> None:
    """From one pod's first interface to another's."""
    for sandbox in (sender, receiver):
        node.await_link("eth0", netns=sandbox.netns)
    address = receiver.result["ips"][0]["address"].partition("/")[0]
    run("nsenter", f"--net={sender.netns}", "ping", "-q", "-c", "3", "-W", "5", address)
    flood = ("ping", "-q", "-c", str(PINGS), "-i", "0.2", "-s", str(PING_BYTES), "-W", "5", address)
    run("nsenter", f"--net={sender.netns}", *flood)


def sent(node: SriovNode, name: str, ifname: str) -> float:
    """Bytes that a pod's interface sent, by `/metrics`; -1 while there is no sample of it."""
    families = read(node.http.get("/metrics").text)
    wanted = {("pod", name), ("interface", ifname)}
    samples = families["k8s_rdma_vf_transmitted_bytes_total"].samples if families else {}
    return next((value for (_, labels), value in samples.items() if wanted <= labels), -1.0)


def test_pod_matches_result_and_documents_and_its_traffic_is_counted(node: SriovNode) -> None:
    async def scenario() -> None:
        runtime = node.runtime(chained=False)
        pods = pod("a", CAP, {"min_tx_rate": 0}), pod("b", {"min_tx_rate": 100})
        a, b = await asyncio.gather(*map(runtime.add, pods))
        document = shown(node, a, b)
        assert inside(node, a) == told(a)
        assert list(inside(node, a)) == ["eth0", "eth1"]
        assert inside(node, b) == told(b)
        rates = node.rates()
        (capped, free), (reserved,) = vfs_of(document, a), vfs_of(document, b)
        assert {vf: rate for vf, rate in rates.items() if rate != (0, 0)} == {capped: (0, 50)}
        assert [name for name in node.homes().values() if name is None] == [None] * 3

        first, second = held(document, a)["interfaces"]
        assert (first["max_tx_rate"], first["set_max_tx_rate"]) == (50, 50)
        assert first["enforced"] == {"min": None, "max": "hardware"}
        assert (second["set_min_tx_rate"], second["set_max_tx_rate"]) == (0, 0)
        assert second["enforced"] == {"min": None, "max": None}
        (third,) = held(document, b)["interfaces"]
        assert (third["min_tx_rate"], third["set_min_tx_rate"]) == (100, 0)
        assert third["enforced"] == {"min": "accounted", "max": None}
        pf = node.pf(PFS[0])
        assert (pf["driver"], pf["link_mbps"], pf.get("foreign", [])) == ("igb", 1000, [])
        assert (pf["rates"]["min"], pf["rates"]["max"]["largest"]) == (None, 1000)

        pfs = {each["name"]: each for each in node.get("/getpfs")}
        assert sum(each["used_vfs"] for each in pfs.values()) == 3
        assert {name: each["used_tx_rate"] for name, each in pfs.items() if each["used_tx_rate"]} == {
            reserved[0]: 100
        }
        vfs = {(name, vf["vf"]): vf for name, each in pfs.items() for vf in each["vfs"]}
        assert {vf for vf, told in vfs.items() if told["allocated"]} == {capped, free, reserved}
        assert vfs[capped]["max_tx_rate"] == 50
        assert vfs[capped]["mac"] == inside(node, a)["eth0"]["mac"]

        before = sent(node, "a", "eth0")
        ping(node, a, b)
        payload = PINGS * PING_BYTES
        await asyncio.to_thread(
            node.wait, "counters", lambda: sent(node, "a", "eth0") >= max(before, 0) + payload
        )
        for each in (a, b):
            await runtime.check(each)
            await runtime.delete(each)

    asyncio.run(scenario())


def test_crash_of_the_agent_has_no_effect_and_the_server_scans_by_itself_meanwhile(node: SriovNode) -> None:
    async def scenario() -> None:
        runtime = node.runtime(chained=False)
        sandbox = await runtime.add(pod("a", CAP, {}))
        document = shown(node, sandbox)
        used = set(vfs_of(document, sandbox))
        before = node.kernel_state(), inside(node, sandbox)
        node.kill_agent()
        alone = node.until("the server's own look", lambda document: document["ledger"] == "unavailable")
        assert alone.get("allocations", []) == []
        foreign = {
            (pf["name"], vf["vf"]): vf["max_tx_rate"] for pf in alone["pfs"] for vf in pf.get("foreign", [])
        }
        assert foreign == {vf: before[0]["rates"][vf][1] for vf in used}
        vfs = {(pf["name"], vf["vf"]): vf for pf in node.get("/getpfs") for vf in pf["vfs"]}
        assert {vf for vf, shown in vfs.items() if shown["allocated"]} == used
        assert {vf for vf, shown in vfs.items() if shown["max_tx_rate"] == 50} < used
        node.start_agent()
        assert (node.kernel_state(), inside(node, sandbox)) == before
        again = shown(node, sandbox)
        assert (again["ledger"], again["allocations"]) == ("ok", document["allocations"])
        assert not any(pf.get("foreign") for pf in again["pfs"])
        await runtime.delete(sandbox)

    asyncio.run(scenario())


def quiet_generation(node: SriovNode) -> str:
    """The node's generation when the test before has ended in every way: its changes are reported later."""
    while True:
        report = node.get("/v1/node")
        quiet = node.http.get(f"/v1/node?watch={report['generation']}&timeout_s={QUIET_S}")
        if report["ledger"] == "ok" and quiet.status_code == 304:
            return str(report["generation"])


def test_long_poll_is_answered_when_a_pod_comes(node: SriovNode) -> None:
    async def scenario() -> None:
        runtime = node.runtime(chained=False)
        generation = quiet_generation(node)
        with ThreadPoolExecutor(1) as waiting:
            answer = waiting.submit(node.http.get, f"/v1/node?watch={generation}&timeout_s=100")
            sandbox = await runtime.add(pod("a", CAP))
            woken = answer.result().raise_for_status().json()
        assert woken["generation"] != generation
        assert held(woken, sandbox) is not None
        await runtime.delete(sandbox)

    asyncio.run(scenario())


def test_del_makes_a_vf_as_it_was_whatever_its_pod_made_of_it(node: SriovNode) -> None:
    async def scenario() -> None:
        runtime = node.runtime(chained=False)
        sandbox = await runtime.add(pod("a", CAP))
        link = ("nsenter", f"--net={sandbox.netns}", "ip", "link", "set")
        run(*link, "eth0", "down")
        run(*link, "eth0", "name", "odd", "mtu", "1400")
        run(*link, "odd", "up")
        await runtime.delete(sandbox)

    asyncio.run(scenario())


def test_vf_of_a_namespace_that_vanished_comes_home_without_del(node: SriovNode) -> None:
    async def scenario() -> None:
        sandbox = await node.runtime(chained=False).add(pod("a", CAP, {}))
        remove_namespace_at(Path(sandbox.netns))
        await asyncio.to_thread(node.wait, "all at home", lambda: node.leftovers() == {})

    asyncio.run(scenario())


@pytest.mark.parametrize(
    "moment",
    [
        lambda node: bool(node.leases()),
        lambda node: node.rates() != node.pristine["rates"],
        lambda node: node.vfs_away() > 0,
        lambda node: node.vfs_away() == 2 * VFS,
    ],
    ids=["first address leased", "first rate set", "first VF moved", "last VF moved"],
)
def test_agent_killed_during_an_add_leaves_no_vf_and_no_rate(
    node: SriovNode, moment: Callable[[SriovNode], bool]
) -> None:
    async def scenario() -> None:
        runtime = node.runtime(chained=False)
        adding = asyncio.create_task(runtime.add(pod("a", *[CAP] * 2 * VFS)))
        await asyncio.to_thread(node.wait, "the moment", lambda: moment(node))
        node.kill_agent()
        with pytest.raises(AttachError) as failed:
            await adding
        assert failed.value.leftover is None  # the runtime's own DEL is left to the next agent
        node.start_agent()
        assert node.leftovers() == {}

    asyncio.run(scenario())


@pytest.mark.parametrize(
    "moment",
    [
        lambda node: node.vfs_away() < 2 * VFS,
        lambda node: node.vfs_away() == 0,
        lambda node: len(node.leases()) < 2 * VFS,
    ],
    ids=["first VF home", "last VF home", "first address given back"],
)
def test_agent_killed_during_a_del_ends_it_when_it_is_started(
    node: SriovNode, moment: Callable[[SriovNode], bool]
) -> None:
    async def scenario() -> None:
        runtime = node.runtime(chained=False)
        sandbox = await runtime.add(pod("a", *[CAP] * 2 * VFS))
        deleting = asyncio.create_task(runtime.delete(sandbox))
        await asyncio.to_thread(node.wait, "the moment", lambda: moment(node))
        node.kill_agent()
        await deleting
        node.start_agent()
        assert node.leftovers() == {}

    asyncio.run(scenario())


def test_pf_that_is_down_takes_no_reservation_and_no_cap_that_must_hold(node: SriovNode) -> None:
    must_hold = CAP | {"enforce": "hardware"}

    async def scenario() -> None:
        runtime = node.runtime(chained=False)
        with down(node, PFS[0]):
            document = node.until(
                "the link's end",
                lambda document: any(
                    "down" in why for pf in document["pfs"] for why in pf.get("problems", ())
                ),
            )
            assert [pf["name"] for pf in document["pfs"] if pf["link_mbps"] is None] == [PFS[0]]
            assert node.get("/getpfs")[0]["capacity_tx_rate"] == 0
            sandbox = await runtime.add(pod("a", {"min_tx_rate": 600}, must_hold))
            assert {pf for pf, _ in vfs_of(shown(node, sandbox), sandbox)} == {PFS[1]}
            with pytest.raises(AttachError, match=f"link speed of {PFS[0]} is unknown"):
                await runtime.add(pod("b", {"min_tx_rate": 600}))
            with pytest.raises(AttachError, match="igb takes maximum rates only while the link is up"):
                await runtime.add(pod("b", *[must_hold] * VFS))
            await runtime.delete(sandbox)
        node.until("the link", lambda document: all(pf["link_mbps"] for pf in document["pfs"]))

    asyncio.run(scenario())


def test_running_pods_have_their_rates_and_traffic_when_a_pf_was_down(node: SriovNode) -> None:
    async def scenario() -> None:
        runtime = node.runtime(chained=False)
        a, b = [await runtime.add(pod(name, CAP)) for name in "ab"]
        ((pf, _),) = vfs_of(shown(node, a, b), a)
        before = node.kernel_state(), inside(node, a), node.get("/v1/node")["allocations"]
        with down(node, pf):
            node.until("the link's end", lambda told: any(pf["link_mbps"] is None for pf in told["pfs"]))
        told = node.until("the link", lambda told: all(pf["link_mbps"] for pf in told["pfs"]))
        assert (node.kernel_state(), inside(node, a), told["allocations"]) == before
        assert not any(pf.get("problems") for pf in told["pfs"])
        ping(node, a, b)
        for each in (a, b):
            await runtime.delete(each)

    asyncio.run(scenario())


def test_del_while_the_pf_is_down_leaves_vfs_that_the_next_pods_can_use(node: SriovNode) -> None:
    async def scenario() -> None:
        runtime = node.runtime(chained=False)
        sandbox = await runtime.add(pod("a", CAP, CAP))
        ((pf, _), *_) = vfs_of(shown(node, sandbox), sandbox)
        with down(node, pf):
            await runtime.delete(sandbox)
        await asyncio.to_thread(node.wait, "all as it was", lambda: node.leftovers() == {})
        again = [await runtime.add(pod(name, CAP)) for name in ("b", "c")]
        ping(node, *again)
        for each in again:
            await runtime.delete(each)

    asyncio.run(scenario())


@pytest.mark.skipif(CABLE is None, reason="needs K8S_RDMA_CABLE, a program that pulls a PF's cable")
def test_del_without_carrier_succeeds_and_rates_are_reset_when_it_is_back(node: SriovNode) -> None:
    async def scenario() -> None:
        runtime = node.runtime(chained=False)
        sandbox = await runtime.add(pod("a", CAP))
        ((pf, vf),) = vfs_of(shown(node, sandbox), sandbox)
        with cable_pulled(node, pf):
            await runtime.delete(sandbox)
            assert node.vfs_away() == 0
            assert node.leases() == []
            assert node.rates()[pf, vf] == (0, 50)
            left = held(node.get("/v1/node"), sandbox)
            assert left is not None
            assert left["phase"] == "releasing"
            assert any(line["event"] == "rates_left" for line in node.log())
            node.kill_agent()
            node.start_agent()
            shown_again = held(node.until("the agent", lambda told: told["ledger"] == "ok"), sandbox)
            assert shown_again == left
        await asyncio.to_thread(node.wait, "all as it was", lambda: node.leftovers() == {})

    asyncio.run(scenario())


def test_vf_rated_by_ip_is_foreign_until_it_is_adopted(node: SriovNode) -> None:
    run("ip", "link", "set", PFS[1], "vf", "3", "max_tx_rate", "70")
    # Just after a restart of the agent the server shows its own look still, to which all is foreign.
    document = node.until(
        "foreign",
        lambda told: told["ledger"] == "ok" and any(pf.get("foreign") for pf in told["pfs"]),
    )
    (foreign,) = [(pf["name"], *pf["foreign"]) for pf in document["pfs"] if pf.get("foreign")]
    assert (foreign[0], foreign[1]["vf"], foreign[1]["max_tx_rate"]) == (PFS[1], 3, 70)
    adopted = node.command("agent", "adopt", "--all", "--run-dir", str(node.run_dir))
    assert (adopted.returncode, adopted.stdout.count(" reset ")) == (0, 1), adopted.stdout + adopted.stderr
    assert node.rates() == node.pristine["rates"]
    (log,) = [line for line in node.log() if line["event"] == "vf_adoption"]
    assert (log["pf"], log["vf"], log["previous"]["max_tx_rate"]) == (PFS[1], 3, 70)


def test_reservation_that_the_hardware_must_hold_is_refused_with_the_drivers_name(node: SriovNode) -> None:
    wish = {"min_tx_rate": 100, "enforce": "hardware"}
    with pytest.raises(AttachError, match=r"igb takes no minimum rates \(100 Mb/s wanted\)") as failed:
        asyncio.run(node.runtime(chained=False).add(pod("a", wish)))
    assert failed.value.leftover is None


def test_init_refuses_another_number_of_vfs_while_the_agent_runs(node: SriovNode) -> None:
    async def scenario() -> None:
        runtime = node.runtime(chained=False)
        sandbox = await runtime.add(pod("a", CAP))
        before = node.kernel_state(), inside(node, sandbox)
        hardware = {"requireRdma": False, "pfs": [{"names": list(PFS), "numVfs": VFS - 1}]}
        config = {"hardware": hardware, "stateDir": str(node.directory / "state"), "tries": 1}
        ended = node.command("init", "--config", str(node.config("fewer", config)))
        assert ended.returncode == 1, ended.stdout + ended.stderr
        assert "refused" in ended.stdout
        assert (node.kernel_state(), inside(node, sandbox)) == before
        await runtime.delete(sandbox)

    asyncio.run(scenario())


def test_cap_that_software_keeps_is_put_back_and_counted_and_never_programmed(node: SriovNode) -> None:
    async def scenario() -> None:
        runtime = node.runtime(chained=False)
        sandbox = await runtime.add(pod("p", {"max_tx_rate": 200, "enforce": "software"}))
        root = ("nsenter", f"--net={sandbox.netns}", "tc", "qdisc")
        assert "qdisc tbf 7264: root refcnt 2 rate 200Mbit" in run(*root, "show", "dev", "eth0")
        assert set(node.rates().values()) == {(0, 0)}
        [allocation] = shown(node, sandbox)["allocations"]
        assert allocation["interfaces"][0]["enforced"] == {"min": None, "max": "software"}
        run(*root, "del", "dev", "eth0", "root")
        node.wait("the cap", lambda: "tbf 7264:" in run(*root, "show", "dev", "eth0"))
        told = 'k8s_rdma_software_caps_restored_total{node="w1"} 1.0\n'
        node.wait("the metric", lambda: told in node.http.get("/metrics").text)
        await runtime.delete(sandbox)

    asyncio.run(scenario())
    assert "7264:" not in run("tc", "qdisc", "show")
