"""Why the interfaces of a pod that holds exclusive devices do not fit wherever kubelet may choose these."""

from __future__ import annotations

from typing import TYPE_CHECKING

from k8s_rdma.core.inventory import NOTHING_USED
from k8s_rdma.core.needs import unmet
from k8s_rdma.core.programming import demand, objection
from k8s_rdma.core.refusal import needed
from k8s_rdma.core.said import Said
from k8s_rdma.core.weights import RoundRobin
from k8s_rdma.errors import Reason

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from k8s_rdma.core.devices.placement import Possible
    from k8s_rdma.core.ids import PciAddress
    from k8s_rdma.core.inventory import Pf, Used
    from k8s_rdma.core.request import Request


def why_not_devices(
    request: Request,
    places: Sequence[Possible],
    more: Mapping[PciAddress, Used],
    used: Mapping[PciAddress, Used],
) -> tuple[Reason, Said]:
    """The reason, as `core.placement.Rejection` has it, and the sentence.

    places: all that kubelet may choose. more: what a choice of it takes of each PF, which does not fit.
    """
    pfs = {each.pf.pci: each.pf for each in places}.values()
    against = _refused(places)
    if against is not None:
        return Reason.DRIVER_REFUSES, _joined(request, places, against)
    short = _short(pfs, more, {}, empty=True)
    if short is not None:
        return Reason.EXCEEDS_CAPACITY, _joined(request, places, short)
    short = _short(pfs, more, used, empty=False)
    return Reason.INSUFFICIENT, _joined(request, places, short or _said("", "takes them", "takes them"))


def _joined(request: Request, places: Sequence[Possible], why: Said) -> Said:
    resources = " and ".join(dict.fromkeys(each.resource for each in places))
    needs = f"needs {needed(request.interfaces)} as devices of {resources}, and kubelet chooses which"
    return Said(*(f"{needs}; {each}" for each in why))


def _said(name: str, numbers: str, cause: str) -> Said:
    return Said(f"PF {name} {numbers}", f"a PF {numbers}", f"a PF {cause}")


def _refused(places: Iterable[Possible]) -> Said | None:
    for each in places:
        why = unmet(each.pf, each.wanted.needs)
        if not why and (why := objection(each.pf, each.wanted)):
            why += f", and {demand(each.pf, each.wanted)}"
        if why:
            text = f"where they may be does not take them: {why}"
            return _said(each.pf.name, text, text)
    return None


def _short(
    pfs: Iterable[Pf], more: Mapping[PciAddress, Used], used: Mapping[PciAddress, Used], *, empty: bool
) -> Said | None:
    """The first PF that the worst choice is too much for."""
    for pf in pfs:
        before, taken = used.get(pf.pci, NOTHING_USED), more.get(pf.pci, NOTHING_USED)
        after = before + taken
        added, link = after.mbps - before.mbps, pf.link_mbps or 0
        if taken.mbps and after.mbps > link:
            if pf.link_mbps is None:
                text = "where they may be has no known link speed (link down?), and reserves nothing"
                return _said(pf.name, text, text)
            free = f"{link} Mb/s when empty" if empty else f"{link - before.mbps} of {link} Mb/s unreserved"
            cause = "even when empty" if empty else "free"
            return _said(
                pf.name,
                f"may come to carry {added} Mb/s of that, and has {free}",
                f"that may come to carry them has too little bandwidth {cause}",
            )
        round_robin = RoundRobin.of(pf, after)
        if round_robin is not None and not round_robin.load().keeps:
            text = (
                f"that may come to carry them has minimum rates that are weights ({pf.driver}), by which a "
                "VF would get less than is reserved for it"
            )
            return _said(pf.name, text, text)
    return None
