"""Facts of `claims`: in order, and for each kind of finding."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from k8s_rdma.doctor.cluster.claims import CapsFact, ClaimFacts, check_claims
from k8s_rdma.doctor.cluster.scheduler import Profile, SchedulerFile

if TYPE_CHECKING:
    from k8s_rdma.doctor.finding import Finding


CLAIMS = ClaimFacts(
    served=True,
    gate=True,
    classes=frozenset({"rdma"}),
    agents_pfs={"w1": {"0000:3b:00.0": "eth0"}},
    slices_pfs={"w1": {"0000:3b:00.0": "eth0"}},
    schedulers={"default-scheduler": 3},
)


PACKING = """
kind: KubeSchedulerConfiguration
apiVersion: kubescheduler.config.k8s.io/v1
profiles:
- pluginConfig:
  - {name: NodeResourcesFit, args: {scoringStrategy: {type: MostAllocated}}}
  - {name: DynamicResources, args: {filterTimeout: 1s}}
"""


def claims(**more: Any) -> list[Finding]:
    return list(check_claims(replace(CLAIMS, **more)))


CAPS = CapsFact(pod="default/train", node="w1", age_s=300.0)


def claims_with(text: str) -> list[Finding]:
    """With this configuration of kube-scheduler."""
    return claims(files=(SchedulerFile(location="/etc/kubernetes/scheduler.yaml", text=text),))


IN_ORDER = claims_with(PACKING)

CASES = {
    "claims-no-api": claims(served=False),
    "claims-gate-off": claims(gate=False, slices_pfs={}),
    "claims-no-class": claims(classes=frozenset()),
    "claims-class-taken": claims(classes=frozenset({"k8s-rdma"}), taken_by="dra.net"),
    "claims-resource-counted": claims(counted={"k8s-rdma.io/vf": ("w1",)}),
    "claims-not-published": claims(slices_pfs={}),
    "claims-slice-unused": claims(slices_pfs={}, unused={"w1": "1 of its 2 ResourceSlices exist"}),
    "claims-unread": claims(unread=("resourceclaim a/b: Expected `int`, got `str`",)),
    "claims-caps-refused": claims(caps=(replace(CAPS, refusal="interface rdma0: beyond its link"),)),
    "claims-caps-undecided": claims(caps=(CAPS,)),
    "claims-two-schedulers": claims(
        schedulers={"default-scheduler": 3, "second": 1},
        profiles=[Profile(name="second", has_extender=False, location="ConfigMap kube-system/second")],
    ),
    "claims-schedulers-unknown": claims(schedulers={"default-scheduler": 3, "second": 1}),
    "claims-least-allocated": claims_with("kind: KubeSchedulerConfiguration"),
    "claims-filter-timeout": claims_with("kind: KubeSchedulerConfiguration"),
}
