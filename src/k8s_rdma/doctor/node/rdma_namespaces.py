"""Checks of RDMA network namespaces, and of the isolation that the device plugin's modes give with them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from k8s_rdma.config.devices import (
    DevicePluginConfig,
    ExclusiveResource,
    MountResource,
    Resource,
    SharedResource,
)
from k8s_rdma.core.devices.rdma_devices import NetnsMode
from k8s_rdma.doctor.subject import Subject

if TYPE_CHECKING:
    from collections.abc import Iterator

    from k8s_rdma.doctor.finding import Finding


RDMA = Subject(
    "rdma-namespaces",
    "RDMA namespaces",
    "`rdma system show` now, `/etc/modprobe.d` after a reboot.",
)
OK = RDMA.ok()
NO_RDMA = RDMA.note("no-rdma")
NOT_KEPT = RDMA.note("not-kept")
WITHOUT_CDI = RDMA.error("without-cdi")

ISOLATION = Subject(
    "isolation",
    "Isolation",
    "[What a container can reach](device-plugin.md#what-a-container-can-reach) by each resource.",
)
OWN_VERBS = ISOLATION.ok("own-devices")
OWN_NAMESPACE = ISOLATION.note("own-namespace")
MATCHING_DEVICES = ISOLATION.warning("matching-devices")
EVERY_DEVICE = ISOLATION.warning("every-device")
NO_PLUGIN = ISOLATION.note("no-plugin")
UNSIGNED = ISOLATION.warning("unsigned-placements")

_SYSTEM = "rdma system show"
_SHARED, _EXCLUSIVE = NetnsMode.SHARED, NetnsMode.EXCLUSIVE


@dataclass(frozen=True, slots=True, kw_only=True)
class RdmaFacts:
    """The node's mode of sharing RDMA devices between network namespaces.

    mode: the mode, if the kernel has RDMA.
    persistent: the mode that /etc/modprobe.d sets at the next boot.
    plugin: the device plugin's configuration from `source`, if there is one.
    agent_file: the agent's configuration file, if there is one.
    signed: whether the agent has a key for placements, by `agent_file`.
    """

    mode: NetnsMode | None
    persistent: NetnsMode
    plugin: DevicePluginConfig | None
    source: str
    agent_file: str | None
    signed: bool


@RDMA.check(RdmaFacts)
def check_rdma_namespaces(facts: RdmaFacts) -> Iterator[Finding]:
    """Check the mode against the needs of the configuration."""
    if facts.mode is None:
        yield NO_RDMA("no driver has loaded ib_core", source=_SYSTEM)
        return
    if facts.mode is not facts.persistent:
        value = int(facts.mode is _SHARED)
        yield NOT_KEPT(
            f"the mode is {facts.mode.value}, after a reboot {facts.persistent.value}",
            source=f"{_SYSTEM}; /etc/modprobe.d",
            expected="one mode, as it can only be changed while no pod has a namespace",
            fix=f"echo 'options ib_core netns_mode={value}' > /etc/modprobe.d/ib_core.conf",
        )
    unfit = [
        resource
        for resource in _resources(facts)
        if isinstance(resource, ExclusiveResource) and resource.cdi is False
    ]
    if facts.mode is _EXCLUSIVE and unfit:
        for resource in unfit:
            yield WITHOUT_CDI(
                "without CDI in mode exclusive: device nodes change numbers when the device moves",
                about=resource.name,
                source=facts.source,
                expected="cdi: true, or no key cdi",
                fix="remove cdi: false",
            )
    else:
        yield OK(f"the mode is {facts.mode.value}", source=_SYSTEM)


@ISOLATION.check(RdmaFacts)
def check_isolation(facts: RdmaFacts) -> Iterator[Finding]:
    """Check the devices that a container can reach by each resource of the device plugin."""
    if facts.plugin is None:
        yield NO_PLUGIN(
            "no device plugin is configured: containers get no device nodes",
            source=facts.source,
        )
    for resource in _resources(facts):
        yield _isolation(resource, facts)
    if facts.agent_file is not None and not facts.signed:
        yield UNSIGNED(
            "users who can edit a pod's annotations can get interfaces that were never reserved",
            about="placementKeyFile",
            source=facts.agent_file,
            expected="a key that agents and extender share",
            fix="placementKeyFile for agent and extender, from one Secret",
        )


def _resources(facts: RdmaFacts) -> tuple[Resource, ...]:
    return facts.plugin.resources if facts.plugin else ()


def _isolation(resource: Resource, facts: RdmaFacts) -> Finding:
    about, source = resource.name, f"{facts.source}; {_SYSTEM}"
    apart = facts.mode is _EXCLUSIVE
    match resource:
        case SharedResource() if not apart:
            return MATCHING_DEVICES(
                "a container reaches every matching device, and by PFs exceeds VFs' caps",
                about=about,
                source=source,
                expected="trusted pods, or mode exact",
                fix="mode: exact; or, on a node without pods, rdma system set netns exclusive",
            )
        case MountResource(scope="rdma-cm-only"):
            return OWN_VERBS("a container reaches no verbs, only rdma_cm", about=about, source=source)
        case MountResource() if not apart:
            return EVERY_DEVICE(
                "a container reaches every device of the node, other pods' and PFs, beyond all caps",
                about=about,
                source=source,
                expected="trusted pods, or mode exact",
                fix="remove mode: mount (node.devicePlugin.mount: false) once pods request k8s-rdma.io/slot; "
                "or, on a node without pods, rdma system set netns exclusive",
            )
        case MountResource() | SharedResource():
            return OWN_NAMESPACE(
                "containers have several devices' nodes; only those of their namespace work",
                about=about,
                source=source,
            )
    scope = "of its own devices" if isinstance(resource, ExclusiveResource) else "of its own pod's VFs"
    return OWN_VERBS(f"a container reaches the verbs {scope}, and no others", about=about, source=source)
