"""Facts that are read of a node's files, whose root is somewhere else."""

from __future__ import annotations

from pathlib import Path

from doctor.host_files import process, put
from k8s_rdma.config.devices import DevicePluginConfig, ExactResource, ExclusiveResource, SharedResource
from k8s_rdma.core.devices.rdma_devices import NetnsMode
from k8s_rdma.doctor.collectors.host import Host
from k8s_rdma.doctor.collectors.node import cni_facts, memlock_limits, needs_cdi


def test_limits_are_of_every_process_that_starts_containers(host):
    process(host, 40, "containerd", soft="8388608")
    process(host, 41, "kubelet", soft="65536")
    process(host, 42, "dockerd")
    found = {each.name: each.soft_bytes for each in memlock_limits(host)}
    assert found == {"containerd": 8388608, "dockerd": None}


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
