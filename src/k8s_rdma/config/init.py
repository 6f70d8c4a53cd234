"""The configuration file of `k8s-rdma init`."""

from __future__ import annotations

from typing import Annotated

import msgspec

from k8s_rdma.config.field_types import AbsolutePath
from k8s_rdma.config.hardware import HardwareConfig
from k8s_rdma.core.node_paths import STATE_DIR

Seconds = Annotated[float, msgspec.Meta(ge=0)]


class InitConfig(msgspec.Struct, frozen=True, kw_only=True, rename="camel", forbid_unknown_fields=True):
    """YAML with these keys in camelCase.

    hardware: which PFs, how many VFs each, whether those are trusted; the same section as the agent's.
    state_dir: the directory of the agent's ledger, which names the pods that hold VFs; only read here.
    sys_root: the directory of sysfs, writable.
    keep_used_vfs: whether a PF whose number of VFs cannot change, because pods use them, is a success: it
        keeps its present VFs. Else the process fails. As an init container it then keeps the agent from
        starting, without which those pods cannot be ended.
    name_vfs: whether VF netdevs with a name of the kernel's own choice (`eth7`) get a name of their PF and
        their index (`enp4s0f0v3`); names from udev stay.
    tries: per PF.
    backoff_s: before the second try; doubled before each further one.
    driver_timeout_s: for the drivers of PFs, and their netdevs, to be there.
    rdma_timeout_s: after that, for the RDMA devices of PFs that are to have one.
    carrier_timeout_s: for a PF's link, before its VFs get their driver; without a link they get it then.
    vf_timeout_s, timeout_per_vf_s: for the netdevs of a PF's new VFs: the first, and the second for each VF.
    """

    hardware: HardwareConfig = HardwareConfig()
    state_dir: AbsolutePath = STATE_DIR
    sys_root: AbsolutePath = "/sys"
    keep_used_vfs: bool = False
    name_vfs: bool = True
    tries: Annotated[int, msgspec.Meta(ge=1, le=100)] = 3
    backoff_s: Seconds = 5.0
    driver_timeout_s: Seconds = 60.0
    rdma_timeout_s: Seconds = 10.0
    carrier_timeout_s: Seconds = 10.0
    vf_timeout_s: Seconds = 30.0
    timeout_per_vf_s: Seconds = 2.0
