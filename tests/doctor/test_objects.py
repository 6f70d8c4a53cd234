"""Objects of any kind as doctor counts them."""

from __future__ import annotations

from k8s_rdma.doctor.collectors.objects import mounts_of


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
