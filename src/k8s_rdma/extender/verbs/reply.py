"""The reply to filter: candidates by verdict, in the question's own form."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from k8s_rdma.core.ids import NodeName
from k8s_rdma.errors import Reason
from k8s_rdma.extender.telling.outcomes import FIT
from k8s_rdma.extender.verbs.decisions import UNRESOLVABLE, Fit
from k8s_rdma.wire.extender import UNREADABLE_NODE, ExtenderFilterResult, filter_result

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from k8s_rdma.extender.verbs.decisions import Misfit, Verdict
    from k8s_rdma.wire.extender import Candidate, ExtenderArgs


@dataclass(slots=True)
class Sorted:
    """Candidates by verdict: the fitting ones in order, the others with the reason told to the scheduler.

    awaited: those of the others that may come to fit. reasons: how many of all were judged so.
    """

    fitting: list[NodeName] = field(default_factory=list)
    failed: dict[str, str] = field(default_factory=dict)
    unresolvable: dict[str, str] = field(default_factory=dict)
    awaited: list[NodeName] = field(default_factory=list)
    reasons: Counter[str] = field(default_factory=Counter)

    @classmethod
    def by_verdict(
        cls, verdicts: Iterable[tuple[NodeName, Verdict | None]], why_unreadable: Callable[[NodeName], str]
    ) -> Sorted:
        """Sort; no verdict is a node that cannot be read.

        Thousands of nodes share few verdicts, so that what follows from one is found once.
        """
        found = cls()
        refused: dict[int, tuple[Misfit | None, list[NodeName]]] = {}
        for name, verdict in verdicts:
            if isinstance(verdict, Fit):
                found.fitting.append(name)
            elif (alike := refused.get(id(verdict))) is not None:
                alike[1].append(name)
            else:
                refused[id(verdict)] = verdict, [name]
        for misfit, names in refused.values():
            found._refuse(misfit, names, why_unreadable)
        if found.fitting:
            found.reasons[FIT] = len(found.fitting)
        return found

    def _refuse(
        self, misfit: Misfit | None, names: list[NodeName], why_unreadable: Callable[[NodeName], str]
    ) -> None:
        if misfit is None:
            self.failed |= {name: f"{UNREADABLE_NODE} ({why_unreadable(name)})" for name in names}
        else:
            into = self.unresolvable if misfit.reason in UNRESOLVABLE else self.failed
            into |= dict.fromkeys(map(str, names), misfit.text)
        self.reasons[misfit.reason if misfit else Reason.UNREADABLE_NODE] += len(names)
        if misfit is None or misfit.may_pass:
            self.awaited += names

    def reply(self, args: ExtenderArgs, candidates: Sequence[Candidate]) -> ExtenderFilterResult:
        """Node objects as they came, or names."""
        if args.nodes is None:
            return ExtenderFilterResult(
                node_names=list(self.fitting),
                failed_nodes=self.failed,
                failed_and_unresolvable_nodes=self.unresolvable,
            )
        fitting = frozenset(self.fitting)
        return filter_result(
            args,
            [candidate for candidate in candidates if candidate.name in fitting],
            failed=self.failed,
            unresolvable=self.unresolvable,
        )
