"""Containers of the stand-in's runtime: devices of plugins and of CDI specifications."""

from __future__ import annotations

import os
import stat
from typing import TYPE_CHECKING

import pytest

from demo.cluster.cdi_specification import specification
from k8s_rdma.core.devices.pod_devices import AllocateResponse, DeviceSpec
from k8s_rdma_demo.cluster.containers import ContainerError, DeviceNode, new_container

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.anyio


# How the runtime carries out a request


@pytest.fixture
def host(directory):
    """A host with two device nodes and a file in a directory."""
    infiniband = directory / "host/dev/infiniband"
    infiniband.mkdir(parents=True)
    try:
        os.mknod(infiniband / "uverbs0", 0o600 | stat.S_IFCHR, os.makedev(231, 192))
        os.mknod(infiniband / "rdma_cm", 0o600 | stat.S_IFCHR, os.makedev(10, 58))
    except PermissionError as error:
        pytest.skip(f"no device nodes can be made here: {error}")
    (infiniband / "notes").write_text("no device")
    return directory / "host"


def test_directory_gives_all_device_nodes_in_it(host):
    made = new_container("c", AllocateResponse(devices=(DeviceSpec(path="/dev/infiniband"),)), (), host)
    assert made.device_paths == ("/dev/infiniband/rdma_cm", "/dev/infiniband/uverbs0")
    assert {(device.major, device.minor, device.permissions) for device in made.devices} == {
        (10, 58, "rw"),
        (231, 192, "rw"),
    }


@pytest.mark.parametrize(
    ("path", "why"),
    [("/dev/infiniband/uverbs1", "No such file"), ("/dev/infiniband/notes", "not a device node")],
)
def test_device_that_the_host_has_not_is_no_container(host, path, why):
    with pytest.raises(ContainerError, match=why):
        new_container("c", AllocateResponse(devices=(DeviceSpec(path=path),)), (), host)


def given_by(directory: Path, host: Path, **files: str):
    for name, content in files.items():
        (directory / name.replace("_json", ".json").replace("_yaml", ".yaml")).write_text(content)
    return new_container(
        "c", AllocateResponse(envs={"A": "1"}, cdi_devices=("lab.local/slot=s",)), (directory,), host
    )


@pytest.fixture
def cdi(directory):
    path = directory / "cdi"
    path.mkdir()
    return path


def test_node_without_type_is_looked_up_on_the_host(cdi, host):
    nodes = [{"path": "/dev/infiniband/uverbs5", "hostPath": "/dev/infiniband/uverbs0", "permissions": "rw"}]
    made = given_by(cdi, host, a_json=specification("s", deviceNodes=nodes, env=["A=2", "B=3"]))
    assert made.devices == (
        DeviceNode(path="/dev/infiniband/uverbs5", kind="c", major=231, minor=192, permissions="rw"),
    )
    assert made.envs == {"A": "2", "B": "3"}


def test_specification_may_be_yaml(cdi, host):
    text = "cdiVersion: 0.5.0\nkind: lab.local/slot\ndevices: [{name: s, containerEdits: {env: [X=y]}}]\n"
    assert given_by(cdi, host, a_yaml=text).envs["X"] == "y"


@pytest.mark.parametrize(
    "files",
    [
        {},
        {"a_json": specification("other")},
        {"a_json": specification("s"), "b_json": specification("s")},
        {"a_json": "{"},
        {"a_json": specification("s").replace('"env"', '"environment"').replace("0.5.0", "9.9.9")},
        {"a_json": specification("s", environment=["A=1"])},
        {"a_txt": specification("s")},
    ],
    ids=["none", "another", "twice", "broken", "later version", "unknown key", "other suffix"],
)
def test_device_that_no_one_specification_has_is_unresolvable(cdi, host, files):
    with pytest.raises(ContainerError, match=r"unresolvable CDI devices lab\.local/slot=s"):
        given_by(cdi, host, **files)


def test_later_directory_counts(cdi, host, directory):
    later = directory / "later"
    later.mkdir()
    for path, value in ((cdi, "1"), (later, "2")):
        (path / "a.json").write_text(specification("s", env=[f"A={value}"]))
    made = new_container("c", AllocateResponse(cdi_devices=("lab.local/slot=s",)), (cdi, later), host)
    assert made.envs == {"A": "2"}
