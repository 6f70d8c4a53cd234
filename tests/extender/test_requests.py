"""What is remembered of pods between filter and bind is bounded, whatever they ask for."""

from __future__ import annotations

import json

from k8s_rdma.core.ids import PodUid
from k8s_rdma.extender.requests import MAX_CHARACTERS, Requests
from k8s_rdma.wire.annotation import ANNOTATION

LENGTH = 200_000


def large(number: int) -> dict[str, str]:
    """An annotation that fills most of what a pod's annotations may be together."""
    return {ANNOTATION: json.dumps([{"name": f"d{number}"}]).ljust(LENGTH)}


def test_pods_with_long_annotations_are_forgotten_sooner():
    requests = Requests()
    most = MAX_CHARACTERS // LENGTH
    for number in range(most + 3):
        requests.remember(PodUid(f"p{number}"), large(number), 0.0)
    kept = [number for number in range(most + 3) if requests.recall(PodUid(f"p{number}"))]
    assert kept == list(range(3, most + 3))


def test_pod_that_is_filtered_again_or_forgotten_takes_no_more_room():
    requests = Requests()
    for _ in range(3):
        for number in range(MAX_CHARACTERS // LENGTH):
            requests.remember(PodUid(f"p{number}"), large(number), 0.0)
    assert requests.recall(PodUid("p0"))
    requests.forget(PodUid("p0"))
    requests.remember(PodUid("p"), large(0), 0.0)
    assert requests.recall(PodUid("p1"))


def test_annotation_is_read_once_while_it_stays_the_same():
    requests = Requests()
    first = requests.remember(PodUid("p"), large(1), 0.0)
    assert requests.read(PodUid("p"), large(1)) is first
    assert requests.remember(PodUid("p"), large(1), 5.0) is first
    assert requests.recall(PodUid("p")).filtered_at == 5.0
    assert requests.read(PodUid("p"), large(2)) != first
    assert requests.read(PodUid("q"), large(1)) is not first
