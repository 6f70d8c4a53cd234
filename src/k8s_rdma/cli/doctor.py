"""`k8s-rdma doctor`: what was found, as a table or as JSON, and the exit status."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Literal

import msgspec
from rich.table import Table
from rich.text import Text

from k8s_rdma import __version__
from k8s_rdma.cli.console import console, write_json
from k8s_rdma.doctor.catalogue import SUBJECTS
from k8s_rdma.doctor.finding import Severity, exit_status, worst
from k8s_rdma.errors import visible
from k8s_rdma.wire.doctor import DoctorDocument, FindingDocument, encode_doctor

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from rich.console import RenderableType

    from k8s_rdma.doctor.finding import Finding

COULD_NOT_LOOK = 2
"""The exit status when there was nothing to look at."""

_STYLES = {
    Severity.OK: "green",
    Severity.NOTE: "cyan",
    Severity.WARNING: "bold yellow",
    Severity.ERROR: "bold red",
}


def tell(of: Literal["node", "cluster"], findings: Sequence[Finding], *, as_json: bool, strict: bool) -> int:
    """Print them; the exit status."""
    if as_json:
        write_json(encode_doctor(document(of, findings)))
    else:
        out = console()
        for each in page(findings, plain=not out.is_terminal):
            out.print(each, soft_wrap=not out.is_terminal)
    return exit_status(findings, strict=strict)


def document(of: Literal["node", "cluster"], findings: Sequence[Finding]) -> DoctorDocument:
    """What `--json` prints."""
    return DoctorDocument(
        of=of,
        version=__version__,
        worst=worst(findings).value,
        findings=tuple(
            msgspec.convert(dataclasses.asdict(each), FindingDocument, strict=False) for each in findings
        ),
    )


def page(findings: Sequence[Finding], *, plain: bool) -> Iterator[RenderableType]:
    """Subject by subject, the worst first, each with its evidence, what was wanted and what to do.

    plain: whole lines, so that `grep` finds them; on a terminal long sentences are broken in their column.
    """
    for subject in dict.fromkeys(each.subject for each in findings):
        yield Text(f"\n{SUBJECTS.get(subject, subject)}", style="bold")
        of_it = sorted(
            (each for each in findings if each.subject == subject), key=lambda each: -each.severity.rank
        )
        rows = [row for each in of_it for row in _rows(each)]
        if plain:
            yield from (Text(f"  {mark.plain:8} ") + text for mark, text in rows)
        else:
            shown = Table.grid(padding=(0, 1, 0, 0))
            shown.add_column(width=10, justify="right")
            for row in rows:
                shown.add_row(*row)
            yield shown
    yield Text()
    yield _summary(findings)


def _rows(finding: Finding) -> Iterator[tuple[Text, Text]]:
    about = f"{finding.about}: " if finding.about else ""
    mark = Text(finding.severity.value, style=_STYLES[finding.severity])
    yield mark, Text(visible(f"{about}{finding.found} ")) + Text(f"[{finding.id}]", style="dim")
    if finding.severity is Severity.OK:
        return
    for label, text in (("seen in", finding.source), ("wanted", finding.wanted), ("fix", finding.fix)):
        if text:
            yield Text(label, style="dim"), Text(visible(text))


def _summary(findings: Sequence[Finding]) -> Text:
    counts = (
        (severity, sum(each.severity is severity for each in findings)) for severity in reversed(Severity)
    )
    told = Text(", ").join(
        Text(_counted(count, severity), style=_STYLES[severity]) for severity, count in counts
    )
    return told + Text("; docs/doctor.md has each by its id")


def _counted(count: int, severity: Severity) -> str:
    return f"{count} {severity.value}{'' if count == 1 or severity is Severity.OK else 's'}"
