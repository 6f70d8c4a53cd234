"""The agent's configuration file."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec

from k8s_rdma.hardware_config import HardwareConfig

Directory = Annotated[str, msgspec.Meta(pattern="^/")]
"""Absolute, so that it does not depend on where the process was started."""


class AgentConfig(msgspec.Struct, frozen=True, kw_only=True, rename="camel", forbid_unknown_fields=True):
    """YAML with these keys in camelCase.

    node: the node's name in Kubernetes.
    kernel: where the functions come from: `linux`, the node's network cards, or `virtual`, SR-IOV made of
        ordinary Linux parts.
    hardware: which network cards are ours, with `linux`.
    run_dir: `cni.sock`, `state.sock` and `attachments/`; on a tmpfs that a reboot empties.
    state_dir: the ledger; on a disk that a reboot keeps.
    host_root: where the node's root file system is mounted, for namespaces and IPAM plugins.
    placement_key_file: the key that extender and agents share; without one a placement is a hint only.
    strict: whether unknown keys in a pod's annotation refuse it; the same as in the extender.
    allow_unplaced: whether a pod that the extender did not place gets interfaces of what this node's ledger
        leaves free; by default where nobody signs placements. It may be given what the extender has promised
        to a pod that has not started yet.
    ipam_timeout_s: how long an IPAM plugin may take.
    """

    node: Annotated[str, msgspec.Meta(min_length=1)]
    kernel: Literal["linux", "virtual"] = "linux"
    hardware: HardwareConfig = HardwareConfig()
    run_dir: Directory = "/run/k8s-rdma"
    state_dir: Directory = "/var/lib/k8s-rdma"
    host_root: Directory = "/"
    placement_key_file: str | None = None
    strict: bool = True
    allow_unplaced: bool | None = None
    ipam_timeout_s: Annotated[float, msgspec.Meta(gt=0)] = 20.0
