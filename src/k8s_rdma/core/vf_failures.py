"""Failures to give VFs to pods: which VFs are set aside for a while, and which are tried after all others.

A failure has one of three causes: the VF, its PF, or the pod's request (for example an MTU that the driver
refuses, or a route without a gateway). Only a comparison tells them apart. So an ADD that fails on a VF tries
another one:

- The same interface is given on another VF of the same PF: the first VF failed by itself and is set aside. It
  is tried again after a time that doubles with each further failure.
- The interface is given on another PF only: the PF is suspect. A problem names it, and its VFs are not set
  aside.
- The interface is given nowhere: the request may be the cause. The VFs are tried after all others from now
  on. A problem names them once a second pod fails on one of them.

A VF that fails again after its time, with no other VF to compare with, is set aside again. A VF that is given
has no failures any more. The memory is that of a process: after a restart an ADD learns the same again.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from k8s_rdma.core.ledger import AllocatedInterface
from k8s_rdma.core.step import VfRef
from k8s_rdma.core.types import PciAddress, PodUid

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping, Sequence

    from k8s_rdma.core.kernel import Hardware, PfState, Vf

FIRST_RETRY_S, LAST_RETRY_S = 60.0, 3600.0
"""The time for which a VF is set aside after its first failure, and the longest time."""

MOST_TRIES_ON_PF = 3
"""The VFs of one PF that an ADD tries; a request at fault costs a pod so many attempts."""

_SUSPECT_PODS = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class FailedTry:
    """An attempt of an ADD that failed on VFs; on several if a step that programs them at once failed.

    interfaces: the ones given on these VFs.
    why: the kernel's error.
    """

    interfaces: tuple[AllocatedInterface, ...]
    why: str

    @property
    def vfs(self) -> frozenset[VfRef]:
        """The VFs."""
        return frozenset(interface.vf for interface in self.interfaces)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Failure:
    """A VF's failures since it last could be given.

    why: the kernel's last error.
    times: their number.
    pods: some of those concerned, `_SUSPECT_PODS` at most.
    alone: the interface of the last ADD that tried it, if no other VF failed there.
    elsewhere: whether that ADD found room on another PF.
    aside_s: for how long the VF is set aside; 0 for one that never was.
    until_s: when that ends.
    """

    why: str
    times: int = 0
    pods: frozenset[PodUid] = frozenset()
    alone: AllocatedInterface | None = None
    elsewhere: bool = False
    aside_s: float = 0.0
    until_s: float = 0.0

    @property
    def is_suspect(self) -> bool:
        """Report whether more than one pod's request speaks against the VF or its PF."""
        return self.elsewhere or len(self.pods) >= _SUSPECT_PODS


class VfFailures:
    """The failures of a node's VFs. Times are seconds of one monotonic clock, given by the caller."""

    def __init__(self) -> None:
        """Start without failures."""
        self._failures: dict[VfRef, _Failure] = {}

    def __bool__(self) -> bool:
        """Report whether there is any."""
        return bool(self._failures)

    def note(
        self,
        tries: Sequence[FailedTry],
        interfaces: Collection[AllocatedInterface],
        pod: PodUid,
        now_s: float,
    ) -> tuple[VfRef, ...]:
        """Note the outcome of an ADD; return the VFs that are set aside by it.

        interfaces: those that the pod got in the end; empty if it got no interface.
        """
        to_set_aside = set(self._compared(interfaces, pod, now_s))
        for attempt in tries:
            for interface in attempt.interfaces:
                is_beside = _is_beside(interface, interfaces)
                failure = replace(
                    self._counted(interface.vf, attempt.why, pod),
                    alone=interface if len(tries) == 1 else None,
                    elsewhere=bool(interfaces) and not is_beside,
                )
                if len(attempt.interfaces) == 1 and (is_beside or (failure.alone and failure.aside_s)):
                    to_set_aside.add(interface.vf)
                self._failures[interface.vf] = failure
        for interface in interfaces:
            self._failures.pop(interface.vf, None)
        for vf in to_set_aside & self._failures.keys():
            self._failures[vf] = _set_aside(self._failures[vf], now_s)
        self._clear({interface.vf.pf for interface in interfaces}, now_s)
        return tuple(sorted(to_set_aside & self._failures.keys()))

    def _compared(
        self, interfaces: Collection[AllocatedInterface], pod: PodUid, now_s: float
    ) -> Iterator[VfRef]:
        """Yield VFs on which alone an earlier ADD of this pod failed, and beside which it succeeds now.

        The request must be the same, because its owner may change it between two ADDs.
        """
        for vf, failure in self._failures.items():
            beside = failure.alone and _is_beside(failure.alone, interfaces)
            if beside and failure.pods == {pod} and not failure.elsewhere and now_s >= failure.until_s:
                yield vf

    def _clear(self, pfs: Collection[PciAddress], now_s: float) -> None:
        """Clear PFs that give VFs: if several of their VFs are suspect, requests were at fault."""
        for pf in pfs:
            suspects = [
                vf
                for vf, failure in self._failures.items()
                if vf.pf == pf and failure.is_suspect and now_s >= failure.until_s
            ]
            for vf in suspects if len(suspects) > 1 else ():
                self._failures[vf] = replace(self._failures[vf], pods=frozenset(), elsewhere=False)

    def forget(self, vf: VfRef) -> None:
        """Forget a VF's failures, for example when an operator has reset it."""
        self._failures.pop(vf, None)

    def mark(self, hardware: Hardware, now_s: float) -> Hardware:
        """Return the hardware with the present failures of its VFs and PFs, without those of earlier."""
        pfs = tuple(self._marked(pf, now_s) for pf in hardware.pfs)
        return hardware if pfs == hardware.pfs else replace(hardware, pfs=pfs)

    def _counted(self, vf: VfRef, why: str, pod: PodUid) -> _Failure:
        previous = self._failures.get(vf, _Failure(why=why))
        pods = previous.pods if len(previous.pods) >= _SUSPECT_PODS else previous.pods | {pod}
        return replace(previous, why=why, times=previous.times + 1, pods=pods)

    def _marked(self, pf: PfState, now_s: float) -> PfState:
        failures = {vf.index: failure for vf, failure in self._failures.items() if vf.pf == pf.pci}
        if not failures and not pf.failures and not any(vf.failures for vf in pf.vfs):
            return pf
        vfs = tuple(_marked_vf(vf, failures.get(vf.index), now_s) for vf in pf.vfs)
        return replace(pf, vfs=vfs, failures=tuple(_sentences(pf.name, failures, now_s)))


def to_avoid(tries: Sequence[FailedTry], hardware: Hardware) -> Iterator[frozenset[VfRef]]:
    """Yield sets of VFs that the next try of an ADD avoids, the best one first; empty if it is to give up.

    PFs where more than one VF failed are avoided as a whole, if other PFs are left.
    """
    failed = frozenset(vf for failure in tries for vf in failure.vfs)
    on_pf = Counter(pf for failure in tries for pf in {vf.pf for vf in failure.vfs})
    if not tries or max(on_pf.values()) >= MOST_TRIES_ON_PF:
        return
    doubtful = [pf for pf in hardware.pfs if on_pf[pf.pci] > 1]
    if doubtful:
        yield failed | {VfRef(pf.pci, vf.index) for pf in doubtful for vf in pf.vfs}
    yield failed


def _is_beside(failed: AllocatedInterface, interfaces: Collection[AllocatedInterface]) -> bool:
    """Report whether the same interface, by the same request, was given on another VF of the PF."""
    return any(
        _request(interface) == _request(failed)
        and interface.vf.pf == failed.vf.pf
        and interface.vf != failed.vf
        for interface in interfaces
    )


def _request(interface: AllocatedInterface) -> tuple[object, ...]:
    rates = interface.min_tx_rate_mbps, interface.max_tx_rate_mbps
    return interface.entry, *rates, interface.options, interface.enforce


def _set_aside(failure: _Failure, now_s: float) -> _Failure:
    aside_s = min(2 * failure.aside_s, LAST_RETRY_S) if failure.aside_s else FIRST_RETRY_S
    return replace(failure, aside_s=aside_s, until_s=now_s + aside_s)


def _marked_vf(vf: Vf, failure: _Failure | None, now_s: float) -> Vf:
    observed_why = "" if vf.set_aside else vf.unusable
    if failure is None:
        return replace(vf, failures=0, set_aside=False, unusable=observed_why)
    is_aside = now_s < failure.until_s and not observed_why
    why = f"set aside: {_describe(failure)}" if is_aside else observed_why
    return replace(vf, failures=failure.times, set_aside=is_aside, unusable=why)


def _describe(failure: _Failure) -> str:
    times = "once" if failure.times == 1 else f"{failure.times} times"
    return (
        f"it could not be given to a pod ({times}), and others of its PF could; tried again "
        f"{failure.aside_s:g} s after the last time: {failure.why}"
    )


def _sentences(pf: str, failures: Mapping[int, _Failure], now_s: float) -> Iterator[str]:
    suspects = {}
    for index, failure in sorted(failures.items()):
        if now_s < failure.until_s:
            yield f"VF {index} of PF {pf} is set aside: {_describe(failure)}"
        elif failure.is_suspect:
            suspects[index] = failure
    if suspects:
        vfs = f"VF{'s' if len(suspects) > 1 else ''} {', '.join(map(str, suspects))} of PF {pf}"
        why = suspects[min(suspects)].why
        yield f"{vfs} could not be given to pods, and none of the PF's VFs to these: {why}"
