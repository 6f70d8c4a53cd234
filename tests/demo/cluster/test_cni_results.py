from __future__ import annotations

import json

import pytest

from k8s_rdma_demo.cluster.cni_results import pod_ips, result_in_version


@pytest.mark.parametrize(
    ("added", "deleted"),
    [("0.4.0-ADD-1", "1.0.0-DEL-1"), ("0.3.1-ADD-1", "0.4.0-DEL-1"), ("1.0.0-ADD-1", "0.3.1-DEL-1")],
)
def test_result_is_converted_as_recorded_when_the_conflist_changed_version(added, deleted, recording):
    result = json.loads(recording(f"cni/{added}")["stdout"])
    stdin = recording(f"cni/{deleted}")["stdin"]
    assert result_in_version(result, stdin["cniVersion"]) == stdin["prevResult"]
    back = result_in_version(stdin["prevResult"], result["cniVersion"])
    assert back == recording(f"cni/{added}")["stdin"]["prevResult"]


@pytest.mark.parametrize(
    ("result", "ips"),
    [
        ({"interfaces": [{"name": "cni0"}, {"name": "eth0"}], "ips": [{"address": "10.0.0.1/24"}]}, 1),
        ({"interfaces": [{"name": "cni0"}], "ips": [{"address": "10.0.0.1/24", "interface": 0}]}, 0),
        ({"interfaces": [{"name": "eth0"}], "ips": [{"address": "fd00::1/64", "interface": 0}]}, 1),
        ({"ips": [{"address": "10.0.0.1/24", "interface": 9}]}, 1),
        ({}, 0),
    ],
)
def test_pods_addresses_are_those_of_its_own_interface(result, ips):
    assert len(pod_ips(result, "eth0")) == ips
