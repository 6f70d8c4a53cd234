"""All cases of `tests/doctor/cases`, which has a module for each subject of doctor."""

from __future__ import annotations

from functools import cache
from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING

from k8s_rdma.doctor.checks import subjects
from k8s_rdma.doctor.finding import NOT_LOOKED_AT, Finding, Kind, not_looked_at

if TYPE_CHECKING:
    from types import ModuleType

    from k8s_rdma.doctor.subject import Subject

KINDS: tuple[Kind, ...] = (NOT_LOOKED_AT, *(kind for subject in subjects() for kind in subject.kinds))


def in_order(subject: Subject) -> list[Finding]:
    """Return the findings of the check if all is well."""
    return list(_module(subject).IN_ORDER)


@cache
def findings_of(kind_id: str) -> tuple[Finding, ...]:
    """Return the findings of the case of this kind, with that of the kind; KeyError names a missing one."""
    if kind_id == NOT_LOOKED_AT.id:
        return (not_looked_at("ledger", "Permission denied", denied=True),)
    [subject] = [each for each in subjects() if kind_id in {kind.id for kind in each.kinds}]
    found = tuple(_module(subject).CASES.get(kind_id) or in_order(subject))
    if kind_id not in {finding.id for finding in found}:
        msg = f"add facts that make {kind_id} to CASES of {_path(subject)}"
        raise KeyError(msg)
    return found


def _module(subject: Subject) -> ModuleType:
    name = f"doctor.cases.{subject.name.replace('-', '_')}"
    if find_spec(name) is None:
        msg = f"add {_path(subject)} with IN_ORDER and CASES, such as those of its neighbours"
        raise KeyError(msg)
    return import_module(name)


def _path(subject: Subject) -> str:
    return f"tests/doctor/cases/{subject.name.replace('-', '_')}.py"
