from __future__ import annotations

from fractions import Fraction

import msgspec
import pytest

from k8s_rdma.wire.objects.pod import PodSpecDemand
from k8s_rdma.wire.pod_spec import demand_of


def demand(**spec: object) -> dict[str, Fraction] | None:
    found = demand_of(msgspec.convert(spec, PodSpecDemand))
    return None if found is None else dict(found)


def asking(**requests: str) -> dict[str, object]:
    return {"resources": {"requests": requests}}


def test_demand_is_the_sum_of_containers_that_run_together():
    found = demand(containers=[asking(cpu="1", memory="1Gi"), asking(cpu="500m")], overhead={"cpu": "100m"})
    assert found == {"cpu": Fraction(16, 10), "memory": 1024**3}


def test_demand_is_that_of_the_largest_init_container_when_it_asks_for_more():
    sidecar = {**asking(cpu="1"), "restartPolicy": "Always"}
    inits = [asking(cpu="2"), sidecar, asking(cpu="3", vf="1")]
    assert demand(initContainers=inits, containers=[asking(cpu="2")]) == {"cpu": 4, "vf": 1}
    assert demand(initContainers=inits, containers=[asking(cpu="5")]) == {"cpu": 6, "vf": 1}


@pytest.mark.parametrize(
    "more",
    [
        {"containers": [{"ports": [{"hostPort": 80}]}]},
        {"initContainers": [{"ports": [{"containerPort": 1}, {"hostPort": 80}]}]},
        {"volumes": [{"name": "v", "persistentVolumeClaim": {"claimName": "c"}}]},
        {"volumes": [{"name": "v", "csi": {}}]},
        {"affinity": {"podAntiAffinity": {}}},
        {"resourceClaims": [{"name": "gpu"}]},
        {"resources": {"requests": {"cpu": "1"}}},
        {"containers": [asking(cpu="much")]},
    ],
)
def test_demand_is_not_known_when_the_pod_may_take_other_things_of_its_node(more):
    assert demand(**more) is None


def test_demand_is_known_with_volumes_that_every_pod_has():
    projected = {"name": "kube-api-access", "projected": {"sources": []}}
    scratch = {"name": "tmp", "emptyDir": {}}
    assert demand(volumes=[projected, scratch], containers=[{"ports": [{"containerPort": 80}]}]) == {}


def test_demand_of_equal_pods_is_one_object():
    specs = [msgspec.convert({"containers": [asking(cpu="1")]}, PodSpecDemand) for _ in range(2)]
    assert demand_of(specs[0]) is demand_of(specs[1])
