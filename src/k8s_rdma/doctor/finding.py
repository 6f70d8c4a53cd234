"""Findings, their kinds and severities."""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import StrEnum, unique
from typing import TYPE_CHECKING

from k8s_rdma.errors import printable

if TYPE_CHECKING:
    from collections.abc import Iterable


@unique
class Severity(StrEnum):
    """Severity of a finding; `rank` orders them.

    - OK: the subject is in order.
    - NOTE: worth knowing; no action is necessary.
    - WARNING: something works worse than it could, or may fail.
    - ERROR: pods do not get their interfaces.
    """

    OK = "ok"
    NOTE = "note"
    WARNING = "warning"
    ERROR = "error"

    @property
    def rank(self) -> int:
        """The rank of the severity; higher is worse."""
        return tuple(Severity).index(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """A result of a check.

    id: its kind; stable.
    about: its object: a PF, a file, a pod; may be empty.
    found: the state, in a sentence.
    source: the file, query or process that shows it; empty if found names it.
    expected: the right state; empty if no action is necessary.
    fix: a command or a line of configuration; empty if no action is necessary.
    """

    id: str
    subject: str
    severity: Severity
    about: str
    found: str
    source: str
    expected: str = ""
    fix: str = ""


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of finding, made by a `Subject`; its id begins with the subject. One id is of one severity."""

    id: str
    severity: Severity
    subject: str

    def __call__(
        self, found: str, *, source: str, about: str = "", expected: str = "", fix: str = ""
    ) -> Finding:
        """Make a finding of this kind; its texts are always encodable."""
        return Finding(
            id=self.id,
            subject=self.subject,
            severity=self.severity,
            about=printable(about),
            found=printable(found),
            source=printable(source),
            expected=printable(expected),
            fix=printable(fix),
        )


NOT_LOOKED_AT = Kind("not-looked-at", Severity.WARNING, "")
"""The kind for every subject that cannot be checked: such a subject never counts as in order."""


def not_looked_at(subject: str, why: str, *, denied: bool) -> Finding:
    """Return a `NOT_LOOKED_AT` of a subject. denied: whether the right to read it is missing."""
    rights = "run it as root, or with the rights of the agent's container"
    found = NOT_LOOKED_AT(
        f"cannot be checked: {why}",
        source="",
        fix=rights
        if denied
        else "correct what the message names; in a container, the node's root at --host-root",
    )
    return replace(found, subject=subject)


def worst(findings: Iterable[Finding]) -> Severity:
    """Return the worst severity; OK if there are no findings."""
    return max(
        (finding.severity for finding in findings), key=lambda severity: severity.rank, default=Severity.OK
    )


def exit_status(findings: Iterable[Finding], *, strict: bool) -> int:
    """Return 1 with an ERROR, and with `strict` also with a WARNING; otherwise 0."""
    limit = Severity.WARNING if strict else Severity.ERROR
    return int(worst(findings).rank >= limit.rank)
