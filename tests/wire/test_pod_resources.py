"""Messages of kubelet's PodResources API, byte by byte; kube/test_pod_resources.py sends them on a socket."""

from __future__ import annotations

import pytest

from k8s_rdma.core.devices.pod_devices import ContainerDevices, PodDevices
from k8s_rdma.errors import MalformedError
from k8s_rdma.wire import pod_resources

METHODS = (pod_resources.LIST, pod_resources.GET_METHOD, pod_resources.GET_ALLOCATABLE_RESOURCES)

POD = PodDevices(
    namespace="ns",
    name="p",
    devices=(ContainerDevices(container="c", resource="r", ids=("a", "b"), numa_nodes=(1,)),),
)
DEVICES = b"\x0a\x01r\x12\x01a\x12\x01b\x1a\x04\x0a\x02\x08\x01"
CONTAINER = b"\x0a\x01c\x12\x0f" + DEVICES
PODS = b"\x0a\x01p\x12\x02ns\x1a\x14" + CONTAINER


@pytest.mark.parametrize("method", METHODS, ids=lambda method: method.name)
def test_method_has_the_path_of_the_api(method):
    assert method.path == f"/v1.PodResourcesLister/{method.name}"


def test_pod_is_requested_by_name_and_namespace():
    written = b"\x0a\x01p\x12\x02ns"
    name = pod_resources.PodName(namespace="ns", name="p")
    assert pod_resources.GET_METHOD.request.encode(name) == written
    assert pod_resources.GET_METHOD.request.decode(written) == name


def test_pod_has_the_field_numbers_of_the_api():
    written = b"\x0a" + bytes([len(PODS)]) + PODS
    for answer, value in ((pod_resources.GET_METHOD.answer, POD), (pod_resources.LIST.answer, (POD,))):
        assert answer.encode(value) == written
        assert answer.decode(written) == value


def test_allocatable_devices_belong_to_no_container():
    answer = pod_resources.GET_ALLOCATABLE_RESOURCES.answer
    devices = (ContainerDevices(container="", resource="r", ids=("a", "b"), numa_nodes=(1,)),)
    written = b"\x0a" + bytes([len(DEVICES)]) + DEVICES
    assert answer.encode(devices) == written
    assert answer.decode(written) == devices


def test_devices_of_unknown_place_have_no_topology():
    devices = (ContainerDevices(container="", resource="r", ids=("a",)),)
    assert pod_resources.GET_ALLOCATABLE_RESOURCES.answer.encode(devices) == b"\x0a\x06\x0a\x01r\x12\x01a"


@pytest.mark.parametrize("method", METHODS, ids=lambda method: method.name)
def test_bytes_that_are_no_message_are_refused_by_the_messages_name(method):
    with pytest.raises(MalformedError, match="5 bytes that are no such message"):
        method.answer.decode(b"\x0a\xffabc")
