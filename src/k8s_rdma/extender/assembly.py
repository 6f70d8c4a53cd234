"""What answers, made of what is known: verbs, looks, metrics, and what runs beside them."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Coroutine, Iterator
from dataclasses import dataclass
from typing import NoReturn

from k8s_rdma.config.reloaded import failures_of
from k8s_rdma.extender.accounts import Accounts
from k8s_rdma.extender.cluster.following import follow
from k8s_rdma.extender.config import ExtenderConfig
from k8s_rdma.extender.leader.lease import Lease
from k8s_rdma.extender.looks.answers import Looks, Surroundings
from k8s_rdma.extender.looks.pod_look import PodLook
from k8s_rdma.extender.readiness import Readiness
from k8s_rdma.extender.serving.app import Extender
from k8s_rdma.extender.telling.figures import figures_of_decisions, figures_of_nodes, figures_of_policies
from k8s_rdma.extender.telling.metrics import Metrics
from k8s_rdma.extender.verbs.binding import Binder
from k8s_rdma.extender.verbs.budgets import follow_budgets
from k8s_rdma.extender.verbs.commit import Commits
from k8s_rdma.extender.verbs.preempting import Preempting
from k8s_rdma.extender.verbs.quorum import Quorum
from k8s_rdma.extender.verbs.scheduling import Scheduling
from k8s_rdma.extender.verbs.verdicts import Verdicts
from k8s_rdma.kube.api import ClusterApi
from k8s_rdma.wire.placement_keys import KeySource

_LOOK_S = 0.1


@dataclass(frozen=True, slots=True, kw_only=True)
class Assembly:
    """The parts of one process.

    clock: seconds, monotonic. keys: sign and verify placements. api_failures: as of `counted`.
    """

    config: ExtenderConfig
    api: ClusterApi
    clock: Callable[[], float]
    keys: KeySource
    lease: Lease | None
    api_failures: Counter[tuple[str, ...]]
    accounts: Accounts
    commits: Commits
    readiness: Readiness

    def extender(self) -> Extender:
        """What answers kube-scheduler and people."""
        verdicts = Verdicts(
            state=self.accounts.state,
            decisions=self.accounts.decisions,
            nominations=self.accounts.nominations,
            expecting=self.accounts.expecting,
            clock=self.clock,
            detail=self.config.refusal_detail,
            queue=self.accounts.queue,
        )
        return Extender(
            scheduling=self._scheduling(verdicts),
            preempting=self._preempting(),
            binder=self._binder(),
            metrics=self._metrics(),
            missing=self.readiness.missing,
            warning=lambda: "; ".join(failures_of(self.keys, self.accounts.policies)),
            looks=self._looks(verdicts).gets(),
        )

    def beside(self) -> Iterator[Coroutine[None, None, None]]:
        """What is to run as long as the extender does."""
        yield self.accounts.nominations.keep_time()
        yield self.accounts.expecting.keep_time()
        if not self.config.api:
            return
        accounts, readiness = self.accounts, self.readiness
        yield readiness.leading.run()
        yield follow("nodes", self.api.follow_nodes, readiness.nodes.take)
        if self.config.heeds_budgets:
            yield follow_budgets(
                self.api, accounts.budgets, lambda: accounts.toucher.try_all(readiness.nodes.names)
            )
        yield accounts.toucher.poll(readiness.states, accounts.limits)
        yield accounts.toucher.touch(accounts.state, accounts.limits, readiness.ready)
        yield self._wake_when_ready_again()

    async def _wake_when_ready_again(self) -> NoReturn:
        """Have waiting pods tried when this process is ready again, as after an API server's outage.

        Meanwhile it refused all of them and remembered none, and kube-scheduler leaves such pods alone.
        """
        readiness, was_ready, lost = self.readiness, False, False
        while True:
            ready = readiness.ready()
            if ready and lost and len(readiness.pods.unbound):
                self.accounts.toucher.try_all(readiness.nodes.names)
            was_ready, lost = was_ready or ready, was_ready and not ready
            await asyncio.sleep(_LOOK_S)

    def _scheduling(self, verdicts: Verdicts) -> Scheduling:
        return Scheduling(
            states=self.readiness.states,
            verdicts=verdicts,
            expecting=self.accounts.expecting,
            limits=self.accounts.limits,
            addresses=self.accounts.addresses,
            requests=self.accounts.requests,
            toucher=self.accounts.toucher,
            outcomes=self.accounts.outcomes,
            clock=self.clock,
            ready=self.readiness.ready,
            max_age_s=self.config.max_age_s,
        )

    def _preempting(self) -> Preempting:
        return Preempting(
            state=self.accounts.state,
            states=self.readiness.states,
            decisions=self.accounts.decisions,
            requests=self.accounts.requests,
            occupants=self.accounts.occupants,
            budgets=self.accounts.budgets,
            limits=self.accounts.limits,
            addresses=self.accounts.addresses,
            nominations=self.accounts.nominations,
            expecting=self.accounts.expecting,
            queue=self.accounts.queue,
            outcomes=self.accounts.outcomes,
            clock=self.clock,
            ready=self.readiness.ready,
            max_age_s=self.config.max_age_s,
        )

    def _binder(self) -> Binder:
        return Binder(
            state=self.accounts.state,
            states=self.readiness.states,
            decisions=self.accounts.decisions,
            requests=self.accounts.requests,
            unbound=self.readiness.pods.unbound,
            commits=self.commits,
            toucher=self.accounts.toucher,
            expecting=self.accounts.expecting,
            quorum=Quorum(gangs=self.accounts.gangs),
            limits=self.accounts.limits,
            addresses=self.accounts.addresses,
            nominations=self.accounts.nominations,
            outcomes=self.accounts.outcomes,
            clock=self.clock,
            ready=self.readiness.ready,
            confirm=self.readiness.leading.confirm,
        )

    def _looks(self, verdicts: Verdicts) -> Looks:
        pods = PodLook(
            state=self.accounts.state,
            requests=self.accounts.requests,
            attempts=self.accounts.attempts,
            api=self.api if self.config.api else None,
            keys=self.keys,
            clock=self.clock,
            skipping=self._skipping() if self.config.binder == "extender" else "",
        )
        around = Surroundings(
            states=self.readiness.states,
            verdicts=verdicts,
            limits=self.accounts.limits,
            nodes=lambda: self.readiness.nodes.names() | self.accounts.state.nodes(),
            role=self.readiness.role,
            max_age_s=self.config.max_age_s,
        )
        return Looks(pods, around)

    def _skipping(self) -> str:
        """What becomes of a pod that was bound past this extender, in a clause."""
        if self.config.allows_unplaced(signed=self.keys() is not None):
            return "its agent gives it what nobody else was promised there, or refuses it"
        return "its agent refuses it"

    def _metrics(self) -> Metrics:
        accounts = self.accounts
        metrics = Metrics()
        metrics.add(
            figures_of_nodes(
                accounts.state, accounts.decisions, self.readiness.states, accounts.waiting, accounts.toucher
            )
        )
        metrics.add(accounts.limits.readings())
        metrics.add(figures_of_policies(accounts.policies))
        metrics.add(
            figures_of_decisions(accounts.outcomes, accounts.nominations, self.api_failures, self.lease)
        )
        metrics.add(accounts.expecting.readings())
        metrics.add(accounts.decisions.quarantine.readings())
        metrics.add(self.readiness.pods.signatures.readings())
        return metrics
