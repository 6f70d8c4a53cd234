"""What a kubelet without a kubelet says of its pods."""

from __future__ import annotations

from k8s_rdma.core.devices.pod_devices import ContainerDevices, PodDevices
from k8s_rdma.errors import K8sRdmaError, Reason


class FakePodResources:
    """As `kube.pod_resources.PodResources`.

    silent: whether it has no answer. questions: how many it was asked.
    """

    def __init__(self) -> None:
        """Nobody holds anything."""
        self._held: dict[tuple[str, str], PodDevices] = {}
        self.silent = False
        self.questions = 0

    def give(self, namespace: str, name: str, resource: str, *ids: str, container: str = "app") -> None:
        """Give a pod's container devices, besides what it holds."""
        before = self.held(namespace, name)
        more = ContainerDevices(container=container, resource=resource, ids=ids)
        devices = (*before.devices, more)
        self._held[namespace, name] = PodDevices(namespace=namespace, name=name, devices=devices)

    def forget(self, namespace: str, name: str) -> None:
        """Have a pod be over: what it held may be given to others."""
        self._held.pop((namespace, name), None)

    def held(self, namespace: str, name: str) -> PodDevices:
        """What it would say of a pod."""
        return self._held.get((namespace, name), PodDevices(namespace=namespace, name=name))

    async def of_pod(self, namespace: str, name: str) -> PodDevices:
        """As `PodResources`."""
        self._ask()
        return self.held(namespace, name)

    async def all(self) -> tuple[PodDevices, ...]:
        """As `PodResources`."""
        self._ask()
        return tuple(self._held.values())

    async def close(self) -> None:
        """Nothing is open."""

    def _ask(self) -> None:
        self.questions += 1
        if self.silent:
            msg = "kubelet does not say what pods hold: made to be silent"
            raise K8sRdmaError(msg, reason=Reason.KUBELET_FAILURE)
