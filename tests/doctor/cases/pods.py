"""Facts of `pods`: in order, and for each kind of finding."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from doctor.cases.scheduler import SECOND
from k8s_rdma.doctor.cluster.pods import PodFact, PodFacts, check_pods
from k8s_rdma.doctor.cluster.scheduler import Profile

if TYPE_CHECKING:
    from k8s_rdma.doctor.finding import Finding


POD = PodFact(name="default/a", node="w1", placed=True, running=True)
SCHEDULERS_SEEN = (
    Profile(name="default-scheduler", has_extender=False, location="pod kube-system/kube-scheduler-cp1"),
    Profile(name="rdma-scheduler", has_extender=True, location=SECOND.location),
)


def pod(schedulers: tuple[Profile, ...] = (), **more: Any) -> list[Finding]:
    return list(check_pods(PodFacts(pods=(replace(POD, **more),), schedulers=schedulers)))


OLD_KEY = (
    "RdmaStalePlacement",
    "hmac: not made with this cluster's key, or the placement was changed afterwards",
)


NO_AGENT = (
    "FailedCreatePodSandBox",
    (
        'Failed to create pod sandbox: rpc error: code = Unknown desc = failed to setup network for "0123": '
        'plugin type="k8s-rdma-cni" failed (add): the k8s-rdma agent cannot be reached'
    ),
)


SHORT = ("RdmaInsufficient", "node w1: PF eth0 has 0 of 1000 Mb/s unreserved")
IN_ORDER = pod()

CASES = {
    "pods-not-allowed": pod(
        not_allowed="namespace default may not have trust true (interface 0): no policy is for it"
    ),
    "pods-unknown-annotation": pod(
        unknown_keys=(
            "k8s-rdma.io/polcy: unknown annotation, which has no effect; did you mean k8s-rdma.io/policy?",
        )
    ),
    "pods-host-network": pod(host_network=True),
    "pods-unreadable-group": list(
        check_pods(
            PodFacts(
                pods=(replace(POD, node="", placed=False, running=False, group="training"),),
                group_versions=("v2",),
            )
        )
    ),
    "pods-policies-unusable": list(
        check_pods(PodFacts(pods=(POD,), policies_failure="policies[0].namespaces: is empty"))
    ),
    "pods-refused": pod(running=False, events=(SHORT,)),
    "pods-not-started": pod(running=False, events=(NO_AGENT,)),
    "pods-waiting": pod(
        node="", running=False, placed=False, events=(("FailedScheduling", "0/3 nodes"),), said_s_ago=240.0
    ),
    "pods-unplaced": pod(placed=False, scheduler="by-hand"),
    "pods-other-scheduler": pod(SCHEDULERS_SEEN, node="", running=False, placed=False),
    "pods-without-interfaces": pod(holds_interfaces=False),
    "pods-other-key": pod(running=False, events=(SHORT, OLD_KEY)),
}
