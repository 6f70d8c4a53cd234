"""Subjects of doctor: each has its kinds of findings, and one check, which asks for facts of one class."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, TypeAlias, TypeVar

from k8s_rdma.doctor.finding import Finding, Kind, Severity

Facts = TypeVar("Facts")
Check: TypeAlias = Callable[[Facts], Iterator[Finding]]


class Subject:
    """A part of a node or of a cluster that a check examines.

    It makes the kinds of its findings: `CNI.error("no-file")` has the id `cni-no-file`. For example:

        CNI = Subject("cni", "CNI plugin", "The runtime uses the first file by name.")
        CNI_OK = CNI.ok()
        NO_FILE = CNI.error("no-file")

        @CNI.check(CniFacts)
        def check_cni(facts: CniFacts) -> Iterator[Finding]: ...

    name: the beginning of its kinds' ids.
    title: its name for people.
    about: the paragraph below its title in docs/doctor-findings.md, in Markdown; empty if it needs none.
    kinds: in the order of that page.
    """

    def __init__(self, name: str, title: str, about: str = "") -> None:
        self.name, self.title, self.about = name, title, about
        self.kinds: list[Kind] = []
        self._check: tuple[type, Check[Any]] | None = None

    def ok(self, name: str = "ok") -> Kind:
        """Make a kind of this severity; the other three do the same."""
        return self._kind(name, Severity.OK)

    def note(self, name: str) -> Kind:
        """See `ok`."""
        return self._kind(name, Severity.NOTE)

    def warning(self, name: str) -> Kind:
        """See `ok`."""
        return self._kind(name, Severity.WARNING)

    def error(self, name: str) -> Kind:
        """See `ok`."""
        return self._kind(name, Severity.ERROR)

    def _kind(self, name: str, severity: Severity) -> Kind:
        kind = Kind(f"{self.name}-{name}", severity, self.name)
        if self._check is not None:
            msg = f"{kind.id}: make it a constant of the module, above the check"
            raise RuntimeError(msg)
        self.kinds.append(kind)
        return kind

    def check(self, facts: type[Facts]) -> Callable[[Check[Facts]], Check[Facts]]:
        """Decorate this subject's check, which each collector runs that collects these facts."""
        if self._check is not None:
            msg = f"{self.name} has a check: make another subject, or let that check call this function"
            raise RuntimeError(msg)

        def registered(check: Check[Facts]) -> Check[Facts]:
            self._check = facts, check
            return check

        return registered

    @property
    def facts(self) -> type:
        """The class of the facts that its check asks for."""
        return self._registered()[0]

    def findings(self, facts: object) -> Iterator[Finding]:
        """Yield the findings of its check. facts: of the class `facts`."""
        return self._registered()[1](facts)

    def _registered(self) -> tuple[type, Check[Any]]:
        if self._check is None:
            msg = f"{self.name} has no check: decorate a function with its method `check`"
            raise RuntimeError(msg)
        return self._check
