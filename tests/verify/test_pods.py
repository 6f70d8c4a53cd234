"""Data that `verify cluster` reads of its pods: agents, kubelets and others wrote it."""

from __future__ import annotations

import json

import pytest

from k8s_rdma.core.verification import UnmeasuredError
from k8s_rdma.verify.cluster import published_address, refusal_of, result_of
from k8s_rdma.verify.traffic import IFNAME, PodResult, decode_result, receive_in_pod


def annotation(*ips: str, interface: str = IFNAME) -> str:
    return json.dumps([{"name": "net", "interface": interface, "ips": ips, "device-info": {}}])


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("", None),
        (annotation("10.0.0.2", interface="rdma0"), None),
        (annotation("10.0.0.2"), "10.0.0.2"),
        (annotation("fd00::2", "10.0.0.2"), "10.0.0.2"),
        (annotation("fd00::2"), "fd00::2"),
        (annotation("--result"), None),
        ("[", None),
        ('{"interface": 1}', None),
    ],
)
def test_address_of_the_receiver_is_the_published_one(text, address):
    assert published_address(text) == address


def test_interface_without_addresses_is_no_measurement():
    with pytest.raises(UnmeasuredError, match="needs IPAM"):
        published_address(annotation())


@pytest.mark.parametrize(
    ("message", "result"),
    [
        ('{"mbps": [1.5, 2]}', PodResult(mbps=(1.5, 2.0))),
        ('{"error": "no"}', PodResult(error="no")),
        ("", PodResult(error="it ended without a result")),
        ("exec: not found", PodResult(error="exec: not found")),
        ('{"mbps": [-1]}', PodResult(error='{"mbps": [-1]}')),
        ('{"mbps": [1e300]}', PodResult(error='{"mbps": [1e300]}')),
    ],
)
def test_last_message_of_a_container_is_its_result(message, result):
    assert decode_result(message) == result


def ended(code: int, message: str = "") -> dict[str, object]:
    terminated = {"exitCode": code, "message": message}
    return {"status": {"phase": "Failed", "containerStatuses": [{"state": {"terminated": terminated}}]}}


@pytest.mark.parametrize(
    ("pod", "result"),
    [
        ({}, None),
        ({"status": {"phase": "Running", "containerStatuses": [{"state": {"running": {}}}]}}, None),
        (ended(0), PodResult()),
        (ended(0, '{"mbps": [7]}'), PodResult(mbps=(7.0,))),
        (ended(137), PodResult(error="it ended without a result")),
    ],
)
def test_result_of_a_pod_is_known_when_it_ended(pod, result):
    assert result_of(pod) == result


def test_pod_that_failed_without_its_container_says_why():
    with pytest.raises(UnmeasuredError, match="a pod failed: DeadlineExceeded"):
        result_of({"status": {"phase": "Failed", "reason": "DeadlineExceeded"}})


def test_refusal_is_the_schedulers():
    condition = {"type": "PodScheduled", "status": "False", "message": "0/2 nodes are available"}
    assert refusal_of({"status": {"conditions": [condition]}}) == "0/2 nodes are available"
    assert refusal_of({"status": {"conditions": [condition | {"status": "True"}]}}) == ""
    assert refusal_of({}) == ""


def test_program_in_a_pod_writes_why_it_cannot(tmp_path):
    result = tmp_path / "result"
    assert receive_in_pod("{}", result) == 1
    assert "token" in decode_result(result.read_text()).error
