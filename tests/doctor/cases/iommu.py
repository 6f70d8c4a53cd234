"""Facts of `iommu`: in order, and for each kind of finding."""

from __future__ import annotations

from k8s_rdma.doctor.node.iommu import IommuFacts, check_iommu

IN_ORDER = list(check_iommu(IommuFacts(groups=40, noiommu=False, command_line="", together={"eth0": ()})))

CASES = {
    "iommu-off": list(check_iommu(IommuFacts(groups=0, noiommu=False, command_line="", together={}))),
    "iommu-unsafe": list(check_iommu(IommuFacts(groups=0, noiommu=True, command_line="", together={}))),
    "iommu-shared-group": list(
        check_iommu(
            IommuFacts(groups=4, noiommu=False, command_line="", together={"eth0": ("0000:00:1f.6",)})
        )
    ),
}
