"""Messages as a real kubelet and a real plugin wrote them, byte by byte."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from k8s_rdma.core.devices.pod_devices import (
    AllocateResponse,
    Choice,
    DeviceSpec,
    Mount,
    OfferedDevice,
    PluginOptions,
    PluginRegistration,
)
from k8s_rdma.errors import MalformedError
from k8s_rdma.wire import device_plugin
from k8s_rdma.wire.pb import device_plugin_pb2

ROOT = Path(__file__).parents[2]
RECORDINGS = [
    json.loads(path.read_bytes()) for path in sorted((ROOT / "tests/recordings/deviceplugin").glob("*.json"))
]
METHODS = {
    method.name: method
    for method in (
        device_plugin.REGISTER,
        device_plugin.GET_DEVICE_PLUGIN_OPTIONS,
        device_plugin.LIST_AND_WATCH,
        device_plugin.GET_PREFERRED_ALLOCATION,
        device_plugin.ALLOCATE,
        device_plugin.PRE_START_CONTAINER,
    )
}


def asked_in(recorded: dict[str, Any]) -> object:
    request = recorded["request"]
    match recorded["method"]:
        case "Register":
            return PluginRegistration(
                resource=request["resource_name"],
                endpoint=request["endpoint"],
                version=request["version"],
                options=options_in(request["options"]),
            )
        case "GetPreferredAllocation":
            return tuple(
                Choice(
                    available=tuple(each["available_deviceIDs"]),
                    must_include=tuple(each.get("must_include_deviceIDs", ())),
                    size=each["allocation_size"],
                )
                for each in request["container_requests"]
            )
        case "Allocate":
            return tuple(tuple(each["devices_ids"]) for each in request["container_requests"])
        case "PreStartContainer":
            return tuple(request["devices_ids"])
    return None


def answer_in(recorded: dict[str, Any]) -> object:
    reply = recorded["reply"]
    match recorded["method"]:
        case "GetDevicePluginOptions":
            return options_in(reply)
        case "ListAndWatch":
            return tuple(
                OfferedDevice(
                    id=each["ID"],
                    unhealthy="" if each["health"] == "Healthy" else "its plugin says Unhealthy",
                    numa_nodes=tuple(node.get("ID", 0) for node in each["topology"]["nodes"]),
                )
                for each in reply["devices"]
            )
        case "GetPreferredAllocation":
            return tuple(tuple(each["deviceIDs"]) for each in reply["container_responses"])
        case "Allocate":
            return tuple(given_in(each) for each in reply["container_responses"])
    return None


def options_in(value: dict[str, bool]) -> PluginOptions:
    return PluginOptions(
        pre_start_required=value["pre_start_required"],
        preferred_allocation=value["get_preferred_allocation_available"],
    )


def given_in(value: dict[str, Any]) -> AllocateResponse:
    return AllocateResponse(
        envs=value["envs"],
        annotations=value["annotations"],
        devices=tuple(
            DeviceSpec(
                path=each["container_path"], host_path=each["host_path"], permissions=each["permissions"]
            )
            for each in value["devices"]
        ),
        mounts=tuple(
            Mount(path=each["container_path"], host_path=each["host_path"], read_only=each["read_only"])
            for each in value["mounts"]
        ),
    )


CALLS = [recorded for recorded in RECORDINGS if recorded["method"] in METHODS]


def test_recordings_are_of_every_method_that_a_plugin_has():
    assert {recorded["method"] for recorded in CALLS} == set(METHODS)


@pytest.mark.parametrize("recorded", CALLS, ids=lambda recorded: recorded["method"])
def test_request_is_written_as_recorded_and_read_again(recorded):
    form = METHODS[recorded["method"]].request
    assert form.encode(asked_in(recorded)).hex() == recorded["request_hex"]
    assert form.decode(bytes.fromhex(recorded["request_hex"])) == asked_in(recorded)


@pytest.mark.parametrize("recorded", CALLS, ids=lambda recorded: recorded["method"])
def test_answer_round_trips_the_recording(recorded):
    form = METHODS[recorded["method"]].answer
    assert form.decode(form.encode(answer_in(recorded))) == answer_in(recorded)


def test_list_is_written_as_the_api_numbers_its_fields():
    devices = (OfferedDevice(id="a", numa_nodes=(1,)), OfferedDevice(id="b", unhealthy="its port is down"))
    healthy = b"\x0a\x01a\x12\x07Healthy\x1a\x04\x0a\x02\x08\x01"
    unhealthy = b"\x0a\x01b\x12\x09Unhealthy"
    written = b"".join(b"\x0a" + bytes([len(each)]) + each for each in (healthy, unhealthy))
    assert device_plugin.LIST_AND_WATCH.answer.encode(devices) == written


def test_container_answer_has_the_field_numbers_of_the_api():
    given = AllocateResponse(
        envs={"E": "v"},
        annotations={"A": "w"},
        devices=(DeviceSpec(path="/d"),),
        cdi_devices=("v/c=d",),
        mounts=(Mount(path="/in", host_path="/out", read_only=True),),
    )
    parts = (
        b"\x0a\x06\x0a\x01E\x12\x01v",
        b"\x12\x0d\x0a\x03/in\x12\x04/out\x18\x01",
        b"\x1a\x0c\x0a\x02/d\x12\x02/d\x1a\x02rw",
        b"\x22\x06\x0a\x01A\x12\x01w",
        b"\x2a\x07\x0a\x05v/c=d",
    )
    assert device_plugin.CONTAINER_ALLOCATE_RESPONSE.encode(given) == b"".join(parts)
    assert device_plugin.CONTAINER_ALLOCATE_RESPONSE.decode(b"".join(parts)) == given


def test_unknown_health_is_none():
    data = device_plugin_pb2.ListAndWatchResponse(devices=[{"ID": "a", "health": ""}]).SerializeToString()
    (device,) = device_plugin.LIST_AND_WATCH.answer.decode(data)
    assert device.unhealthy == "its plugin says nothing"


@pytest.mark.parametrize("method", METHODS.values(), ids=lambda method: method.name)
def test_bytes_that_are_no_message_are_refused_by_the_messages_name(method):
    with pytest.raises(MalformedError, match="5 bytes that are no such message"):
        method.request.decode(b"\x0a\xffabc")


@pytest.mark.parametrize(
    ("method", "path"),
    [
        (device_plugin.REGISTER, "/v1beta1.Registration/Register"),
        (device_plugin.ALLOCATE, "/v1beta1.DevicePlugin/Allocate"),
    ],
)
def test_method_has_the_path_of_the_api(method, path):
    assert method.path == path


@pytest.mark.parametrize(
    "path", ["k8s_rdma/wire/pb/device_plugin", "k8s_rdma/wire/pb/pod_resources", "k8s_rdma_demo/pb/cri"]
)
def test_generated_module_is_that_of_its_definition(path, tmp_path):
    source = f"src/{path}.proto"
    command = [
        *(sys.executable, "-m", "grpc_tools.protoc", "-I", "src"),
        *(f"--python_out={tmp_path}", f"--pyi_out={tmp_path}", source),
    ]
    subprocess.run(command, cwd=ROOT, check=True)
    for suffix in (".py", ".pyi"):
        module = f"{path}_pb2{suffix}"
        assert (ROOT / "src" / module).read_text() == (tmp_path / module).read_text(), "run `make proto`"
