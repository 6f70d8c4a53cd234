"""The memory of pods between filter and bind is bounded, whatever they ask for."""

from __future__ import annotations

import itertools
import json

import msgspec
import pytest

from extender.test_pod_store import amounts, document
from k8s_rdma.core.namespace_policy import NamespacePolicies, NamespacePolicy
from k8s_rdma.core.request import PfPolicy
from k8s_rdma.core.types import PodUid
from k8s_rdma.errors import MalformedError
from k8s_rdma.extender.pod_requests import MAX_CHARACTERS, PodRequestCache
from k8s_rdma.kube.api import PodView
from k8s_rdma.wire.annotation import ANNOTATION, POLICY_ANNOTATION
from k8s_rdma.wire.extender import PodMetadata, PodToSchedule
from k8s_rdma.wire.objects.pod import PodSpecDemand

LENGTH = 100_000


def pod(name: str, annotations: dict[str, str], **spec: object) -> PodToSchedule:
    """As filter sends it; its UID is its name."""
    return PodToSchedule(
        metadata=PodMetadata(name=name, namespace="default", uid=name, annotations=annotations),
        spec=msgspec.convert(spec, PodSpecDemand),
    )


def seen(uid: str, annotations: dict[str, str]) -> PodView:
    """The same as the API server has it."""
    return PodView(
        namespace="default", name=uid, uid=PodUid(uid), node=None, finished=False, annotations=annotations
    )


def large(number: int) -> dict[str, str]:
    """An annotation that is almost as long as one may be."""
    return {ANNOTATION: json.dumps([{"name": f"d{number}"}]).ljust(LENGTH)}


def test_pods_with_long_annotations_are_forgotten_sooner():
    requests = PodRequestCache()
    most = MAX_CHARACTERS // LENGTH
    for number in range(most + 3):
        requests.put(pod(f"p{number}", large(number)), 0.0)
    kept = [number for number in range(most + 3) if requests.get(PodUid(f"p{number}"))]
    assert kept == list(range(3, most + 3))


def test_pod_that_is_filtered_again_or_forgotten_takes_no_more_room():
    requests = PodRequestCache()
    for _ in range(3):
        for number in range(MAX_CHARACTERS // LENGTH):
            requests.put(pod(f"p{number}", large(number)), 0.0)
    assert requests.get(PodUid("p0"))
    requests.on_delete(PodUid("p0"))
    requests.put(pod("p", large(0)), 0.0)
    assert requests.get(PodUid("p1"))


def test_annotation_is_read_once_while_it_stays_the_same():
    requests = PodRequestCache()
    first = requests.put(pod("p", large(1)), 0.0).request
    assert requests.read(seen("p", large(1))) is first
    assert requests.put(pod("p", large(1)), 5.0).request is first
    assert requests.get(PodUid("p")).filtered_at == 5.0
    assert requests.read(seen("p", large(2))) != first
    assert requests.read(seen("q", large(1))) is not first


def test_reading_is_billed_to_the_pods_namespace_also_when_it_is_malformed():
    ran_s, bills = itertools.count(), []
    requests = PodRequestCache(bill=lambda *bill: bills.append(bill), processor=lambda: float(next(ran_s)))
    requests.put(pod("p", {ANNOTATION: "[{}]"}), 0.0)
    requests.put(pod("p", {ANNOTATION: "[{}]"}), 1.0)
    with pytest.raises(MalformedError):
        requests.read(seen("q", {ANNOTATION: "["}))
    assert bills == [("default", 1.0)] * 2


def test_request_is_read_anew_when_the_pod_is_said_to_be_of_another_namespace():
    """Who reaches the port may say so of any UID: it is the API server's word that is judged by."""
    allowed = NamespacePolicy(name="mac", namespaces=("trusted",), allowed=frozenset({"mac"}))
    requests = PodRequestCache(policies=lambda: policies, vf_resource=None)
    policies = NamespacePolicies((allowed,))
    asked = {ANNOTATION: '[{"mac": "02:00:00:00:00:01"}]'}
    forged = pod("p", asked)
    forged = msgspec.structs.replace(
        forged, metadata=msgspec.structs.replace(forged.metadata, namespace="trusted")
    )
    assert requests.put(forged, 0.0).request
    with pytest.raises(MalformedError, match="namespace default may not have mac"):
        requests.read(seen("p", asked))
    with pytest.raises(MalformedError, match="namespace default may not have mac"):
        requests.put(pod("p", asked), 1.0)


def test_request_is_read_anew_when_the_pod_is_said_to_hold_other_devices():
    requests, asked = PodRequestCache(), {ANNOTATION: "[{}]"}
    assert requests.put(pod("p", asked), 0.0).request.devices == ()
    had = (("tencent.com/rdma", 1),)
    assert requests.read(msgspec.structs.replace(seen("p", asked), devices=had)).devices == had


RESOURCE = "example.com/rdma-vfs"


def asks(count: int | str, **more: object) -> dict[str, object]:
    """A container that asks for so many VFs."""
    return {"resources": {"requests": {RESOURCE: str(count)}}, **more}


def wants(interfaces: int) -> dict[str, str]:
    return {ANNOTATION: json.dumps([{}] * interfaces)}


@pytest.mark.parametrize(
    ("spec", "interfaces"),
    [
        ({"containers": [asks(2)]}, 2),
        ({"containers": [asks(2), {}, asks(1)]}, 3),
        ({"containers": [asks(1)], "initContainers": [asks(3), asks(2)]}, 3),
        ({"containers": [asks(1)], "initContainers": [asks(2, restartPolicy="Always"), asks(2)]}, 4),
        ({"containers": [asks(3)], "initContainers": [asks(2), asks(1, restartPolicy="Always")]}, 4),
        ({"containers": [asks("1k")]}, 1000),
        ({"containers": [{}]}, 2),
        ({}, 0),
    ],
    ids=[
        "one",
        "sum",
        "init",
        "sidecar_beside_init",
        "sidecar_beside_all",
        "thousand",
        "not_counted",
        "none",
    ],
)
def test_pod_is_taken_when_it_is_counted_as_many_vfs_as_it_has_interfaces(spec, interfaces):
    requests = PodRequestCache(vf_resource=RESOURCE)
    asked = requests.parse(pod("p", wants(interfaces) if interfaces else {}, **spec))
    assert len(asked.request.interfaces) == interfaces


@pytest.mark.parametrize("interfaces", [0, 1, 3])
def test_pod_is_refused_with_both_numbers_when_it_is_counted_as_another_number_of_vfs(interfaces):
    requests = PodRequestCache(vf_resource=RESOURCE)
    with pytest.raises(MalformedError, match=f"for {interfaces} interfaces.* request 2 of {RESOURCE}"):
        requests.parse(pod("p", wants(interfaces), containers=[asks(1), asks(1)]))
    PodRequestCache().parse(pod("p", wants(interfaces), containers=[asks(1), asks(1)]))


def test_pod_is_refused_when_its_count_is_no_quantity():
    with pytest.raises(MalformedError, match="'two' is not a quantity"):
        PodRequestCache(vf_resource=RESOURCE).parse(pod("p", wants(2), containers=[asks("two")]))


def test_pod_whose_annotation_became_malformed_is_forgotten():
    requests = PodRequestCache()
    requests.put(pod("p", wants(1)), 0.0)
    with pytest.raises(MalformedError):
        requests.put(pod("p", {ANNOTATION: "[{]"}), 1.0)
    assert requests.get(PodUid("p")) is None


def test_request_is_read_anew_when_the_policy_is_another():
    requests, asked = PodRequestCache(), {ANNOTATION: "[{}]"}
    uid = PodUid("p")
    assert requests.put(pod("p", asked), 0.0).request.policy is PfPolicy.ANY
    under = {**asked, POLICY_ANNOTATION: "same-pf"}
    assert requests.read(seen(uid, under)).policy is PfPolicy.SAME_PF
    requests.invalidate_if_changed(uid, under)
    assert requests.get(uid) is None
    assert requests.put(pod("p", under), 0.0).request.policy is PfPolicy.SAME_PF
    requests.invalidate_if_changed(uid, {**under, "another": "one"})
    assert requests.get(uid) is not None


def test_request_has_the_extended_resources_of_the_pod_by_both_ways_of_reading():
    containers = [
        {"resources": {"limits": {"cpu": "2", "tencent.com/rdma": "1", "nvidia.com/gpu": "8"}}},
        {"resources": {"limits": {"tencent.com/rdma": "1"}}},
    ]
    before = [{"resources": {"limits": {"tencent.com/rdma": "4"}}}]
    asked = PodRequestCache().parse(pod("p", wants(2), containers=containers, initContainers=before)).request
    assert asked.devices == (("nvidia.com/gpu", 8), ("tencent.com/rdma", 2))
    assert (
        PodRequestCache().read(msgspec.structs.replace(seen("p", wants(2)), devices=asked.devices)) == asked
    )


def test_pod_without_the_annotation_requests_no_interface_with_any_devices():
    containers = [{"resources": {"limits": {"tencent.com/rdma": "1"}}}]
    assert not PodRequestCache().parse(pod("p", {}, containers=containers)).request


def test_limit_that_is_no_quantity_is_refused():
    containers = [{"resources": {"limits": {"tencent.com/rdma": "many"}}}]
    with pytest.raises(MalformedError, match="limits of a container"):
        PodRequestCache().parse(pod("p", wants(1), containers=containers))


def test_pod_in_its_nodes_network_is_refused_by_filter_and_by_bind():
    requests = PodRequestCache()
    sentence = "^spec.hostNetwork: a pod in its node's network gets no interfaces$"
    with pytest.raises(MalformedError, match=sentence):
        requests.put(pod("p", {ANNOTATION: "[{}]"}, hostNetwork=True), 0.0)
    assert requests.get(PodUid("p")) is None
    with pytest.raises(MalformedError, match=sentence):
        requests.read_unbound(msgspec.structs.replace(seen("p", {ANNOTATION: "[{}]"}), host_network=True))
    assert not requests.put(pod("q", {}, hostNetwork=True), 0.0).request
    assert requests.put(pod("q", {ANNOTATION: "[{}]"}, hostNetwork=False), 0.0).request


def test_pod_of_more_extended_resources_than_nodes_have_is_refused_and_not_remembered():
    requests = PodRequestCache()
    decoded = msgspec.json.decode(document(0, "", amounts(0)), type=PodToSchedule)
    with pytest.raises(MalformedError, match="10000 extended resources are more than 64"):
        requests.put(decoded, 0.0)
    assert requests.get(PodUid("p0")) is None
