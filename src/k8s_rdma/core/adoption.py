"""Which foreign VFs may be made ours: those that lie unused in the host's namespace, held by nobody.

An older CNI plugin that crashed, or was replaced, leaves rates and VLANs behind on VFs that no pod has.
"""

from __future__ import annotations

from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING

from k8s_rdma.core.allocation import why_not_free
from k8s_rdma.core.kernel import Vf
from k8s_rdma.core.step import VfRef
from k8s_rdma.errors import MalformedError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from k8s_rdma.core.kernel import Hardware, PfState
    from k8s_rdma.core.ledger import Ledger, Receipt


@dataclass(frozen=True, slots=True, kw_only=True)
class Scope:
    """All foreign VFs, those of one PF (by its name or PCI address), or one VF of it by index."""

    pf: str | None = None
    vf: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """A VF in scope, as it is now.

    foreign: why it is not free. exemption: why it must not be reset; empty when it may be.
    """

    ref: VfRef
    pf_name: str
    vf: Vf
    foreign: str
    exemption: str


NOBODYS: Mapping[str, str] = MappingProxyType({})


def candidates(
    hardware: Hardware, ledger: Ledger, scope: Scope, in_use: Mapping[str, str] = NOBODYS
) -> tuple[Candidate, ...]:
    """The VFs in scope that are foreign, by PF and index; one that was asked for by index whatever it is.

    in_use: exclusive devices, by name or PCI address, and the pods that kubelet gave them.
    MalformedError when there is no such PF or VF.
    """
    holders = {
        interface.vf: receipt for receipt in ledger.receipts.values() for interface in receipt.interfaces
    }
    found = [
        _judged(pf, vf, holders.get(VfRef(pf.pci, vf.index)), _user(vf, in_use))
        for pf in _pfs(hardware, scope)
        for vf in _vfs(pf, scope)
    ]
    return tuple(candidate for candidate in found if scope.vf is not None or candidate.foreign)


def _user(vf: Vf, in_use: Mapping[str, str]) -> str:
    return next((in_use[name] for name in (vf.rdma_device or "", vf.pci) if name in in_use), "")


def _judged(pf: PfState, vf: Vf, holder: Receipt | None, user: str) -> Candidate:
    foreign = "" if holder else why_not_free(vf)
    reason = ""
    if holder is not None:
        reason = f"held by pod {holder.pod.namespace}/{holder.pod.name}"
    elif not foreign:
        reason = "free already"
    elif user:
        reason = f"its device was given to pod {user}, says kubelet"
    elif vf.netdev is None or vf.unusable:
        reason = foreign
    return Candidate(ref=VfRef(pf.pci, vf.index), pf_name=pf.name, vf=vf, foreign=foreign, exemption=reason)


def _pfs(hardware: Hardware, scope: Scope) -> Sequence[PfState]:
    if scope.pf is None:
        return hardware.pfs
    found = [pf for pf in hardware.pfs if scope.pf in (pf.name, pf.pci)]
    if not found:
        pf_names = ", ".join(pf.name for pf in hardware.pfs) or "none"
        msg = f"PF {scope.pf}: not among those of this node that are ours: {pf_names}"
        raise MalformedError(msg)
    return found


def _vfs(pf: PfState, scope: Scope) -> Iterator[Vf]:
    found = [vf for vf in pf.vfs if scope.vf in (None, vf.index)]
    if not found and scope.vf is not None:
        msg = f"VF {scope.vf} of PF {pf.name}: unknown; it has {len(pf.vfs)} VFs"
        raise MalformedError(msg)
    yield from found
