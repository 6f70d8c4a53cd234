"""kubeadm's kube-scheduler as a static pod of a real kubelet, which does as kubeadm writes there."""

from __future__ import annotations

import asyncio
import json
import shutil
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import pytest

from cluster.kubeadm import MANIFESTS
from cluster.kubelet import ADDRESS, NODE, Kubelet, programs, scratch
from cluster.kubelet import obstacle as missing_kubelet
from cluster.real import programs_of
from cluster.test_kubeadm import INSTALL, LABEL, START, TELL, Administered, administered, edit
from cluster.test_real_daemonset import NODES, OTHER, run
from cluster.typed import obstacle
from cluster.world import placement
from e2e.containerd import Containerd
from image_archive import image_archive

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from cluster.control_plane import Json

WHY_NOT = missing_kubelet() or obstacle("kubeadm", "kubectl")
pytestmark = [
    pytest.mark.anyio,
    pytest.mark.timeout(300),
    pytest.mark.skipif(bool(WHY_NOT), reason=str(WHY_NOT)),
]
SCHEDULER = "/etc/kubernetes/k8s-rdma/scheduler.yaml"


def import_program(containerd: Containerd, program: Path, image: str) -> None:
    """An image that holds a program, on the default path."""
    archive = image_archive(image, {f"usr/local/bin/{program.name}": program.read_bytes()}, entrypoint=[])
    path = containerd.socket.parent / f"{program.name}.tar"
    path.write_bytes(archive)
    options = (f"--address={containerd.socket}", "-n=k8s.io", "images", "import", "--no-unpack", path)
    run(*containerd.entering, programs() / "ctr", *options)


@asynccontextmanager
async def on_a_kubelet(directory: Path) -> AsyncIterator[Administered]:
    """The control-plane node has a kubelet, and of the images that kubeadm wants that of the scheduler."""
    run("ip", "address", "replace", f"{ADDRESS}/32", "dev", "lo")
    async with administered(directory, worker="w2", name=NODE, kubelet=True) as a:
        place = directory / "c"
        prepare = scratch(place, NODES) + f" mount --bind {a.node.etc} /etc && mount --make-rshared / &&"
        with Containerd(place, plugins=(), deadline_s=60, programs=programs(), prepare=prepare) as containerd:
            (container,) = a.node.manifest("kube-scheduler")["spec"]["containers"]
            import_program(containerd, programs_of(a.c.plane) / "kube-scheduler", container["image"])
            other = directory / "other.conflist"
            other.write_text(json.dumps(OTHER))
            containerd.use(other)
            kubelet = Kubelet(a.c, containerd, place, static_pods=MANIFESTS)
            try:
                await kubelet.start()
                yield a
            finally:
                await kubelet.end()


async def running_scheduler(a: Administered, *, configured: bool) -> Json:
    """Wait until kubelet reports a kube-scheduler that is ready, with or without our configuration."""
    path = f"/api/v1/namespaces/kube-system/pods/kube-scheduler-{NODE}"
    while True:
        answer = await a.c.http.get(path)
        pod = answer.json() if answer.status_code == 200 else {"spec": {"containers": []}}
        commands = [each["command"] for each in pod["spec"]["containers"]]
        told = any(f"--config={SCHEDULER}" in command for command in commands) == configured
        if told and any(each["ready"] for each in pod.get("status", {}).get("containerStatuses", ())):
            return pod
        await asyncio.sleep(0.2)


async def test_kubelet_restarts_kube_scheduler_with_the_manifest_of_kubeadm(tmp_path: Path):
    async with on_a_kubelet(tmp_path) as a:
        before = await running_scheduler(a, configured=False)
        for block in (LABEL, INSTALL, TELL):
            await a.shell.types(block)
        await a.start_extender()
        async with a.agent():
            after = await running_scheduler(a, configured=True)
            assert after["metadata"]["uid"] != before["metadata"]["uid"]
            seen = await a.shell.types(
                "kubectl --namespace kube-system get pods --selector component=kube-scheduler"
            )
            assert "1/1     Running" in seen
            await a.shell.types(START)
            assert placement(await a.c.bound("reserved"))


async def test_upgrade_drops_an_edit_by_hand_and_keeps_the_configuration_of_kubeadm(tmp_path: Path):
    upgrade = "kubeadm upgrade node phase control-plane --certificate-renewal=false"
    async with on_a_kubelet(tmp_path) as a:
        await running_scheduler(a, configured=False)
        shutil.copytree(a.shell.directory / "examples" / "scheduler", a.node.path("/etc/kubernetes/k8s-rdma"))
        a.node.path("/etc/kubernetes/k8s-rdma/recommended.yaml").rename(a.node.path(SCHEDULER))
        edit(a.node)
        await running_scheduler(a, configured=True)
        await a.shell.types(upgrade)
        await running_scheduler(a, configured=False)
        await a.shell.types(TELL)
        await running_scheduler(a, configured=True)
        assert "manifests of kube-scheduler are equal" in await a.shell.types(upgrade)
