"""`k8s-rdma uninstall` takes everything off a node, or names the holders of the rest."""

from __future__ import annotations

import base64
import json
import socket
import threading
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from typer.testing import CliRunner

from factories import receipt
from install.node_files import BRIDGE, FILE, OURS, PORTMAP, NodeFiles, conflist
from k8s_rdma.cli.main import app
from k8s_rdma.errors import K8sRdmaError
from k8s_rdma.install.directory import NodeDirectory
from k8s_rdma.linux.receipts import Receipts
from k8s_rdma.wire.report import Allocation, NodeReport, ReportedPod, encode_report
from k8s_rdma.wire.state_socket import MessageKind, encode_message

if TYPE_CHECKING:
    from collections.abc import Iterator

RUN, STATE, CDI = Path("run/k8s-rdma"), Path("var/lib/k8s-rdma"), Path("run/cdi")
NAMED = ("vf_0000:01:10.0", "slot_a", "shared_b", "claim_c")
SPECIFICATIONS = tuple(f"k8s-rdma.io-{name}.json" for name in NAMED)


@pytest.fixture
def host(tmp_path: Path, program: Path) -> Path:
    """A node's root file system, with everything installed, used, and given back."""
    host = tmp_path / "host"
    node = NodeFiles.made(host / "node")
    for path, aim in (("opt/cni/bin", node.bin), ("etc/cni/net.d", node.confs), ("var/run", "/run")):
        (host / path).parent.mkdir(parents=True, exist_ok=True)
        (host / path).symlink_to(str(aim).removeprefix(str(host)))
    (node.confs / "10-pods.conflist").write_text(conflist(BRIDGE, PORTMAP))
    node.installation().install(program)
    for directory in (RUN / "attachments", STATE, CDI):
        (host / directory).mkdir(parents=True)
    (host / RUN / "exclusive-devices").touch()
    with closing(socket.socket(socket.AF_UNIX)) as left:
        left.bind(str(host / RUN / "cni.sock"))
    for name in (*SPECIFICATIONS, "vendor.com-gpu.json"):
        (host / CDI / name).write_text("{}")
    with closing(Receipts(host / STATE / "ledger.db")):
        pass
    return host


def node_of(host: Path) -> NodeFiles:
    return NodeFiles(bin=host / "node/bin", confs=host / "node/net.d")


@dataclass(frozen=True, slots=True, kw_only=True)
class Done:
    returncode: int
    stdout: str
    stderr: str


def uninstall(host: Path) -> Done:
    done = CliRunner().invoke(app, ["uninstall", "--host-root", str(host), "--grace-s", "0"])
    refused = str(done.exception) if isinstance(done.exception, K8sRdmaError) else ""
    return Done(returncode=done.exit_code, stdout=done.stdout, stderr=refused)


def files(host: Path) -> set[str]:
    return {str(path.relative_to(host)) for path in host.rglob("*") if not path.is_dir()}


def test_unused_node_is_as_if_it_had_never_been_installed(host: Path) -> None:
    done = uninstall(host)
    assert (done.returncode, done.stderr) == (0, "")
    assert not (host / RUN).exists()
    assert [path.name for path in (host / CDI).iterdir()] == ["vendor.com-gpu.json"]
    assert node_of(host).types() == ["bridge", "portmap"]
    assert not (host / "node/bin" / OURS).exists()
    assert done.stdout.splitlines()[0] == f"removed {host / 'node/net.d' / FILE}"
    assert f"stays: {host / STATE}" in done.stdout
    again = uninstall(host)
    assert (again.returncode, "removed" in again.stdout) == (0, False)


def test_executable_that_somebodys_network_has_is_left(host: Path) -> None:
    network = node_of(host).confs / "10-pods.conflist"
    network.write_text(conflist(BRIDGE, {"type": OURS}))
    done = uninstall(host)
    assert done.returncode == 1
    assert "which 10-pods.conflist calls; take it out there" in done.stdout
    assert (node_of(host).bin / OURS).exists()
    network.write_text(conflist(BRIDGE))
    assert uninstall(host).returncode == 0
    assert not (node_of(host).bin / OURS).exists()


@pytest.mark.parametrize("aim", ["/etc/elsewhere", "../../etc/elsewhere", "/var/lib/link"])
def test_executable_is_left_also_if_a_link_leads_to_its_network(host: Path, aim: str) -> None:
    (host / "var/lib/link").symlink_to("/etc/elsewhere")
    (host / "etc/elsewhere").write_text(conflist(BRIDGE, {"type": OURS}))
    (node_of(host).confs / "20-x.conflist").symlink_to(aim)
    done = uninstall(host)
    assert (done.returncode, "which 20-x.conflist calls" in done.stdout) == (1, True)
    assert (node_of(host).bin / OURS).exists()
    (host / "etc/elsewhere").unlink()
    assert uninstall(host).returncode == 0
    assert not (node_of(host).bin / OURS).exists()


def test_pods_in_the_ledger_are_named_and_no_file_is_removed(host: Path) -> None:
    with closing(Receipts(host / STATE / "ledger.db")) as receipts:
        receipts.put(receipt())
    before = files(host)
    done = uninstall(host)
    assert done.returncode == 1
    pod = receipt().pod
    assert f"pods hold interfaces: {pod.namespace}/{pod.name}; end them" in done.stderr
    assert "while no agent runs, nothing comes back" in done.stderr
    assert files(host) == before


def test_a_lost_ledger_is_not_taken_for_an_empty_one(host: Path) -> None:
    (host / STATE / "ledger.db").unlink()
    (host / RUN / "attachments" / "c1").touch()
    done = uninstall(host)
    assert done.returncode == 1
    assert "does not exist, although 1 containers have interfaces from it" in done.stderr
    assert (host / RUN / "exclusive-devices").exists()


@contextmanager
def agent(host: Path, *pods: str) -> Iterator[None]:
    """One that answers everybody with a report of these pods."""
    held = tuple(
        Allocation(
            pod=ReportedPod(namespace="default", name=name, uid=name),
            container_id=name,
            phase="attached",
            interfaces=(),
        )
        for name in pods
    )
    report = NodeReport(node="w1", generation="1.1", ledger="ok", pfs=(), allocations=held)
    message = encode_message(MessageKind.REPORT, encode_report(report))

    def serve(listener: socket.socket) -> None:
        while True:
            try:
                connection, _ = listener.accept()
            except OSError:
                return
            with connection:
                connection.sendall(message)

    with closing(socket.socket(socket.AF_UNIX)) as listener:
        listener.bind(str(host / RUN / "state.sock"))
        listener.listen()
        thread = threading.Thread(target=serve, args=(listener,))
        thread.start()
        try:
            yield
        finally:
            listener.shutdown(socket.SHUT_RDWR)
            thread.join()


def test_pods_that_the_agent_reports_are_named(host: Path) -> None:
    before = files(host)
    with agent(host, *(f"p{number:02}" for number in range(12))):
        done = uninstall(host)
    assert done.returncode == 1
    assert "default/p00, default/p01" in done.stderr
    assert "default/p09 and 2 more; end them" in done.stderr
    assert files(host) - {str(RUN / "state.sock")} == before


def test_files_of_an_agent_that_runs_stay_until_it_has_ended(host: Path) -> None:
    with agent(host):
        done = uninstall(host)
    assert done.returncode == 1
    assert "left: the agent runs" in done.stdout
    assert node_of(host).types() == ["bridge", "portmap"]
    assert (host / RUN / "exclusive-devices").exists()
    assert uninstall(host).returncode == 0
    assert not (host / RUN).exists()


def test_executable_stays_while_crio_will_call_it(host: Path) -> None:
    crio = host / "run/crio"
    crio.mkdir()
    (crio / "crio.sock").touch()
    cache = host / "var/lib/cni/results"
    cache.mkdir(parents=True)
    cached = {
        "kind": "cniCacheV1",
        "containerId": "c1",
        "ifName": "eth0",
        "networkName": "pods",
        "config": base64.b64encode((host / "node/net.d" / FILE).read_bytes()).decode(),
    }
    (cache / "pods-c1-eth0").write_text(json.dumps(cached))
    (cache / "other").write_text("{}")
    done = uninstall(host)
    assert done.returncode == 1
    assert "which CRI-O calls when pods end that were started with it (1 attachments, pods/eth0 of c1)" in (
        done.stdout
    )
    assert (host / "node/bin" / OURS).exists()
    assert not (host / RUN).exists()
    (cache / "pods-c1-eth0").unlink()
    assert uninstall(host).returncode == 0
    assert not (host / "node/bin" / OURS).exists()


@pytest.mark.parametrize("kept", ["net.d", "bin"])
def test_installer_that_keeps_files_in_place_is_to_be_ended_first(host: Path, kept: str) -> None:
    with NodeDirectory(host / "node" / kept).locked(0):
        done = uninstall(host)
    assert done.returncode == 1
    assert "another `k8s-rdma install-cni` is running" in done.stderr
    assert OURS in node_of(host).types()
