"""docs/doctor-findings.md, made from doctor's subjects and their cases; `make tables` writes it."""

from __future__ import annotations

import re
import textwrap
from pathlib import Path
from typing import TYPE_CHECKING

from doctor.known_cases import KINDS, findings_of
from k8s_rdma.doctor.checks import subjects_of
from k8s_rdma.doctor.collectors.cluster import ClusterCollector
from k8s_rdma.doctor.collectors.node import NodeCollector
from k8s_rdma.doctor.finding import NOT_LOOKED_AT, Severity

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from k8s_rdma.doctor.finding import Kind
    from k8s_rdma.doctor.subject import Subject

PAGE = Path(__file__).parents[2] / "docs/doctor-findings.md"

_FILE = re.compile(r"\bdocs/([a-z-]+)\.md(#[a-z0-9-]+)?")
_WIDTH = 150
_HEAD = "| id | severity | message | fix |\n| --- | --- | --- | --- |\n"

_PREFACE = (
    "Each finding of [`k8s-rdma doctor`](doctor.md), by its id, with an example of its message and fix. "
    "Search this page for the id at the end of a finding, such as `[cni-not-chained]`. A passed check "
    "reports its subject and `-ok`, such as `cni-ok`; some report {passed}."
)
_NODE_IN_CLUSTER = (
    "With the agent's credentials or `--kubeconfig`, `doctor node` also checks [versions](#versions) and, if "
    "the agent publishes the node, the [definition](#rdmanode-definition)."
)
_PAGE = """\
# Findings of `k8s-rdma doctor`

{preface}

## A node

{node}

### The node in its cluster

{node_in_cluster}

## A cluster

{cluster}

## Anything

{anything}"""


def page() -> str:
    """The whole page. KeyError if a kind has no case."""
    cluster = [subject for _, subject in subjects_of(ClusterCollector)]
    node = [subject for _, subject in subjects_of(NodeCollector) if subject not in cluster]
    *passed, last = (
        f"`{kind.id}`" for kind in KINDS if kind.severity is Severity.OK and kind.id != f"{kind.subject}-ok"
    )
    return _PAGE.format(
        preface=_filled(_PREFACE.format(passed=f"{', '.join(passed)} or {last}")),
        node_in_cluster=_filled(_NODE_IN_CLUSTER),
        node="\n".join(map(_section, node)).strip(),
        cluster="\n".join(map(_section, cluster)).strip(),
        anything=_table([NOT_LOOKED_AT]),
    )


def _section(subject: Subject) -> str:
    faults = (kind for kind in subject.kinds if kind.severity is not Severity.OK)
    return "\n\n".join(filter(None, (f"### {subject.title}", _filled(subject.about), _table(faults))))


def _filled(text: str) -> str:
    return textwrap.fill(text, _WIDTH, break_long_words=False, break_on_hyphens=False)


def _table(kinds: Iterable[Kind]) -> str:
    return _HEAD + "".join(_rows(kinds))


def _rows(kinds: Iterable[Kind]) -> Iterator[str]:
    for kind in kinds:
        finding = next(finding for finding in findings_of(kind.id) if finding.id == kind.id)
        fix = _FILE.sub(r"[\1](\1.md\2)", finding.fix)
        yield f"| `{finding.id}` | {finding.severity} | {finding.found} | {fix} |\n"


if __name__ == "__main__":
    PAGE.write_text(page())
