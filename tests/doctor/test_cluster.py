"""Policies that doctor wants in a cluster, and the scheduler of kubeadm that it looks at."""

from __future__ import annotations

import pytest
import yaml

from doctor.cases.scheduler import (
    ROOT,
)
from k8s_rdma.doctor.collectors.cluster import (
    MANIFEST,
    OF_A_SECOND_SCHEDULER,
    OF_EXTENDERS_ACCOUNT,
    POLICIES,
    of_kubeadm,
)
from k8s_rdma.doctor.collectors.host import Host


def test_policies_that_are_wanted_are_in_the_manifests():
    files = (ROOT / "deploy" / "policies").glob("*.yaml")
    names = {
        document["metadata"]["name"] for path in files for document in yaml.safe_load_all(path.read_text())
    }
    assert names >= POLICIES | OF_A_SECOND_SCHEDULER | OF_EXTENDERS_ACCOUNT


def manifest(*arguments: str, mount: str = "/etc/kubernetes", sub_path: str = "") -> str:
    volume = {"name": "config", "hostPath": {"path": "/etc/kubernetes"}}
    mounted = {"name": "config", "mountPath": mount} | ({"subPath": sub_path} if sub_path else {})
    container = {"command": ["kube-scheduler", *arguments], "volumeMounts": [mounted]}
    return yaml.safe_dump({"kind": "Pod", "spec": {"containers": [container], "volumes": [volume]}})


@pytest.fixture
def host(tmp_path):
    def made(text: str, configuration: str = "") -> Host:
        (tmp_path / "etc/kubernetes/manifests").mkdir(parents=True)
        (tmp_path / MANIFEST.removeprefix("/")).write_text(text)
        if configuration:
            (tmp_path / "etc/kubernetes/scheduler.yaml").write_text(configuration)
        return Host(tmp_path)

    return made


@pytest.mark.parametrize(
    ("argument", "mount", "sub_path"),
    [
        ("--config=/etc/kubernetes/scheduler.yaml", "/etc/kubernetes", ""),
        ("--config=/config/scheduler.yaml", "/config", ""),
        ("--config=/config.yaml", "/config.yaml", "scheduler.yaml"),
    ],
)
def test_configuration_of_kubeadm_is_found_by_its_mount(host, argument, mount, sub_path):
    found = of_kubeadm(host(manifest(argument, mount=mount, sub_path=sub_path), "kind: x"))
    assert found is not None
    assert (found.location, found.text) == ("/etc/kubernetes/scheduler.yaml", "kind: x")


def test_scheduler_of_kubeadm_without_a_configuration_is_reported(host):
    found = of_kubeadm(host(manifest("--leader-elect=true")))
    assert found is not None
    assert found.unset


@pytest.mark.parametrize(
    "text", ["kind: Pod", "[", "kind: Pod\nspec: null", "kind: Pod\nspec: {containers: []}"]
)
def test_manifest_of_another_form_is_reported(host, text):
    found = of_kubeadm(host(text))
    assert found is not None
    assert found.why.startswith("no manifest of a pod: ")


def test_configuration_that_is_not_mounted_is_reported(host):
    found = of_kubeadm(host(manifest("--config=/elsewhere/scheduler.yaml")))
    assert found is not None
    assert (found.text, found.why) == (
        None,
        "--config=/elsewhere/scheduler.yaml is in no volume of the pod: mount it by hostPath",
    )


def test_configuration_that_is_not_on_the_host_is_reported(host):
    found = of_kubeadm(host(manifest("--config=/etc/kubernetes/scheduler.yaml")))
    assert found is not None
    assert "there is no /etc/kubernetes/scheduler.yaml on the host" in found.why


def test_node_without_a_control_plane_has_no_scheduler(tmp_path):
    assert of_kubeadm(Host(tmp_path)) is None
