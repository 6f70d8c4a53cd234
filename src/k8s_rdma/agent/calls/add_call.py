"""One ADD: what came with it, and what can be told from that alone."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from k8s_rdma.agent.calls.ifnames import POD_IFNAME, interface_names
from k8s_rdma.agent.device_files import device_info_file
from k8s_rdma.agent.plugins.called import CalledPlugins
from k8s_rdma.agent.sandbox import Sandbox
from k8s_rdma.core.ids import PodUid
from k8s_rdma.core.ledger import Attachment, Pod
from k8s_rdma.core.options import VfDriver
from k8s_rdma.core.step import NetnsRef
from k8s_rdma.errors import K8sRdmaError, Reason
from k8s_rdma.wire.annotation_values import ANNOTATION, refuse
from k8s_rdma.wire.cni_environment import CniEnvironment
from k8s_rdma.wire.cni_result import interfaces_in_pod
from k8s_rdma.wire.netconf import NetConf

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from k8s_rdma.core.devices.pod_devices import SlotHeld
    from k8s_rdma.core.request import InterfaceRequest, Request


@dataclass(frozen=True, slots=True, kw_only=True)
class AddCall:
    """annotations: the pod's. still_waiting: whether anybody will take the answer."""

    env: CniEnvironment
    netns: NetnsRef
    conf: NetConf
    plugins: CalledPlugins
    pod: Pod
    annotations: Mapping[str, str]
    still_waiting: Callable[[], bool]

    @property
    def attachment(self) -> Attachment:
        """What it shall make."""
        return Attachment(self.conf.name, self.env.container_id, self.env.ifname)

    def sandbox(self, request: Request, entries: Sequence[int], slots: tuple[SlotHeld, ...] = ()) -> Sandbox:
        """Where this part of the pod's request shall go, and under which names.

        slots: the pod's; of no use to an attachment without interfaces.
        The delegate is left out where a VF is what the runtime looks for in the pod. MalformedError names a
        field that cannot be followed.
        """
        interfaces = request.interfaces
        present = interfaces_in_pod(self.conf.prev_result).keys()
        numbered = tuple(zip(entries, interfaces, strict=True))
        self._require_netdevs(numbered)
        ifnames = interface_names(self.conf, numbered, self.env.ifname, present)
        drivers = {name: each.options.driver for name, each in zip(ifnames, interfaces, strict=True)}
        provided = drivers.get(self.env.ifname) is VfDriver.KERNEL
        return Sandbox(
            attachment=self.attachment,
            pod=self.pod,
            netns=self.netns,
            ifnames=ifnames,
            entries=tuple(entries),
            ipam=self.plugins.ipam,
            ipams=self.plugins.ipams,
            delegate=None if provided else self.plugins.delegate,
            device_info_file=device_info_file(self.conf.device_info_file),
            slots=slots if interfaces else (),
        )

    def _require_netdevs(self, numbered: Iterable[tuple[int, InterfaceRequest]]) -> None:
        """MalformedError for what is of a network device where the configuration has there be none."""
        for place, interface in numbered:
            options = interface.options
            if options.driver is VfDriver.KERNEL:
                continue
            addressed = dict(self.plugins.ipams).get(options.network) is not None
            for key, asked in (("mtu", options.mtu is not None), ("network", addressed)):
                if asked:
                    why = "is of a network device, and with dpdk of the network configuration there is none"
                    refuse(f"{ANNOTATION}[{place}].{key}", why)

    def allow_nothing(self) -> None:
        """K8sRdmaError where a pod that gets nothing of ours would have no interface at all."""
        alone = self.env.ifname == POD_IFNAME and not self.conf.chained
        if not alone or self.env.pod_name is None or self.conf.empty_result:
            return
        msg = (
            f"network {self.conf.name}: pod {self.pod.namespace}/{self.pod.name} asks for no RDMA interface, "
            f"and nothing gives it its {POD_IFNAME}, without which it does not start: set `delegate` to the "
            "configuration of the plugin that shall, or `emptyResult` to true if the runtime needs none"
        )
        raise K8sRdmaError(msg, reason=Reason.INVALID_NETCONF)


def pod_of(env: CniEnvironment) -> Pod:
    """The pod; without a UID (a runtime that is not Kubernetes') its container stands for it."""
    return Pod(
        namespace=env.pod_namespace or "",
        name=env.pod_name or env.container_id,
        uid=env.pod_uid or PodUid(f"container:{env.container_id}"),
    )
