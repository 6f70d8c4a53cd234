"""Facts of `firmware`: in order, and for each kind of finding."""

from __future__ import annotations

from dataclasses import replace

from doctor.cases.hardware import NOTHING_SEEN, hardware
from k8s_rdma.config.hardware import HardwareConfig, PfConfig
from k8s_rdma.doctor.node.hardware import PlainFunction, check_firmware

_TOO_MANY = HardwareConfig(pfs=(PfConfig(names=("enp59s0f0np0",), num_vfs=4000),))
_MLX5 = PlainFunction(pci="0000:03:00.0", driver="mlx5_core", netdev="enp3s0")
_PASSED_VF = PlainFunction(pci="0101:00:00.0", driver="mlx5_core", netdev="ib0", vendor="15b3:101e")
_SMART_NIC = PlainFunction(
    pci="0000:03:00.0", driver="mlx5_core", netdev="p0", vendor="15b3:a2dc", host_ports=("pf0hpf",)
)


IN_ORDER = list(check_firmware(hardware("connectx5")))

CASES = {
    "firmware-no-sriov": list(check_firmware(replace(NOTHING_SEEN, plain=(_MLX5,)))),
    "firmware-too-few-vfs": list(check_firmware(hardware("connectx5", _TOO_MANY))),
    "firmware-passed-vf": list(check_firmware(replace(NOTHING_SEEN, plain=(_PASSED_VF,)))),
    "firmware-smart-nic": list(check_firmware(replace(NOTHING_SEEN, plain=(_SMART_NIC,)))),
    "firmware-roce-off": list(check_firmware(replace(NOTHING_SEEN, roce=(("0000:03:00.0", False),)))),
}
