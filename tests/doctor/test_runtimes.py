"""Container runtimes of a node, by their configuration and by the one that kubelet uses."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from doctor.host_files import process, put
from k8s_rdma.doctor.collectors.runtimes import find_runtimes
from k8s_rdma.doctor.node.runtime import RuntimeFacts, check_runtime

if TYPE_CHECKING:
    from k8s_rdma.doctor.collectors.host import Host

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
