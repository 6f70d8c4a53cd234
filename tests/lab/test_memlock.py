"""A container that is not root registers memory with soft-RoCE by its slot's hook, with real OCI runtimes.

The container's limit is that of the process which runs the runtime, as with containerd and CRI-O; the hook is
that of `agent.cdi_specs`.
"""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from k8s_rdma.wire.cdi import (
    SLOT_CLASS,
    ContainerEdits,
    Hook,
    character_node,
    encode_own,
    file_name,
    qualified_name,
)
from lab.places import PLUGIN

if TYPE_CHECKING:
    from lab.machine import Completed, Machine

REGISTERED = 256 << 20
LOW = 8 << 20
"""The kernel's default limit, which containers have of a runtime that systemd starts without another."""
NEIGHBOURS = os.environ.get("K8S_RDMA_NEIGHBOURS_BIN", "")
CONTAINERD = ("containerd", "containerd-shim-runc-v2", "ctr")
"""Of containerd 1.7 or later, which knows CDI; the guest's own is older."""
FOLDERS = ("/bin", "/sbin", "/lib", "/lib64", "/usr", "/etc/libibverbs.d", "/sys")


@pytest.fixture(scope="module")
def verbs(machine: Machine) -> Machine:
    """A guest with one soft-RoCE device."""
    machine.run("modprobe", "-a", "rdma_ucm", "rdma_rxe")
    machine.run("ip", "link", "set", "eth0", "up")
    machine.run("ip", "address", "add", "192.168.90.1/24", "dev", "eth0")
    machine.run("rdma", "link", "add", "rxe0", "type", "rxe", "netdev", "eth0")
    machine.run("mkdir", "-p", "/run/bundle/rootfs")
    return machine


def register(machine: Machine, runtime: str, hook: list[str] | None, *, user: int = 1000) -> Completed:
    """Register memory in a container; the program waits for a peer once it has, which is ended then.

    hook: the arguments of the executable, without its name.
    """
    device = machine.run("stat", "-c", "%Hr %Lr", "/dev/infiniband/uverbs0").stdout.split()
    major, minor = map(int, device)
    ping = f"stdbuf -oL ibv_rc_pingpong -d rxe0 -g 0 -s {REGISTERED} -r 1"
    program = f"timeout 20 {ping} | head -1; grep -i lock /proc/self/limits"
    hooks = {"createRuntime": [{"path": PLUGIN, "args": ["k8s-rdma-cni", "memlock", *hook]}]} if hook else {}
    specification: dict[str, Any] = {
        "ociVersion": "1.0.2",
        "process": {
            "user": {"uid": user, "gid": user},
            "args": ["/bin/bash", "-c", program],
            "env": ["PATH=/usr/bin:/bin:/usr/sbin:/sbin"],
            "cwd": "/",
            "capabilities": {kind: ["CAP_IPC_LOCK"] for kind in ("bounding", "permitted", "effective")},
        },
        "root": {"path": "rootfs"},
        "mounts": [
            {"destination": "/proc", "type": "proc", "source": "proc"},
            {"destination": "/dev", "type": "tmpfs", "source": "tmpfs"},
            *(
                {"destination": path, "type": "bind", "source": path, "options": ["rbind", "ro"]}
                for path in FOLDERS
            ),
        ],
        "hooks": hooks,
        "linux": {
            "namespaces": [{"type": kind} for kind in ("pid", "mount", "ipc", "uts")],
            "devices": [
                {
                    "path": "/dev/infiniband/uverbs0",
                    "type": "c",
                    "major": major,
                    "minor": minor,
                    "fileMode": 0o666,
                }
            ],
            "resources": {"devices": [{"allow": True, "access": "rwm"}]},
        },
    }
    machine.write("/run/bundle/config.json", json.dumps(specification))
    command = f"ulimit -l {LOW >> 10} && cd /run/bundle && exec {runtime} run memlock"
    return machine.run("bash", "-c", command, check=False, timeout_s=300)


@pytest.mark.parametrize("runtime", ["runc", "crun"])
def test_container_that_is_not_root_registers_memory_by_the_hook_alone(verbs: Machine, runtime: str) -> None:
    before = register(verbs, runtime, None)
    assert "Couldn't register MR" in before.stdout + before.stderr  # with the capability IPC_LOCK
    after = register(verbs, runtime, ["unlimited"])
    assert "local address" in after.stdout, after.stdout + after.stderr
    assert "unlimited" in after.stdout


@pytest.mark.parametrize("runtime", ["runc", "crun"])
def test_limit_is_the_amount_and_no_less_than_the_runtimes(verbs: Machine, runtime: str) -> None:
    for amount, limit in ((REGISTERED, REGISTERED), (1 << 20, LOW)):
        done = register(verbs, runtime, [str(amount), "required"])
        assert f" {limit} " in done.stdout, done.stdout + done.stderr


@pytest.mark.parametrize("runtime", ["runc", "crun"])
def test_container_does_not_start_where_a_required_amount_is_none(verbs: Machine, runtime: str) -> None:
    done = register(verbs, runtime, ["much", "required"])
    assert done.returncode != 0
    assert "Max locked memory" not in done.stdout


def test_container_of_containerd_that_is_not_root_registers_memory_by_its_slot_alone(verbs: Machine) -> None:
    """containerd gives the container the CDI device that the agent writes for a slot, with its hook."""
    if missing := [name for name in CONTAINERD if not (Path(NEIGHBOURS) / name).is_file()]:
        pytest.skip(f"K8S_RDMA_NEIGHBOURS_BIN names no folder with {', '.join(missing)}")
    programs = verbs.shared / "containerd"
    programs.mkdir()
    for name in CONTAINERD:
        shutil.copy(Path(NEIGHBOURS) / name, programs / name)
    major, minor = map(int, verbs.run("stat", "-c", "%Hr %Lr", "/dev/infiniband/uverbs0").stdout.split())
    verbs.run("chmod", "666", "/dev/infiniband/uverbs0")  # as rdma-core's rules of udev do
    node = character_node("/dev/infiniband/uverbs0", major, minor)
    hook = Hook(
        hook_name="createRuntime", path=PLUGIN, args=("k8s-rdma-cni", "memlock", "unlimited"), timeout=10
    )
    for slot, hooks in (("before", ()), ("after", (hook,))):
        edits = ContainerEdits(device_nodes=(node,), hooks=hooks)
        verbs.write(
            f"/var/run/cdi/{file_name(SLOT_CLASS, slot)}", encode_own(SLOT_CLASS, slot, edits).decode()
        )
    ctr = ("env", "PATH=/lab/containerd:/usr/sbin:/usr/bin:/sbin:/bin", "ctr", "-n", "k8s.io")
    start = f"ulimit -l {LOW >> 10} && export PATH=/lab/containerd:$PATH && exec containerd"
    containerd = verbs.start("bash", "-c", start, name="containerd")
    while verbs.run(*ctr, "version", check=False).returncode:
        assert containerd.running(), containerd.output()
    verbs.run("touch", "/etc/hosts", "/etc/resolv.conf")  # which --net-host mounts
    ping = f"stdbuf -oL ibv_rc_pingpong -d rxe0 -g 0 -s {REGISTERED} -r 1"
    program = f"timeout 20 {ping} | head -1; grep -i lock /proc/self/limits"
    mounts = [
        f"--mount=type=bind,src={path},dst={path},options=rbind:ro" for path in FOLDERS if path != "/sys"
    ]
    printed = {}
    for slot in ("before", "after"):
        done = verbs.run(
            *ctr, "run", "--rm", "--rootfs", "--net-host", "--user", "1000:1000",
            "--cap-add", "CAP_IPC_LOCK", "--device", qualified_name(slot, device_class=SLOT_CLASS),
            *mounts,
            "/run/bundle/rootfs", slot, "/bin/bash", "-c", program,
            check=False, timeout_s=300,
        )  # fmt: skip
        printed[slot] = done.stdout + done.stderr
    assert "Couldn't register MR" in printed["before"], printed["before"]
    assert "local address" in printed["after"], printed["after"]
    assert "unlimited" in printed["after"]
    containerd.stop()
