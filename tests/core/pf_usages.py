"""Usages of PFs, some of which a node does not have."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hypothesis import strategies as st

from k8s_rdma.core.pf_use import Used
from packing_oracle import pci

if TYPE_CHECKING:
    from k8s_rdma.core.types import PciAddress

PCI = st.sampled_from([pci(at) for at in range(3)])
USAGE = st.dictionaries(PCI, st.builds(Used, st.integers(0, 9), st.integers(0, 99)))

Usage = dict["PciAddress", Used]
