"""CRI's messages: every value that is said comes back, and the bytes are the API's."""

from __future__ import annotations

import pytest

from k8s_rdma.core.devices.pod_devices import DeviceSpec, Mount
from k8s_rdma_demo import cri

POD = cri.PodSandboxConfig(
    namespace="default", name="p", uid="u", attempt=2, annotations={"a": "b"}, cgroup_parent="/k"
)
SANDBOX = cri.PodSandbox(id="s", uid="u", attempt=2, ready=False)
CONTAINER = cri.ContainerConfig(
    name="c",
    image="i",
    attempt=2,
    command=("/x",),
    args=("y",),
    envs={"E": "1"},
    annotations={"k": "v"},
    mounts=(Mount(path="/in", host_path="/out", read_only=True),),
    devices=(DeviceSpec(path="/dev/a", host_path="/dev/b", permissions="rwm"),),
    cdi_devices=("v/c=d",),
    capabilities=("IPC_LOCK",),
    privileged=True,
    user=1000,
)
STATUS = cri.PodSandboxStatus(sandbox=SANDBOX, ips=("10.0.0.1", "fd00::1"), info={"info": "{}"})
ASKED = [
    (cri.RUN_POD_SANDBOX, POD),
    (cri.STOP_POD_SANDBOX, "s"),
    (cri.REMOVE_POD_SANDBOX, "s"),
    (cri.POD_SANDBOX_STATUS, "s"),
    (cri.LIST_POD_SANDBOX, None),
    (cri.CREATE_CONTAINER, cri.NewContainer(sandbox="s", pod=POD, container=CONTAINER)),
    (cri.START_CONTAINER, "c"),
    (cri.STATUS, None),
]
ANSWERS = [
    (cri.RUN_POD_SANDBOX, "s"),
    (cri.STOP_POD_SANDBOX, None),
    (cri.POD_SANDBOX_STATUS, STATUS),
    (cri.LIST_POD_SANDBOX, (SANDBOX, cri.PodSandbox(id="t", uid="v", attempt=0, ready=True))),
    (cri.CREATE_CONTAINER, "c"),
    (cri.STATUS, (cri.RuntimeCondition("NetworkReady", False, "Why", "so"),)),
]


@pytest.mark.parametrize(("method", "value"), ASKED, ids=lambda each: getattr(each, "name", ""))
def test_question_comes_back(method, value):
    assert method.request.decode(method.request.encode(value)) == value


@pytest.mark.parametrize(("method", "value"), ANSWERS, ids=lambda each: getattr(each, "name", ""))
def test_answer_comes_back(method, value):
    assert method.answer.decode(method.answer.encode(value)) == value


def test_sandbox_request_has_the_bytes_of_the_api():
    """Field 1 of the request is the configuration, its field 1 the metadata; `attempt` 0 is left out."""
    config = cri.PodSandboxConfig(namespace="n", name="p", uid="u")
    asked = cri.RUN_POD_SANDBOX.request.encode(config)
    assert asked == b"\x0a\x10" + b"\x0a\x09\x0a\x01p\x12\x01u\x1a\x01n" + b"\x12\x01p" + b"\x42\x00"


def test_method_has_the_path_of_the_api():
    assert cri.RUN_POD_SANDBOX.path == "/runtime.v1.RuntimeService/RunPodSandbox"


def test_sandbox_in_the_hosts_network_has_no_address():
    status = cri.PodSandboxStatus(sandbox=SANDBOX, ips=(), info={})
    assert cri.POD_SANDBOX_STATUS.answer.decode(cri.POD_SANDBOX_STATUS.answer.encode(status)) == status
