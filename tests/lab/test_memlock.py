"""A container that is not root registers memory with soft-RoCE by its slot's hook, with real OCI runtimes.

The container's limit is that of the process which runs the runtime, as with containerd and CRI-O; the hook is
that of `agent.cdi_specs`.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from e2e.container_runtime import IMAGE, PAUSE, compiled
from e2e.crio import CONFIG, POLICY
from e2e.neighbours import missing, search_path
from image_archive import image_archive
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
from tests.lab.cluster import until

if TYPE_CHECKING:
    from collections.abc import Iterator

    from lab.machine import Completed, Machine

REGISTERED = 256 << 20
LOW = 8 << 20
"""The kernel's default limit, which containers have of a runtime that systemd starts without another."""
NEIGHBOURS = os.environ.get("K8S_RDMA_NEIGHBOURS_BIN", "")
CONTAINERD = ("containerd", "containerd-shim-runc-v2", "ctr")
"""Of containerd 1.7 or later, which knows CDI; the guest's own is older."""
FOLDERS = ("/bin", "/sbin", "/lib", "/lib64", "/usr", "/etc/libibverbs.d", "/sys")
PING = f"timeout 20 stdbuf -oL ibv_rc_pingpong -d rxe0 -g 0 -s {REGISTERED} -r 1 | head -1"
LIMIT = "Max locked memory"
PROGRAM = f"{PING}; grep '{LIMIT}' /proc/self/limits"
"""Registers memory and waits for a peer, which is ended then."""
CRIO = ("crio", "pinns")
"""Brought from outside; conmon and runc are the guest's."""
STEP_S = 300.0
"""For a container to start or to end."""


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
    """Register memory in a container. hook: the arguments of the executable, without its name."""
    device = machine.run("stat", "-c", "%Hr %Lr", "/dev/infiniband/uverbs0").stdout.split()
    major, minor = map(int, device)
    hooks = {"createRuntime": [{"path": PLUGIN, "args": ["k8s-rdma-cni", "memlock", *hook]}]} if hook else {}
    specification: dict[str, Any] = {
        "ociVersion": "1.0.2",
        "process": {
            "user": {"uid": user, "gid": user},
            "args": ["/bin/bash", "-c", PROGRAM],
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
    return machine.run("bash", "-c", command, check=False, timeout_s=STEP_S)


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
def test_container_does_not_start_if_a_required_amount_is_malformed(verbs: Machine, runtime: str) -> None:
    done = register(verbs, runtime, ["much", "required"])
    assert done.returncode != 0
    assert LIMIT not in done.stdout


def write_slots(machine: Machine, directory: str) -> None:
    """Write CDI devices of two slots, as the agent does: `before` is without the hook, `after` has it."""
    major, minor = map(int, machine.run("stat", "-c", "%Hr %Lr", "/dev/infiniband/uverbs0").stdout.split())
    machine.run("chmod", "666", "/dev/infiniband/uverbs0")  # as rdma-core's rules of udev do
    node = character_node("/dev/infiniband/uverbs0", major, minor)
    hook = Hook(
        hook_name="createRuntime", path=PLUGIN, args=("k8s-rdma-cni", "memlock", "unlimited"), timeout=10
    )
    for slot, hooks in (("before", ()), ("after", (hook,))):
        edits = ContainerEdits(device_nodes=(node,), hooks=hooks)
        machine.write(
            f"{directory}/{file_name(SLOT_CLASS, slot)}", encode_own(SLOT_CLASS, slot, edits).decode()
        )


def test_container_of_containerd_that_is_not_root_registers_memory_by_its_slot_alone(verbs: Machine) -> None:
    """containerd gives the container the CDI device that the agent writes for a slot, with its hook."""
    if missing := [name for name in CONTAINERD if not (Path(NEIGHBOURS) / name).is_file()]:
        pytest.skip(f"K8S_RDMA_NEIGHBOURS_BIN names no folder with {', '.join(missing)}")
    programs = verbs.shared / "containerd"
    programs.mkdir()
    for name in CONTAINERD:
        shutil.copy(Path(NEIGHBOURS) / name, programs / name)
    write_slots(verbs, "/var/run/cdi")
    ctr = ("env", "PATH=/lab/containerd:/usr/sbin:/usr/bin:/sbin:/bin", "ctr", "-n", "k8s.io")
    start = f"ulimit -l {LOW >> 10} && export PATH=/lab/containerd:$PATH && exec containerd"
    containerd = verbs.start("bash", "-c", start, name="containerd")
    while verbs.run(*ctr, "version", check=False).returncode:
        assert containerd.running(), containerd.output()
    verbs.run("touch", "/etc/hosts", "/etc/resolv.conf")  # which --net-host mounts
    mounts = [
        f"--mount=type=bind,src={path},dst={path},options=rbind:ro" for path in FOLDERS if path != "/sys"
    ]
    printed = {}
    for slot in ("before", "after"):
        done = verbs.run(
            *ctr, "run", "--rm", "--rootfs", "--net-host", "--user", "1000:1000",
            "--cap-add", "CAP_IPC_LOCK", "--device", qualified_name(slot, device_class=SLOT_CLASS),
            *mounts,
            "/run/bundle/rootfs", slot, "/bin/bash", "-c", PROGRAM,
            check=False, timeout_s=STEP_S,
        )  # fmt: skip
        printed[slot] = done.stdout + done.stderr
    assert "Couldn't register MR" in printed["before"], printed["before"]
    assert "local address" in printed["after"], printed["after"]
    assert "unlimited" in printed["after"]
    containerd.stop()


@pytest.fixture
def crio(verbs: Machine) -> Iterator[str]:
    """The socket of a CRI-O in the guest, with Debian's conmon and runc; its image comes from the host."""
    if (why := missing(*CRIO, "buildah")) is not None:
        pytest.skip(why)
    shared, path, directory = verbs.shared / "crio", search_path(os.environ["PATH"]), "/var/lib/lab-crio"
    (shared / "bin").mkdir(parents=True)
    for name in CRIO:
        shutil.copy(str(shutil.which(name, path=path)), shared / "bin")
    store_image(shared)
    verbs.run("mkdir", directory)
    verbs.run("cp", "-a", "/lab/crio/root", "/lab/crio/policy.json", directory)
    verbs.run("ln", "-s", "/usr/lib/cni", f"{directory}/bin")
    verbs.run("ln", "-s", "/usr/sbin/runc", f"{directory}/runc-here")
    verbs.run("touch", "/etc/resolv.conf")  # pods get a copy
    network = {"cniVersion": "1.0.0", "name": "pods", "plugins": [{"type": "loopback"}]}
    verbs.write(f"{directory}/net.d/10-pods.conflist", json.dumps(network))
    config = CONFIG.format(directory=directory, image=IMAGE, network="")
    verbs.write(f"{directory}/crio.conf", config)
    write_slots(verbs, f"{directory}/cdi")
    start = f"ulimit -l {LOW >> 10} && export PATH=/lab/crio/bin:$PATH && exec crio"
    options = f"--config {directory}/crio.conf --config-dir ''"
    process = verbs.start("bash", "-c", f"{start} {options}", name="crio")
    socket = f"{directory}/crio.sock"
    while verbs.run("test", "-S", socket, check=False).returncode:
        assert process.running(), process.output()
    yield socket
    process.stop()


def store_image(directory: Path) -> None:
    """Make a store of images, `root`, whose only image is the pause program, and a policy that trusts it."""
    archive, policy = directory / "image.tar", directory / "policy.json"
    archive.write_bytes(image_archive(IMAGE, compiled(directory, {"pause": PAUSE}), entrypoint=["/pause"]))
    policy.write_text(POLICY)
    store = ("--root", directory / "root", "--runroot", directory / "state", "--storage-driver", "vfs")
    pull = ("pull", "--quiet", "--signature-policy", policy, f"docker-archive:{archive}")
    subprocess.run(["buildah", *store, *pull], check=True)


def test_container_of_crio_that_is_not_root_registers_memory_by_its_slot_alone(
    verbs: Machine, crio: str
) -> None:
    """CRI-O gives the container the CDI device that the agent writes for a slot, with its hook."""
    printed = {slot: printed_by_cri(verbs, crio, slot) for slot in ("before", "after")}
    assert "Couldn't register MR" in printed["before"], printed["before"]
    assert "local address" in printed["after"], printed["after"]
    assert "unlimited" in printed["after"]


def printed_by_cri(machine: Machine, socket: str, slot: str) -> str:
    """Return the program's output in a container of a pod with that slot."""
    container = {
        "name": slot,
        "image": IMAGE,
        "command": ["/bin/bash", "-c", PROGRAM],
        "cdi_devices": [qualified_name(slot, device_class=SLOT_CLASS)],
        "capabilities": ["IPC_LOCK"],
        "user": 1000,
        "mounts": [
            {"path": path, "host_path": path, "read_only": True} for path in FOLDERS if path != "/sys"
        ],
    }
    command = ("python3", "/src/tests/lab/run_container.py", socket)
    name = machine.run(*command, input=json.dumps(container), timeout_s=STEP_S).stdout.strip()
    read = f"cat {Path(socket).parent}/logs/*/{name}.log"

    def printed() -> str | None:
        text = machine.run("bash", "-c", read, check=False).stdout
        return text if LIMIT in text else None

    return str(until(f"the container of slot {slot} ends", printed, within_s=STEP_S))
