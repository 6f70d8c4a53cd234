"""A node as device plugins see it: two PFs with two VFs each, and a soft device."""

from __future__ import annotations

from dataclasses import replace

from k8s_rdma.core.devices.rdma_devices import (
    AllocatedDevice,
    CharacterDevice,
    DeviceInventory,
    NetnsMode,
    NodeKind,
    RdmaDevice,
)

PF0, PF1 = "0000:03:00.0", "0000:83:00.0"


def node(kind: NodeKind, number: int) -> CharacterDevice:
    return CharacterDevice(
        kind=kind,
        path=f"/dev/infiniband/{kind}{number}",
        major=231,
        minor=number + (192 if kind == "uverbs" else 0),
    )


def device(number: int, *, pf: str = PF0, vf: int | None = None, **changes: object) -> RdmaDevice:
    kinds = (NodeKind.UVERBS, NodeKind.UMAD) if vf is not None else tuple(NodeKind)
    made = RdmaDevice(
        name=f"mlx5_{number}",
        pci=pf if vf is None else f"{pf[:-1]}{vf + 2}",
        pf=pf,
        pf_name="enp3s0f0" if pf == PF0 else "enp131s0f0",
        vf=vf,
        netdev=f"eth{number}",
        vendor="15b3:1017" if vf is None else "15b3:1018",
        pf_vendor="15b3:1017",
        driver="mlx5_core",
        pf_driver="mlx5_core",
        numa_node=0 if pf == PF0 else 1,
        pcie_path=(f"{pf[:8]}01.0",),
        nodes=tuple(node(kind, number) for kind in kinds),
    )
    return replace(made, **changes)


PF_0, PF_1 = device(0), device(1, pf=PF1)
VF_2, VF_3 = device(2, vf=0), device(3, vf=1)
VF_4, VF_5 = device(4, pf=PF1, vf=0), device(5, pf=PF1, vf=1)
SOFT = RdmaDevice(name="rxe0", nodes=(node(NodeKind.UVERBS, 6),))
ALL = (PF_0, PF_1, VF_2, VF_3, VF_4, VF_5, SOFT)


def seen(*devices: RdmaDevice, **changes: object) -> DeviceInventory:
    made = DeviceInventory(
        devices={each.name: each for each in devices or ALL},
        allocated={},
        netns_mode=NetnsMode.SHARED,
        rdma_cm=True,
        directory=True,
        held_slots=frozenset(),
    )
    return replace(made, **changes)


def given(device: RdmaDevice, pool: str = "") -> dict[str, AllocatedDevice]:
    """Return the agent's report of a device that a pod has."""
    told = AllocatedDevice(
        name=device.name, pci=device.pci, pf=device.pf, vf=device.vf or 0, pod_uid="uid-p", pool=pool
    )
    return {device.name: told}
