"""PFs to be set up, once their drivers are there."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import structlog

from k8s_rdma.errors import KernelError
from k8s_rdma.init.job import Target, wait_until
from k8s_rdma.linux.discovery.observation import Observer
from k8s_rdma.linux.discovery.pfs import Discovery, FoundPf, Missing, Selected, SkippedPf
from k8s_rdma.linux.pci import USERSPACE_DRIVERS
from k8s_rdma.linux.sysfs import is_absent

if TYPE_CHECKING:
    from collections.abc import Callable

    from k8s_rdma.init.config import InitConfig
    from k8s_rdma.init.job import Machine

_log = structlog.get_logger()
LOOK_EVERY_S = 0.5


@dataclass(frozen=True, slots=True, kw_only=True)
class Selecting:
    """targets: in order of their PCI address. skipped: those that could have been, and why not.

    problems: a sentence on each rule that names what is not there. unmeant: PFs that no rule matches.
    """

    targets: tuple[Target, ...]
    skipped: tuple[SkippedPf, ...]
    problems: tuple[str, ...]
    unmeant: tuple[FoundPf, ...]


def select_pfs(machine: Machine, config: InitConfig) -> Selecting:
    """Wait for drivers and netdevs, then for RDMA devices where they are demanded.

    KernelError when the machine cannot be looked at.
    """
    waits = (
        ("driver", config.driver_timeout_s, is_unfinished),
        ("RDMA device", config.rdma_timeout_s, lacks_rdma),
    )
    with machine.queries() as queries:
        scan = _Scan(Observer(machine.sysfs, queries, config.hardware.to_core()))
        for subject, timeout_s, incomplete in waits:
            if not wait_until(machine.clock, timeout_s, partial(scan.none_is, incomplete), LOOK_EVERY_S):
                _log.warning("pfs_incomplete", without=subject, waited_s=timeout_s)
    found = scan.found
    return Selecting(
        targets=tuple(map(_target, found.selected)),
        skipped=found.skipped,
        problems=found.problems,
        unmeant=found.unmeant,
    )


def is_fault(skipped: SkippedPf) -> bool:
    """Whether a PF that is left out should not have been.

    Who names a PF wants it. A PF without driver, or without what its driver should have made, is broken;
    one that is lent to a program or another namespace, or that only a broad rule meant, is not.
    """
    return skipped.rule.names_it or is_unfinished(skipped)


def is_unfinished(skipped: SkippedPf) -> bool:
    """Report whether its driver is still to come, or still to make its netdev."""
    match skipped.missing:
        case Missing.DRIVER | Missing.AGREEMENT:
            return True
        case Missing.NETDEV:
            return skipped.pf.netdevs is None and skipped.pf.driver not in USERSPACE_DRIVERS
        case _:
            return False


def lacks_rdma(skipped: SkippedPf) -> bool:
    """Report whether an RDMA device is what it lacks; its driver may come later than that of the netdev."""
    return skipped.missing is Missing.RDMA


class _Scan:
    """Looks at the machine; `found` is what the last one saw."""

    def __init__(self, observer: Observer) -> None:
        self._observer = observer
        self.found = Discovery((), (), ())

    def none_is(self, incomplete: Callable[[SkippedPf], bool]) -> bool:
        """Look, and say whether no PF that is left out is so."""
        try:
            self.found = self._observer.discover()
        except OSError as error:
            if is_absent(error):  # while it was being looked at, as its driver leaves or comes
                return False
            msg = f"sysfs: {error}"
            raise KernelError(msg) from error
        return not any(map(incomplete, self.found.skipped))


def _target(selected: Selected) -> Target:
    pf = selected.pf
    if pf.link_type is None:
        msg = f"PF {pf.name} ({pf.pci}): is neither Ethernet nor InfiniBand; exclude it in hardware.pfs"
        raise KernelError(msg)
    return Target(name=pf.name, pci=pf.pci, link_type=pf.link_type, rule=selected.rule)
