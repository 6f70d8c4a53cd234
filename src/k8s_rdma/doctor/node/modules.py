"""Checks of kernel modules (VF drivers, verbs, software caps, vfio-pci)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import Enum, unique
from typing import TYPE_CHECKING

from k8s_rdma.doctor.subject import Subject
from k8s_rdma.linux.drivers import DRIVERS, row_of

if TYPE_CHECKING:
    from k8s_rdma.doctor.finding import Finding, Kind


MODULES = Subject("modules", "Kernel modules")
MODULES_OK = MODULES.ok()
NOT_LOADED = MODULES.warning("not-loaded")
ABSENT = MODULES.error("absent")
OPTIONAL_ABSENT = MODULES.note("optional-absent")
VF_DRIVER = MODULES.error("vf-driver")

NEEDED = (
    "ib_uverbs",
    "rdma_ucm",
    "sch_tbf",
    "vfio_pci",
    *sorted({row.vf_module for row in DRIVERS.values() if row.vf_module}),
)
"""The modules in `states`."""


@unique
class State(Enum):
    """A module's state. BUILT_IN counts as loaded; LOADABLE is on the disk for this kernel."""

    LOADED = "loaded"
    BUILT_IN = "built in"
    LOADABLE = "not loaded"
    ABSENT = "absent"


_AVAILABLE = (State.LOADED, State.BUILT_IN)


@dataclass(frozen=True, slots=True, kw_only=True)
class ModuleFacts:
    """Kernel modules.

    states: by name, with `_` for `-`.
    pf_drivers: the drivers of our PFs.
    release: the kernel's.
    rdma: whether verbs are needed, because a PF has an RDMA device, or must have one.
    software_caps: whether pods' caps may be kept by a queueing discipline.
    """

    states: Mapping[str, State]
    pf_drivers: frozenset[str]
    release: str
    rdma: bool
    software_caps: bool = True


@MODULES.check(ModuleFacts)
def check_modules(facts: ModuleFacts) -> Iterator[Finding]:
    """Check the modules that this node needs; the kernel loads queueing disciplines on demand, verbs not."""
    for driver in sorted(facts.pf_drivers):
        if vf_driver := row_of(driver).vf_module:
            yield _needed(facts, vf_driver, f"VFs of {driver} have no netdev", VF_DRIVER)
    if facts.rdma:
        yield _needed(facts, "ib_uverbs", "containers cannot use verbs", NOT_LOADED)
        why = "there is no /dev/infiniband/rdma_cm"
        yield _needed(facts, "rdma_ucm", why, NOT_LOADED)
    if facts.software_caps:
        yield _on_demand(facts, "sch_tbf", "requests that need software caps are refused")
    yield _on_demand(facts, "vfio_pci", "interfaces with driver vfio-pci are refused")


def _needed(facts: ModuleFacts, name: str, why: str, kind: Kind) -> Finding:
    state = facts.states.get(name, State.ABSENT)
    if state in _AVAILABLE:
        return MODULES_OK(state.value, about=name, source=f"/sys/module/{name}")
    if state is State.ABSENT:
        return ABSENT(
            f"is not in kernel {facts.release}: {why}",
            about=name,
            source=f"/lib/modules/{facts.release}/modules.dep",
            expected="the module",
            fix="install the kernel package that has it (Ubuntu: linux-modules-extra)",
        )
    return kind(
        f"is not loaded: {why}",
        about=name,
        source=f"/sys/module/{name}",
        expected="loaded",
        fix=f"modprobe {name} && echo {name} > /etc/modules-load.d/{name}.conf",
    )


def _on_demand(facts: ModuleFacts, name: str, consequence: str) -> Finding:
    state = facts.states.get(name, State.ABSENT)
    if state is State.ABSENT:
        return OPTIONAL_ABSENT(
            f"is not in kernel {facts.release}: {consequence}",
            about=name,
            source=f"/lib/modules/{facts.release}/modules.dep",
        )
    description = "the kernel loads it on demand" if state is State.LOADABLE else state.value
    return MODULES_OK(description, about=name, source=f"/lib/modules/{facts.release}/modules.dep")
