"""Changes of running pods' rates, as doctor reads them from pods, their events and reports of nodes."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import pytest

from doctor.cases.rates import rates
from k8s_rdma.core.placement import PlacedInterface, Placement
from k8s_rdma.core.types import NodeName, PciAddress, PodUid
from k8s_rdma.doctor.cluster.rates import RatesFact, RunningRates, check_rates
from k8s_rdma.doctor.collectors.asking_pods import asking_pods
from k8s_rdma.wire.placement_annotation import PLACEMENT_ANNOTATION, encode
from k8s_rdma.wire.rates_status import (
    RATES_STATUS_ANNOTATION,
    RatesState,
    RatesStatus,
    digest,
    encode_rates_status,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

NOW = datetime(2026, 1, 1, 12, tzinfo=UTC)
REQUEST = "rdma_interfaces_required"
FIRST, SECOND = '[{"min_tx_rate": 500}]', '[{"min_tx_rate": 700}]'


class OnePod:
    """In the place of the API server: a running pod and its events."""

    def __init__(self, pod: dict[str, Any], events: tuple[tuple[str, str], ...] = ()) -> None:
        self._pod, self._events = pod, events

    def now(self) -> datetime:
        return NOW

    def items(self, path: str, _: Mapping[str, str] | None = None) -> Iterator[dict[str, Any]]:
        if path == "/api/v1/pods":
            yield self._pod
            return
        for number, (reason, message) in enumerate(self._events):
            at = (NOW + timedelta(seconds=number)).isoformat()
            yield {"involvedObject": {"uid": "u1"}, "lastTimestamp": at, "reason": reason, "message": message}


def placement(mbps: int, generation: int) -> str:
    placed = PlacedInterface(pf=PciAddress("0000:03:00.0"), min_tx_rate_mbps=mbps)
    return encode(
        Placement(node=NodeName("w1"), interfaces=(placed,), generation=generation), PodUid("u1"), None
    )


def status(state: RatesState, text: str, message: str = "") -> str:
    return encode_rates_status(RatesStatus(state=state, generation=1, request=digest(text), message=message))


def pod(annotations: dict[str, str], written: dict[str, float] | None = None) -> dict[str, Any]:
    """written: the age of annotations in seconds."""
    entries = [
        {
            "manager": name,
            "time": (NOW - timedelta(seconds=age)).isoformat(),
            "fieldsV1": {"f:metadata": {"f:annotations": {".": {}, f"f:{name}": {}}}},
        }
        for name, age in (written or {}).items()
    ]
    entries.append({"manager": "kubelet", "subresource": "status", "fieldsV1": {"f:status": {"f:phase": {}}}})
    metadata = {"namespace": "default", "name": "gold", "uid": "u1", "managedFields": entries}
    return {
        "metadata": metadata | {"annotations": annotations},
        "spec": {"nodeName": "w1"},
        "status": {"phase": "Running", "startTime": "2026-01-01T00:00:00Z"},
    }


def fact(api: OnePod, reported: Mapping[str, Mapping[str, int]] | None = None) -> RatesFact:
    [found] = asking_pods(api, {} if reported is None else reported)
    assert found.rates is not None
    return found.rates


def found(*facts: RatesFact) -> list[str]:
    return [each.id for each in check_rates(RunningRates(pods=facts))]


CHANGED = {PLACEMENT_ANNOTATION: placement(700, 1), REQUEST: SECOND}


def test_change_that_its_node_reports_is_in_order():
    annotations = CHANGED | {RATES_STATUS_ANNOTATION: status("admitted", SECOND)}
    assert found(fact(OnePod(pod(annotations)), {"w1": {"u1": 1}})) == ["rates-ok"]


def test_change_that_its_node_does_not_report_is_found_once_it_is_late():
    annotations = CHANGED | {RATES_STATUS_ANNOTATION: status("admitted", SECOND)}
    young = fact(OnePod(pod(annotations, {PLACEMENT_ANNOTATION: 5.0})), {"w1": {"u1": 0}})
    late = fact(OnePod(pod(annotations, {PLACEMENT_ANNOTATION: 300.0, REQUEST: 1.0})), {"w1": {"u1": 0}})
    assert (found(young), found(late)) == (["rates-ok"], ["rates-not-programmed"])
    assert (
        next(check_rates(RunningRates(pods=(late,)))).found == "w1 has not reported generation 1, for 300 s"
    )


def test_age_that_the_api_does_not_tell_is_not_young():
    annotations = CHANGED | {RATES_STATUS_ANNOTATION: status("admitted", SECOND)}
    assert found(fact(OnePod(pod(annotations)), {"w1": {"u1": 0}})) == ["rates-not-programmed"]


def test_status_decides_if_the_node_does_not_publish():
    for state, expected in (("admitted", "rates-not-programmed"), ("programmed", "rates-ok")):
        annotations = CHANGED | {RATES_STATUS_ANNOTATION: status(state, SECOND)}
        assert found(fact(OnePod(pod(annotations)))) == [expected]


@pytest.mark.parametrize(
    ("events", "expected"),
    [
        ([("RdmaRatesRefused", "PF eth0: igb")], "rates-refused-on-node"),
        ([("RdmaRatesRefused", "PF eth0: igb"), ("RdmaRatesChanged", "fine")], "rates-ok"),
        ([("RdmaRatesChanged", "fine"), ("RdmaRatesRefused", "PF eth0: igb")], "rates-refused-on-node"),
    ],
)
def test_refusal_on_the_node_is_found_at_once(events, expected):
    annotations = CHANGED | {RATES_STATUS_ANNOTATION: status("admitted", SECOND)}
    api = OnePod(pod(annotations, {PLACEMENT_ANNOTATION: 1.0}), tuple(events))
    assert found(fact(api, {"w1": {"u1": 0}})) == [expected]


def test_refusal_of_the_extender_is_of_the_annotation_as_it_is_now():
    annotations = {PLACEMENT_ANNOTATION: placement(500, 0), REQUEST: SECOND}
    annotations[RATES_STATUS_ANNOTATION] = status("refused", SECOND, "PF eth0: 200 Mb/s short")
    assert found(fact(OnePod(pod(annotations)))) == ["rates-refused"]
    edited = annotations | {REQUEST: FIRST}
    assert found(fact(OnePod(pod(edited, {REQUEST: 10.0})))) == ["rates-ok"]
    assert found(fact(OnePod(pod(edited, {REQUEST: 300.0})))) == ["rates-undecided"]


@pytest.mark.parametrize(
    ("text", "expected"), [(FIRST, "rates-ok"), (SECOND, "rates-undecided"), ("[", "rates-undecided")]
)
def test_edit_without_any_decision_is_found_by_its_rates(text, expected):
    annotations = {PLACEMENT_ANNOTATION: placement(500, 0), REQUEST: text}
    assert found(fact(OnePod(pod(annotations)))) == [expected]


def test_pod_that_does_not_run_has_no_rates_to_change():
    waiting = pod({PLACEMENT_ANNOTATION: placement(500, 0), REQUEST: SECOND}) | {
        "status": {"phase": "Pending"}
    }
    [asking] = asking_pods(OnePod(waiting), {})
    assert asking.rates is None


@pytest.mark.parametrize("entries", [None, 3, [{"time": 1}], [{"fieldsV1": {"f:metadata": 3}}]])
def test_malformed_fields_give_no_age(entries):
    document = pod(CHANGED)
    document["metadata"]["managedFields"] = entries
    assert fact(OnePod(json.loads(json.dumps(document)))).age_s is None


def test_many_changes_are_shown_in_few_lines():
    many = tuple(RatesFact(pod=f"default/p{number}", node="w1", refusal="no") for number in range(300))
    findings = list(check_rates(RunningRates(pods=many)))
    assert len(findings) == 21
    assert findings[-1].found == "and 280 more pods"
    assert [each.id for each in rates()] == ["rates-ok"]
