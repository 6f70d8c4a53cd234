"""The agent's configuration file."""

from __future__ import annotations

from typing import Literal

import msgspec


class AgentConfig(msgspec.Struct, frozen=True, kw_only=True, rename="camel", forbid_unknown_fields=True):
    """YAML with these keys in camelCase.

    node: the node's name in Kubernetes.
    kernel: where the functions come from; `virtual` is SR-IOV made of ordinary Linux parts.
    run_dir: `cni.sock`, `state.sock` and `attachments/`; on a tmpfs that a reboot empties.
    state_dir: the ledger; on a disk that a reboot keeps.
    host_root: where the node's root file system is mounted, for namespaces and IPAM plugins.
    placement_key_file: the key that extender and agents share; without one a placement is a hint only.
    ipam_timeout_s: how long an IPAM plugin may take.
    """

    node: str
    kernel: Literal["virtual"] = "virtual"
    run_dir: str = "/run/k8s-rdma"
    state_dir: str = "/var/lib/k8s-rdma"
    host_root: str = "/"
    placement_key_file: str | None = None
    ipam_timeout_s: float = 20.0
