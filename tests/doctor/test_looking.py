"""Facts that are read of a node's files, whose root is somewhere else."""

from __future__ import annotations

import json
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest

from http_server.certificates import Issuer
from k8s_rdma import __version__
from k8s_rdma.config.devices import DevicePluginConfig, ExactResource, ExclusiveResource, SharedResource
from k8s_rdma.core.devices.rdma_devices import NetnsMode
from k8s_rdma.doctor.collectors.host import Host, Process
from k8s_rdma.doctor.collectors.ledger import ledger_facts
from k8s_rdma.doctor.collectors.node import cni_facts, memlock_limits, needs_cdi
from k8s_rdma.doctor.collectors.objects import mounts_of
from k8s_rdma.doctor.collectors.processes import process_facts
from k8s_rdma.doctor.collectors.runtimes import find_runtimes
from k8s_rdma.doctor.node.processes import check_processes
from k8s_rdma.doctor.node.runtime import RuntimeFacts, check_runtime
from k8s_rdma.linux.receipts import Receipts

LIMITS = """\
Limit                     Soft Limit           Hard Limit           Units
Max locked memory         {soft:<20} {soft:<20} bytes
Max open files            1024                 524288               files
"""
CONTAINERD = """\
version = 2
imports = ["/etc/containerd/conf.d/*.toml"]
[plugins."io.containerd.grpc.v1.cri".cni]
  bin_dir = "/usr/libexec/cni"
"""
MORE = """\
version = 2
[plugins."io.containerd.grpc.v1.cri"]
  enable_cdi = true
  cdi_spec_dirs = ["/etc/cdi"]
"""
CRIO = """\
[crio.network]
network_dir = "/etc/crio/net.d/"
plugin_dirs = ["/usr/libexec/cni", "/opt/cni/bin"]
"""


@pytest.fixture
def host(tmp_path: Path) -> Host:
    (tmp_path / "proc").mkdir()
    return Host(tmp_path)


def put(host: Host, path: str, text: str) -> Path:
    file = host.root / path.removeprefix("/")
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text)
    return file


def process(host: Host, pid: int, name: str, *arguments: str, soft: str = "unlimited") -> None:
    put(host, f"/proc/{pid}/comm", f"{name}\n")
    put(host, f"/proc/{pid}/cmdline", "\0".join([name, *arguments, ""]))
    put(host, f"/proc/{pid}/limits", LIMITS.format(soft=soft))


def test_containerd_configuration_is_read_with_its_imports(host):
    process(host, 40, "containerd")
    put(host, "/etc/containerd/config.toml", CONTAINERD)
    put(host, "/etc/containerd/conf.d/10-cdi.toml", MORE)
    put(host, "/etc/containerd/conf.d/readme.txt", "no TOML")
    [setup] = find_runtimes(host)
    assert (setup.conf_dir, setup.bin_dirs) == ("/etc/cni/net.d", ("/usr/libexec/cni",))
    assert setup.runtime.enable_cdi is True
    assert setup.runtime.cdi_dirs == ("/etc/cdi",)
    assert setup.runtime.version == ""  # no program to ask


@pytest.mark.parametrize(
    ("told", "version"), [("containerd://2.2.1", "2.2.1"), ("cri-o://1.33.2", ""), ("", "")]
)
def test_runtime_without_a_version_has_the_one_that_kubelet_reports(host, told, version):
    process(host, 40, "containerd")
    put(host, "/usr/bin/containerd", "")  # may be another's: Docker brings one as well
    [setup] = find_runtimes(host, lambda: told)
    assert setup.runtime.version == version
    if version:
        [found] = check_runtime(RuntimeFacts(runtimes=(setup.runtime,)))
        assert found.source == "kubelet; /etc/containerd/config.toml"


def test_containerd_configuration_is_read_at_the_path_of_its_command_line(host):
    process(host, 40, "containerd", "-c", "/var/lib/rancher/config.toml")
    put(
        host,
        "/var/lib/rancher/config.toml",
        'version = 3\n[plugins."io.containerd.cri.v1.runtime".cni]\n'
        'conf_dir = "/var/lib/rancher/net.d"\nbin_dirs = ["/a", "/b"]\n',
    )
    [setup] = find_runtimes(host)
    assert setup.runtime.config == "/var/lib/rancher/config.toml"
    assert (setup.conf_dir, setup.bin_dirs) == ("/var/lib/rancher/net.d", ("/a", "/b"))


def test_crio_is_read_with_its_drop_ins(host):
    process(host, 41, "crio")
    put(host, "/etc/crio/crio.conf.d/10-net.conf", CRIO)
    [setup] = find_runtimes(host)
    assert (setup.conf_dir, setup.bin_dirs) == ("/etc/crio/net.d", ("/usr/libexec/cni", "/opt/cni/bin"))
    assert setup.runtime.memlock == ""


def test_limit_that_crio_gives_all_containers_is_of_its_last_drop_in(host):
    process(host, 41, "crio")
    for name, limits in (("10", '["memlock=1:1"]'), ("20", '["nofile=1:1", "memlock=8388608:-1"]')):
        put(host, f"/etc/crio/crio.conf.d/{name}.conf", f"[crio.runtime]\ndefault_ulimits = {limits}\n")
    [setup] = find_runtimes(host)
    assert setup.runtime.memlock == "8388608:-1"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("version 2", "line 1"),
        ('imports = "one"', "$.imports"),
        ('plugins = ["a"]', "$.plugins"),
        ('[plugins."io.containerd.grpc.v1.cri"]\ncni = 1', "$.cni"),
    ],
)
def test_configuration_of_another_form_is_a_fault_of_the_runtime(host, text, said):
    process(host, 40, "containerd")
    put(host, "/etc/containerd/config.toml", text)
    [setup] = find_runtimes(host)
    assert said in setup.runtime.fault


def found_configs(host: Host) -> list[str]:
    return [setup.runtime.config for setup in find_runtimes(host)]


DOCKERS = "/var/run/docker/containerd/containerd.toml"


@pytest.fixture
def crowded(host: Host) -> Host:
    """A node with Docker's containerd, which has the lowest PID, another one, kubelet's, and CRI-O."""
    process(host, 20, "containerd", "--config", DOCKERS)
    put(host, DOCKERS, '[grpc]\naddress = "/var/run/docker/containerd/containerd.sock"\n')
    process(host, 30, "containerd", "-c", "/etc/k3s.toml", "-a", "/run/k3s/containerd/containerd.sock")
    process(host, 40, "containerd")
    process(host, 41, "crio")
    put(host, "/etc/crio/crio.conf.d/10.conf", '[crio.api]\nlisten = "/run/crio/other.sock"\n')
    return host


@pytest.mark.parametrize(
    ("arguments", "text", "config"),
    [
        ((), None, "/etc/containerd/config.toml"),
        (("--container-runtime-endpoint=unix:///run/k3s/containerd/containerd.sock",), None, "/etc/k3s.toml"),
        (
            ("--config", "/k.yaml"),
            "containerRuntimeEndpoint: unix:///run/crio/other.sock",
            "/etc/crio/crio.conf",
        ),
        (("--config", "/k.yaml"), "kind: KubeletConfiguration", "/etc/containerd/config.toml"),
    ],
)
def test_runtime_is_the_one_whose_socket_kubelet_uses(crowded, arguments, text, config):
    process(crowded, 50, "kubelet", *arguments)
    if text is not None:
        put(crowded, "/k.yaml", text)
    assert found_configs(crowded) == [config]


def test_drop_in_of_kubelet_stands_above_its_file(crowded):
    process(crowded, 50, "kubelet", "--config=/k.yaml", "--config-dir=/k.d")
    put(crowded, "/k.yaml", "containerRuntimeEndpoint: unix:///run/crio/other.sock")
    put(
        crowded, "/k.d/10.conf", "containerRuntimeEndpoint: unix:///var/run/docker/containerd/containerd.sock"
    )
    put(crowded, "/k.d/20.conf", "containerRuntimeEndpoint: ''")
    assert found_configs(crowded) == [DOCKERS]


def test_socket_is_the_same_by_a_link(crowded):
    (crowded.root / "linked").symlink_to("/run")
    process(crowded, 50, "kubelet", "--container-runtime-endpoint", "unix:///linked/crio/other.sock")
    assert found_configs(crowded) == ["/etc/crio/crio.conf"]


@pytest.mark.parametrize(
    "arguments",
    [
        None,
        ("--config", "/absent.yaml"),
        ("--config", "/malformed.yaml"),
        ("--container-runtime-endpoint=unix:///run/other.sock",),
    ],
)
def test_first_runtime_of_each_kind_is_examined_if_that_of_kubelet_is_unknown(crowded, arguments):
    put(crowded, "/malformed.yaml", "a: [")
    if arguments is not None:
        process(crowded, 50, "kubelet", *arguments)
    assert found_configs(crowded) == [DOCKERS, "/etc/crio/crio.conf"]


def test_limits_are_of_every_process_that_starts_containers(host):
    process(host, 40, "containerd", soft="8388608")
    process(host, 41, "kubelet", soft="65536")
    process(host, 42, "dockerd")
    found = {each.name: each.soft_bytes for each in memlock_limits(host)}
    assert found == {"containerd": 8388608, "dockerd": None}


@pytest.mark.parametrize("argument", ["--config=/x", "--config\0/x"])
def test_option_is_found_in_both_forms(argument):
    assert Process(pid=1, name="crio", arguments=("crio", *argument.split("\0"))).option("--config") == "/x"


def test_option_without_a_value_counts_as_absent():
    assert Process(pid=1, name="crio", arguments=("crio", "--config")).option("--config") is None


def test_links_of_the_node_are_followed_within_its_root(host):
    """As on nodes whose /etc/cni/net.d is a link to another place by an absolute path."""
    put(host, "/var/cni/10-net.conflist", "{}")
    (host.root / "etc/cni").mkdir(parents=True)
    (host.root / "etc/cni/net.d").symlink_to("/var/cni")
    facts = cni_facts(
        host,
        conf_dir="/etc/cni/net.d",
        bin_dirs=("/opt/cni/bin",),
        run_dir="/run/k8s-rdma",
        calls_check=False,
    )
    assert [each.name for each in facts.files] == ["10-net.conflist"]


def test_program_that_is_not_executable_is_reported(host):
    put(host, "/opt/cni/bin/k8s-rdma-cni", "")
    facts = cni_facts(
        host,
        conf_dir="/etc/cni/net.d",
        bin_dirs=("/opt/cni/bin",),
        run_dir="/run/k8s-rdma",
        calls_check=False,
    )
    assert facts.broken == {"k8s-rdma-cni": "/opt/cni/bin/k8s-rdma-cni is not executable"}


def test_program_with_another_answer_is_reported(tmp_path):
    program = tmp_path / "k8s-rdma-cni"
    program.write_text("#!/bin/sh\necho hello\n")
    program.chmod(0o755)
    facts = cni_facts(
        Host(Path("/")),
        conf_dir="/nowhere",
        bin_dirs=(str(tmp_path),),
        run_dir="/run/k8s-rdma",
        calls_check=False,
    )
    assert facts.broken == {"k8s-rdma-cni": "it answers VERSION by b'hello\\n'"}


def test_cdi_is_needed_if_the_agent_writes_specifications():
    exclusive, shared = ExclusiveResource(), SharedResource(name="rdma/shared", count=2)
    plugin = DevicePluginConfig(resources=(ExactResource(), exclusive, shared))
    assert needs_cdi(plugin, NetnsMode.SHARED) == ("k8s-rdma.io/slot",)
    assert needs_cdi(plugin, NetnsMode.EXCLUSIVE) == ("k8s-rdma.io/slot", exclusive.name)
    assert needs_cdi(None, NetnsMode.SHARED) == ()


def test_ledger_is_read_without_being_touched(tmp_path):
    path = tmp_path / "ledger.db"
    with closing(Receipts(path)):
        pass
    before = path.read_bytes(), sorted(each.name for each in tmp_path.iterdir())
    facts = ledger_facts(path, agent_socket="")
    assert (facts.exists, facts.fault, facts.receipts) == (True, "", 0)
    assert (path.read_bytes(), sorted(each.name for each in tmp_path.iterdir())) == before


@pytest.mark.parametrize(
    ("version", "said", "newer"), [(99, "of version 99", True), (None, "corrupt", False)]
)
def test_ledger_that_no_agent_could_use_is_a_fault(tmp_path, version, said, newer):
    path = tmp_path / "ledger.db"
    if version is None:
        path.write_bytes(b"no database" * 100)
    else:
        with closing(sqlite3.connect(path)) as db:
            db.execute(f"PRAGMA user_version = {version}")
    facts = ledger_facts(path, agent_socket="")
    assert said in facts.fault
    assert facts.newer is newer
    assert str(path) in facts.fault


def test_ledger_that_is_not_there_is_no_fault(tmp_path):
    assert ledger_facts(tmp_path / "ledger.db", agent_socket="").exists is False


def test_silent_process_is_reported(tmp_path):
    facts = process_facts(tmp_path / "state.sock", server="http://127.0.0.1:1", plugin=None)
    assert facts.why == f"{tmp_path}/state.sock: No such file or directory"
    assert facts.report is None
    assert facts.server is not None
    assert "refused" in facts.server.why
    assert facts.plugin is None


def test_deletions_that_are_left_to_the_agent_are_reported_with_advice(tmp_path):
    deletions = tmp_path / "deletions"
    deletions.mkdir()
    for name in (".17.4", *(f"c{number}:eth0:net" for number in range(5))):
        (deletions / name).touch()
    facts = process_facts(tmp_path / "state.sock", server=None, plugin=None)
    [found] = [each for each in check_processes(facts) if each.id == "processes-ends-left"]
    assert "wait for the agent: 5 (c0:eth0:net, c1:eth0:net, c2:eth0:net, ...)" in found.found
    assert (found.source, found.fix) == (str(deletions), "start the agent")


@pytest.mark.parametrize(("demanding", "version"), [(False, __version__), (True, "")])
def test_server_with_a_certificate_is_alive_also_when_it_demands_ours(tmp_path, demanding, version):
    issuer = Issuer(tmp_path).make()
    own = issuer.issue("server")
    tls = {"certFile": str(own.cert), "keyFile": str(own.key)}
    tls |= {"clientCaFile": str(issuer.own.cert)} if demanding else {}
    settings = {"listen": "127.0.0.1", "port": 0, "runDir": str(tmp_path), "tls": tls}
    (tmp_path / "server.yaml").write_text(json.dumps(settings))
    command = [sys.executable, "-m", "k8s_rdma", "server", "--config", str(tmp_path / "server.yaml")]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as server:
        assert server.stderr is not None
        lines = (json.loads(line) for line in server.stderr)
        port = next(line["port"] for line in lines if line["event"] == "server_ready")
        answer = process_facts(tmp_path / "none", server=f"https://127.0.0.1:{port}", plugin=None).server
        server.terminate()
    assert answer is not None
    assert (answer.why, answer.version) == ("", version)


def test_nodes_that_offer_all_of_dev_infiniband_are_found_by_either_name():
    def node(name: str, **allocatable: str) -> dict[str, object]:
        return {"metadata": {"name": name}, "status": {"allocatable": allocatable}}

    mount, older = "rdma-sriov/dev-infiniband-mount", "rdma-sriov/vf"
    nodes = [
        node("w1", **{mount: "10k", "k8s-rdma.io/slot": "1k"}),
        node("w2", **{mount: "10k", older: "5"}),
        node("w3", **{mount: "0"}),
        {"metadata": {"name": "w4"}},
    ]
    assert mounts_of(nodes) == {mount: ("w1", "w2"), older: ("w2",)}
