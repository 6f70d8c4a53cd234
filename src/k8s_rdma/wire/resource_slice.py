"""ResourceSlices (`resource.k8s.io/v1`): the PFs of a node that claims may have VFs of.

A PF is one device that many claims share (`allowMultipleAllocations`, KEP-5075), with two capacities:
`bandwidth` in bits per second, and `vfs`: each allocation takes one. Both have a request policy:
without one, a claim that asks for nothing takes all, and negative amounts count.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from k8s_rdma.wire.claims import DRIVER

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from k8s_rdma.wire.claims import Offers, PfOffer

MAX_DEVICES = 64
"""Devices of a slice that may have taints (k8s.io/api/resource/v1/types.go, 1.36)."""

MAX_TEXT = 64
"""Characters of an attribute (`DeviceAttributeMaxValueLength`)."""

LINK_DOWN = "k8s-rdma.io/link-down"
AGENT_AWAY = "k8s-rdma.io/agent-away"
"""Keys of taints."""

_MAX_NODE = 200


def slice_name(node: str, index: int) -> str:
    """The name of a node's slice, a DNS subdomain; nodes are to differ in their first 200 characters.

    `deploy/policies/slices.yaml` makes the same.
    """
    return f"{node[:_MAX_NODE]}-{DRIVER}-{index}"


def slice_specs(offers: Offers, *, agent_away: bool = False) -> tuple[dict[str, Any], ...]:
    """The `spec` of each slice of a node, without the pool's generation; none where nothing is offered.

    agent_away: whether no new pod is to come, since no claim could be prepared.
    """
    parts = [offers.pfs[start : start + MAX_DEVICES] for start in range(0, len(offers.pfs), MAX_DEVICES)]
    return tuple(
        {
            "driver": DRIVER,
            "nodeName": offers.node,
            "pool": {"name": offers.node, "resourceSliceCount": len(parts)},
            "devices": [_device(pf, agent_away=agent_away) for pf in part],
        }
        for part in parts
    )


def _device(pf: PfOffer, *, agent_away: bool) -> dict[str, Any]:
    taints = {LINK_DOWN: not pf.link_up, AGENT_AWAY: agent_away}
    device: dict[str, Any] = {
        "name": pf.name,
        "allowMultipleAllocations": True,
        "attributes": _attributes(pf),
        "capacity": {
            "bandwidth": {
                "value": quantity_of(pf.bandwidth_mbps),
                "requestPolicy": {"default": "0", "validRange": {"min": "0", "step": "1M"}},
            },
            "vfs": {
                "value": str(pf.vfs),
                "requestPolicy": {"default": "1", "validValues": ["1"]},
            },
        },
    }
    if any(taints.values()):
        device["taints"] = [{"key": key, "effect": "NoSchedule"} for key, holds in taints.items() if holds]
    return device


def quantity_of(mbps: int) -> str:
    """Mb/s as a Kubernetes quantity in bits per second, as the API server writes it: `100G`, `1500M`, `0`."""
    if mbps == 0:
        return "0"
    for factor, suffix in ((1_000_000, "T"), (1_000, "G")):
        if mbps % factor == 0:
            return f"{mbps // factor}{suffix}"
    return f"{mbps}M"


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
    numbers = {"mtu": pf.mtu, "numaNode": pf.numa_node, "resource.kubernetes.io/numaNode": pf.numa_node}
    found: dict[str, dict[str, object]] = {
        key: {"string": text} for key, text in texts.items() if text and len(text) <= MAX_TEXT
    }
    found |= {key: {"int": number} for key, number in numbers.items() if number is not None}
    return {**found, "rdma": {"bool": pf.rdma}}


class SliceSpec(msgspec.Struct, frozen=True):
    """The parts of a slice's `spec` that say whether it is what it should be."""

    pool: dict[str, Any] = {}
    devices: tuple[dict[str, Any], ...] = ()

    @property
    def generation(self) -> int:
        """The pool's generation."""
        generation = self.pool.get("generation", 0)
        return generation if isinstance(generation, int) else 0


_decoder = msgspec.json.Decoder(SliceSpec)


def decode_spec(spec: bytes) -> SliceSpec:
    """Read a slice's `spec`; an empty one for what is none."""
    try:
        return _decoder.decode(spec)
    except msgspec.MsgspecError:
        return SliceSpec()


def equals(found: SliceSpec, spec: Mapping[str, Any]) -> bool:
    """Report whether a slice is as it should be, whatever its pool's generation."""
    pool = {key: value for key, value in found.pool.items() if key != "generation"}
    return pool == spec["pool"] and list(map(_without_times, found.devices)) == list(spec["devices"])


def _without_times(device: dict[str, Any]) -> dict[str, Any]:
    """The device without the time of each taint, which the API server adds."""
    if "taints" not in device:
        return device
    taints = [{key: taint[key] for key in taint if key != "timeAdded"} for taint in device["taints"]]
    return device | {"taints": taints}


def dropped_fields(found: SliceSpec, devices: Sequence[Mapping[str, Any]]) -> tuple[str, ...]:
    """Name what the API server dropped of devices as it stored them, as one without the feature gate does."""
    by_name = {device.get("name"): device for device in found.devices}
    dropped = set()
    for device in devices:
        stored = by_name.get(device["name"], {})
        if not stored.get("allowMultipleAllocations"):
            dropped.add("allowMultipleAllocations")
        capacity = stored.get("capacity") or {}
        if any(not (capacity.get(name) or {}).get("requestPolicy") for name in device["capacity"]):
            dropped.add("requestPolicy")
    return tuple(sorted(dropped))
