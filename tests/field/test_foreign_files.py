"""Configurations of other programs, given to ours by those who migrate."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from doctor.cases.cni import cni
from k8s_rdma.config.agent import AgentConfig
from k8s_rdma.config.devices import load_device_config
from k8s_rdma.config.extender import ExtenderConfig
from k8s_rdma.config.files import load_config
from k8s_rdma.config.init import InitConfig
from k8s_rdma.errors import MalformedError
from k8s_rdma_simulation.scenario import load_scenario, load_trace
from simulation.test_scenario import TEXT as SCENARIO

DOCS = Path(__file__).parents[2]

RESOURCE_LIST = {
    "resourceList": [
        {
            "resourceName": "mlnx_sriov_rdma",
            "resourcePrefix": "mellanox.com",
            "selectors": [{"vendors": ["15b3"], "devices": ["1018"], "drivers": ["mlx5_ib"], "isRdma": True}],
        }
    ]
}
"""README of github.com/k8snetworkplumbingwg/sriov-network-device-plugin."""

HCA_MODE = {"mode": "hca", "pfNetdevices": ["ib0", "ib1"]}
"""README of github.com/Mellanox/k8s-rdma-sriov-dev-plugin."""

CONFIG_LIST = {"configList": [{"resourceName": "hca", "rdmaHcaMax": 1000, "devices": ["ib0"]}]}
"""README of github.com/Mellanox/k8s-rdma-shared-dev-plugin."""

NODE_POLICY = {
    "apiVersion": "sriovnetwork.openshift.io/v1",
    "kind": "SriovNetworkNodePolicy",
    "metadata": {"name": "policy-1"},
    "spec": {"numVfs": 8, "nicSelector": {"vendor": "15b3"}, "isRdma": True, "resourceName": "mlx"},
}
"""doc/quickstart.md of github.com/k8snetworkplumbingwg/sriov-network-operator."""

CONFIG_MAP = {
    "apiVersion": "v1",
    "kind": "ConfigMap",
    "metadata": {"name": "sriovdp-config"},
    "data": {"config.json": json.dumps(RESOURCE_LIST)},
}
"""deployments/configMap.yaml of github.com/k8snetworkplumbingwg/sriov-network-device-plugin."""

SCHEDULER = {"apiVersion": "kubescheduler.config.k8s.io/v1", "kind": "KubeSchedulerConfiguration"}
CONFLIST = {"cniVersion": "0.3.1", "name": "sriov", "plugins": [{"type": "sriov"}]}


def refusal(load: Any, tmp_path: Path, document: object) -> str:
    path = tmp_path / "file.yaml"
    path.write_text(json.dumps(document))
    with pytest.raises(MalformedError) as refused:
        load(str(path))
    assert str(path) in refused.value.message
    return refused.value.message


def device_plugin(path: str) -> object:
    return load_device_config(path, {})


def agent(path: str) -> object:
    return load_config(AgentConfig, path, {})


def extender(path: str) -> object:
    return load_config(ExtenderConfig, path, {})


def init(path: str) -> object:
    return load_config(InitConfig, path, {})


@pytest.mark.parametrize(
    ("load", "document", "says", "page"),
    [
        (device_plugin, RESOURCE_LIST, "a file of sriov-network-device-plugin", "migration-sriov"),
        (device_plugin, HCA_MODE, "a file of k8s-rdma-sriov-dev-plugin", "migration-mellanox-shared"),
        (agent, CONFIG_LIST, "a file of k8s-rdma-shared-dev-plugin", "migration-mellanox-shared"),
        (init, NODE_POLICY, "an object of sriov-network-operator", "migration-sriov"),
        (extender, SCHEDULER, "is kube-scheduler's own configuration", "extender-configuration"),
        (agent, CONFLIST, "is a CNI network configuration", "cni"),
        (device_plugin, CONFIG_MAP, "is a ConfigMap; give the text of its key (config.json)", ""),
        (init, {**CONFIG_MAP, "kind": "Secret"}, "is a Kubernetes object of kind Secret", ""),
    ],
    ids=lambda value: getattr(value, "__name__", str(value)),
)
def test_file_of_another_program_is_named_with_the_page(
    load: Any, document: object, says: str, page: str, tmp_path: Path
):
    told = refusal(load, tmp_path, document)
    assert says in told
    assert "did you mean" not in told
    if page:
        assert f"docs/{page}.md" in told
        assert (DOCS / "docs" / f"{page}.md").exists()


def test_misspelt_key_of_ours_is_still_named_by_its_neighbour(tmp_path: Path):
    assert "did you mean resources?" in refusal(device_plugin, tmp_path, {"resource": []})


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig"])
def test_trace_of_a_spreadsheet_is_read(encoding: str, tmp_path: Path):
    """Excel and others write CSV with a byte order mark."""
    scenario, trace = tmp_path / "scenario.yaml", tmp_path / "trace.csv"
    scenario.write_text(SCENARIO.replace("arrivals: {exponential: 1}", "trace: trace.csv"))
    trace.write_text("arrival_s,lifetime_s,shape\n0,10,a\n", encoding=encoding)
    arrivals = load_trace(load_scenario(str(scenario)), str(scenario))
    assert arrivals is not None
    assert [arrival.lifetime_s for arrival in arrivals] == [10]


def test_doctor_takes_a_lone_loopback_for_no_network():
    """A node that kubeadm has joined, before its network plugin is there."""
    loopback = json.dumps({"cniVersion": "0.3.1", "name": "lo", "type": "loopback"})
    [finding] = cni(("99-loopback.conf", loopback))
    assert finding.id == "cni-no-file"
    assert finding.found == "there is no network configuration but 99-loopback.conf"
