"""Findings on versions, beside the table of cases."""

from __future__ import annotations

import pytest

from doctor.cases.versions import one_node, versions
from k8s_rdma.doctor.cluster.versions import minor_of, tag_of


@pytest.mark.parametrize(
    ("version", "minor"),
    [("v1.28.15-gke.100", 28), ("v1.36.0+k3s1", 36), ("unknown", None), ("v2.1.0", None)],
)
def test_minor_versions_are_read(version, minor):
    assert minor_of(version) == minor


@pytest.mark.parametrize(
    ("image", "tag"),
    [
        ("registry.example:5000/k8s-rdma:0.1.0", "0.1.0"),
        ("registry.example:5000/k8s-rdma", ""),
        ("k8s-rdma@sha256:0123456789abcdef", "0123456789ab"),
        ("k8s-rdma:0.2.0@sha256:0123456789abcdef", "0.2.0"),
    ],
)
def test_tags_of_images_are_read(image, tag):
    assert tag_of(image) == tag


@pytest.mark.parametrize(
    ("runtime", "told"),
    [
        ("containerd://1.6.20", False),
        ("cri-o://1.28.4", False),
        ("cri-o://1.27.9", True),
        ("docker://24.0.7", True),
        ("", False),
    ],
)
def test_untested_runtimes_are_reported(runtime, told):
    assert any(each.id == "versions-runtime" for each in one_node(runtime=runtime)) is told


@pytest.mark.parametrize(
    ("ours", "differ"),
    [
        ((("a", "0.1.0"), ("b", "v0.1.0")), False),
        ((("a", "stable"), ("this program", "0.1.0")), False),
        ((("a", "stable"), ("b", "edge")), True),
        ((("a", "0.1.0"), ("b", "0.2.0")), True),
        ((("a", ""), ("this program", "0.1.0")), False),
    ],
)
def test_versions_are_compared_with_versions_and_other_tags_with_each_other(ours, differ):
    assert any(each.id == "versions-ours-differ" for each in versions(ours=ours)) is differ


def test_kubelet_older_than_supported_is_an_error():
    assert [each.id for each in one_node(kubelet="v1.27.3")] == ["versions-too-old"]
