"""ResourceSlices (`resource.k8s.io/v1`): the PFs of a node that claims may have VFs of.

A PF is one device that many claims share (`allowMultipleAllocations`, KEP-5075), with two capacities:
`bandwidth` in bits per second, and `vfs`: each allocation takes one. Both have a request policy, because
without one a claim without an amount takes all, and negative amounts count.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from k8s_rdma.wire.claims import DRIVER, Offers, PfOffer

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence


MAX_DEVICES = 64
"""Devices of a slice that may have taints (k8s.io/api/resource/v1/types.go, 1.36)."""

MAX_TEXT = 64
"""Bytes of an attribute (`DeviceAttributeMaxValueLength`)."""

LINK_DOWN = "k8s-rdma.io/link-down"
AGENT_AWAY = "k8s-rdma.io/agent-away"
"""Keys of taints."""

NUMA_NODE = "resource.kubernetes.io/numaNode"

_MAX_NODE = 200

_COUNT_UNITS = ((1_000_000, "M"), (1_000, "k"), (1, ""))
_MBPS_UNITS = ((1_000_000, "T"), (1_000, "G"), (1, "M"))


def slice_name(node: str, index: int) -> str:
    """Return the name of a node's slice, a DNS subdomain; nodes are to differ in their first 200 characters.

    `deploy/policies/slices.yaml` makes the same. No label of a subdomain begins with a dash, so that a dot at
    the cut goes.
    """
    return f"{node[:_MAX_NODE].removesuffix('.')}-{DRIVER}-{index}"


def slice_specs(
    offers: Offers,
    *,
    agent_away: bool = False,
    with_taints: bool = True,
    near_nodes: Callable[[int], Sequence[int]] | None = None,
) -> tuple[dict[str, Any], ...]:
    """Return the `spec` of each slice of a node, without the pool's generation; empty without offers.

    A PF without VFs is left out, because the API server refuses a policy whose values are beyond the
    capacity.

    agent_away: whether no new pod is to come, because no claim could be prepared.
    with_taints: whether the API server keeps taints (feature gate DRADeviceTaints). If it does not, PFs that
        are to get no new pods are left out.
    near_nodes: the NUMA nodes to list for that of a PF, its own first (feature gate DRAListTypeAttributes);
        None to publish its own alone.
    """
    devices = [_device(pf, agent_away=agent_away) for pf in offers.pfs if pf.vfs > 0]
    if near_nodes is not None:
        for pf, device in zip((pf for pf in offers.pfs if pf.vfs > 0), devices, strict=True):
            if pf.numa_node is not None:
                device["attributes"][NUMA_NODE] = {"ints": list(near_nodes(pf.numa_node))}
    devices = [device for device in devices if with_taints or "taints" not in device]
    parts = [devices[start : start + MAX_DEVICES] for start in range(0, len(devices), MAX_DEVICES)]
    return tuple(
        {
            "driver": DRIVER,
            "nodeName": offers.node,
            "pool": {"name": offers.node, "resourceSliceCount": len(parts)},
            "devices": part,
        }
        for part in parts
    )


def _device(pf: PfOffer, *, agent_away: bool) -> dict[str, Any]:
    taints = {LINK_DOWN: not pf.link_up, AGENT_AWAY: agent_away}
    least = quantity_of(pf.least_mbps)
    device: dict[str, Any] = {
        "name": pf.name,
        "allowMultipleAllocations": True,
        "attributes": _attributes(pf),
        "capacity": {
            "bandwidth": {
                "value": quantity_of(max(pf.bandwidth_mbps, 0)),
                "requestPolicy": {"default": least, "validRange": {"min": least, "step": "1M"}}
                if pf.bandwidth_mbps > 0
                else {"default": "0", "validValues": ["0"]},  # a step is not to be beyond the capacity
            },
            "vfs": {
                "value": _quantity(pf.vfs, _COUNT_UNITS),
                "requestPolicy": {"default": "1", "validValues": ["1"]},
            },
        },
    }
    if any(taints.values()):
        device["taints"] = [{"key": key, "effect": "NoSchedule"} for key, holds in taints.items() if holds]
    return device


def quantity_of(mbps: int) -> str:
    """Return Mb/s as a quantity in bits per second, as the API server writes it: `100G`, `1500M`, `0`."""
    return _quantity(mbps, _MBPS_UNITS)


def _quantity(amount: int, units: tuple[tuple[int, str], ...]) -> str:
    """Return the canonical form: the largest unit without a fraction (apimachinery, pkg/api/resource)."""
    if amount == 0:
        return "0"
    return next(f"{amount // factor}{unit}" for factor, unit in units if amount % factor == 0)


def _attributes(pf: PfOffer) -> dict[str, dict[str, object]]:
    texts = {
        "pf": pf.pf,
        "driver": pf.driver,
        "vendor": pf.vendor,
        "linkType": pf.link_type.value,
        "minRate": pf.min_rate,
        "maxRate": pf.max_rate,
        "resource.kubernetes.io/pciBusID": pf.pci,
        "resource.kubernetes.io/pcieRoot": pf.pcie_root,
    }
    numbers = {"mtu": pf.mtu, "numaNode": pf.numa_node, NUMA_NODE: pf.numa_node}
    found: dict[str, dict[str, object]] = {
        key: {"string": text} for key, text in texts.items() if text and len(text.encode()) <= MAX_TEXT
    }
    found |= {key: {"int": number} for key, number in numbers.items() if number is not None}
    return {**found, "rdma": {"bool": pf.rdma}}
