"""Records of pods, whose owners decide how much they hold: the extender's part of it is bounded."""

from __future__ import annotations

import sys
import tracemalloc
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from k8s_rdma.core.types import NodeName, PodUid
from k8s_rdma.extender.pod_store import PodStore
from k8s_rdma.kube.api import PodView
from k8s_rdma.kube.list_watch import decode_object
from k8s_rdma.kube.objects import PodObject

if TYPE_CHECKING:
    from collections.abc import Callable

PODS = 4
LIMITS_AND_REQUESTS = 20_000


def labels(pod: int) -> dict[str, Any]:
    return {"labels": {f"k{pod}-{number}": "" for number in range(40_000)}}


def claims(_pod: int) -> dict[str, Any]:
    names = (f"{number}" for number in range(20_000))
    return {"resourceClaims": [{"name": name, "resourceClaimName": name} for name in names]}


def amounts(pod: int) -> dict[str, Any]:
    some = {f"a.io/r{number}": f"{pod + 1}" for number in range(LIMITS_AND_REQUESTS // 2)}
    return {"containers": [{"name": "c", "resources": {"limits": some, "requests": some}}]}


def document(pod: int, node: str, large: dict[str, Any]) -> bytes:
    annotations = {"rdma_interfaces_required": '[{"min_tx_rate": 100}]'}
    meta = {"namespace": "d", "name": f"p{pod}", "uid": f"p{pod}", "annotations": annotations}
    meta |= {key: value for key, value in large.items() if key == "labels"}
    spec = {"nodeName": node, **{key: value for key, value in large.items() if key != "labels"}}
    return msgspec.json.encode({"metadata": meta, "spec": spec})


@pytest.mark.parametrize("node", ["", "w1"], ids=["unbound", "bound"])
@pytest.mark.parametrize("large", [labels, claims, amounts])
def test_large_pods_take_little_memory_and_none_once_they_are_gone(large, node):
    documents = [document(pod, node, large(pod)) for pod in range(PODS)]
    store = PodStore(max_characters=1 << 20)
    tracemalloc.start()
    try:
        for each in documents:
            store.on_update(decode_object(PodObject, each).view())
        kept, _ = tracemalloc.get_traced_memory()
        assert kept < 2 << 20
        for pod in range(PODS):
            store.on_delete(PodUid(f"p{pod}"))
        left, _ = tracemalloc.get_traced_memory()
        assert left < 1 << 19
    finally:
        tracemalloc.stop()


def test_view_of_a_pod_with_very_many_amounts_calls_at_most_three_functions_for_each():
    pod = decode_object(PodObject, document(0, "", amounts(0)))
    assert calls_of(pod.view) <= 3 * LIMITS_AND_REQUESTS
    view = pod.view()
    assert view.demand is None
    assert view.devices == ()


def calls_of(work: Callable[[], object]) -> int:
    """Count the functions that work calls, those of C as well."""
    calls = 0

    def count(_frame: object, event: str, _function: object) -> None:
        nonlocal calls
        calls += event in ("call", "c_call")

    sys.setprofile(count)
    try:
        work()
    finally:
        sys.setprofile(None)
    return calls


def test_bound_pod_keeps_the_labels_that_pods_have():
    few = {"app": "x", "pod-template-hash": "7d4b"}
    view = decode_object(PodObject, document(0, "w1", {"labels": few})).view()
    assert view.labels == few


def test_unbound_pods_are_kept_with_their_version_though_their_annotations_are_too_long_together():
    pods = PodStore(max_characters=200)

    def pod(name: str, node: str | None = None, text: str = "x" * 80) -> PodView:
        return PodView(
            namespace="n",
            name=name,
            uid=PodUid(name),
            node=NodeName(node) if node else None,
            finished=False,
            annotations={"rdma_interfaces_required": text},
            version=f"{name}1",
        )

    pods.on_update(pod("p"))
    pods.on_update(pod("q"))
    pods.on_update(pod("plain", text=""))
    assert pods.latest(PodUid("p")) is not None
    assert pods.latest(PodUid("q")) is None
    assert sorted(each.version for each in pods.unbound_pods()) == ["p1", "q1"]
    pods.on_update(pod("p", "w1"))
    pods.on_update(pod("q"))
    assert pods.latest(PodUid("q")) is not None
    pods.retain([])
    assert pods.unbound_count == 0
