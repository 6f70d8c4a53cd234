"""Kubelet's APIs for DRA drivers: fields by their numbers in Kubernetes' definitions, and recorded calls."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from k8s_rdma.errors import MalformedError
from k8s_rdma.wire.claims import ClaimAnswer, ClaimName, PreparedDevice
from k8s_rdma.wire.dra import (
    GET_INFO,
    NOTIFY,
    PREPARE,
    UNPREPARE,
    WATCH_HEALTH,
    DeviceHealth,
    PluginInfo,
    RegistrationStatus,
)

if TYPE_CHECKING:
    from k8s_rdma.wire.protobuf import Method

METHODS: dict[str, Method] = {
    method.path: method for method in (GET_INFO, NOTIFY, PREPARE, UNPREPARE, WATCH_HEALTH)
}
RECORDINGS = [
    json.loads(path.read_bytes())
    for path in sorted((Path(__file__).parents[1] / "recordings/dra").glob("*.json"))
]
CLAIM = ClaimName(namespace="n", name="c", uid="u")
DEVICE = PreparedDevice(request="a", pool="p", device="d", share_id="s", cdi=("v/c=x", "v/c=y"))


def text(number: int, *parts: bytes) -> bytes:
    """A field of wire type 2."""
    value = b"".join(parts)
    return bytes([number << 3 | 2, len(value)]) + value


def number(field: int, value: int) -> bytes:
    """A field of wire type 0, of one byte."""
    return bytes([field << 3, value])


def test_paths_are_those_that_kubelet_calls():
    assert set(METHODS) == {
        "/pluginregistration.Registration/GetInfo",
        "/pluginregistration.Registration/NotifyRegistrationStatus",
        "/k8s.io.kubelet.pkg.apis.dra.v1.DRAPlugin/NodePrepareResources",
        "/k8s.io.kubelet.pkg.apis.dra.v1.DRAPlugin/NodeUnprepareResources",
        "/v1alpha1.DRAResourceHealth/NodeWatchResources",
    }


@pytest.mark.parametrize("method", [PREPARE, UNPREPARE], ids=["prepare", "unprepare"])
def test_claims_are_numbered_namespace_uid_name(method: Method):
    claim = text(1, text(1, b"n"), text(2, b"u"), text(3, b"c"))
    assert method.request.encode((CLAIM,)) == claim
    assert method.request.decode(claim * 2) == (CLAIM, CLAIM)


def test_devices_are_numbered_as_kubelet_reads_them():
    names = text(1, b"a"), text(2, b"p"), text(3, b"d")
    device = text(1, *names, text(4, b"v/c=x"), text(4, b"v/c=y"), text(5, b"s"))
    answer = text(1, text(1, b"u"), text(2, device))
    assert PREPARE.answer.encode({"u": ClaimAnswer(devices=(DEVICE,))}) == answer
    assert PREPARE.answer.decode(answer) == {"u": ClaimAnswer(devices=(DEVICE,))}


def test_device_without_a_share_has_no_share_id():
    alone = PreparedDevice(request="a", pool="p", device="d", share_id="", cdi=())
    device = text(1, text(1, b"a"), text(2, b"p"), text(3, b"d"))
    encoded = PREPARE.answer.encode({"u": ClaimAnswer(devices=(alone,))})
    assert encoded == text(1, text(1, b"u"), text(2, device))


def test_errors_are_beside_devices_and_alone():
    prepared = text(1, text(1, b"u"), text(2, text(2, b"why")))
    assert PREPARE.answer.encode({"u": ClaimAnswer(error="why")}) == prepared
    unprepared = text(1, text(1, b"u"), text(2, text(1, b"why")))
    assert UNPREPARE.answer.encode({"u": ClaimAnswer(error="why")}) == unprepared
    assert UNPREPARE.answer.decode(unprepared) == {"u": ClaimAnswer(error="why")}


def test_claim_without_an_error_is_in_the_answer():
    """Kubelet counts the claims of an answer, even empty ones."""
    assert UNPREPARE.answer.encode({"u": ClaimAnswer()}) == text(1, text(1, b"u"), text(2))


@pytest.mark.parametrize(("healthy", "state"), [(True, 1), (False, 2)])
def test_health_is_numbered_as_kubelet_reads_it(*, healthy: bool, state: int):
    health = DeviceHealth(pool="p", device="d", healthy=healthy, message="m", updated_s=7, timeout_s=30)
    device = text(1, text(1, b"p"), text(2, b"d"))
    message = text(1, device, number(2, state), number(3, 7), number(4, 30), text(5, b"m"))
    assert WATCH_HEALTH.answer.encode((health,)) == message
    assert WATCH_HEALTH.answer.decode(message) == (health,)


def test_plugin_presents_itself_by_type_name_endpoint_versions():
    info = PluginInfo(name="n", endpoint="/e")
    versions = text(4, b"v1.DRAPlugin"), text(4, b"v1alpha1.DRAResourceHealth")
    message = b"".join((text(1, b"DRAPlugin"), text(2, b"n"), text(3, b"/e"), *versions))
    assert GET_INFO.answer.encode(info) == message
    assert GET_INFO.answer.decode(message) == info


def test_registration_status_is_a_flag_and_an_error():
    assert NOTIFY.request.encode(RegistrationStatus(registered=True)) == number(1, 1)
    refused = RegistrationStatus(registered=False, error="why")
    assert NOTIFY.request.encode(refused) == text(2, b"why")
    assert NOTIFY.request.decode(text(2, b"why")) == refused


@pytest.mark.parametrize("method", [PREPARE, UNPREPARE, NOTIFY], ids=lambda method: method.name)
def test_bytes_that_are_no_message_are_refused(method: Method):
    with pytest.raises(MalformedError, match="3 bytes that are no such message"):
        method.request.decode(b"\x0a\xffa")


def test_recordings_are_of_every_method():
    assert {recorded["method"] for recorded in RECORDINGS} == set(METHODS)


@pytest.mark.parametrize("recorded", RECORDINGS, ids=lambda recorded: recorded["method"])
def test_recorded_call_is_read_and_written_again_byte_by_byte(recorded: dict[str, str]):
    method = METHODS[recorded["method"]]
    for form, key in ((method.request, "request_hex"), (method.answer, "answer_hex")):
        data = bytes.fromhex(recorded[key])
        assert form.encode(form.decode(data)) == data
