"""Facts that make each kind of finding of a cluster, and facts of a cluster that is in order."""

from __future__ import annotations

from dataclasses import replace
from math import inf
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

from doctor.node_cases import run
from k8s_rdma.config.extender import ExtenderConfig
from k8s_rdma.doctor.cluster.claims import CapsFact, ClaimFacts, check_claims
from k8s_rdma.doctor.cluster.components import ExtenderFacts, KeyFacts, KeyUsage, check_extender, check_keys
from k8s_rdma.doctor.cluster.nodes import NodeFacts, PublishedNode, check_nodes
from k8s_rdma.doctor.cluster.objects import (
    CrdFacts,
    PolicyFacts,
    Right,
    RightsFacts,
    WebhookFacts,
    check_crd,
    check_policies,
    check_rights,
    check_webhook,
)
from k8s_rdma.doctor.cluster.pods import PodFact, PodFacts, check_pods
from k8s_rdma.doctor.cluster.rates import RatesFact, check_rates
from k8s_rdma.doctor.cluster.scheduler import Profile, SchedulerFacts, SchedulerFile, check_scheduler
from k8s_rdma.doctor.cluster.versions import (
    NodeVersions,
    VersionFacts,
    check_requeue_by,
    check_versions,
    no_node,
    not_compared,
)
from k8s_rdma.doctor.cluster.workloads import AnnotatedWorkload, check_workloads
from k8s_rdma.wire.node_lease import silence

if TYPE_CHECKING:
    from k8s_rdma.doctor.finding import Finding

ROOT = Path(__file__).parents[2]
SCHEDULERS = ROOT / "examples" / "scheduler"
RECOMMENDED = yaml.safe_load((SCHEDULERS / "recommended.yaml").read_text())
DEFAULTS = ExtenderConfig()


def scheduler_text(text: str | None, config: ExtenderConfig = DEFAULTS, **more: Any) -> list[Finding]:
    file = SchedulerFile(location="/etc/kubernetes/scheduler.yaml", text=text, **more)
    return run(check_scheduler, SchedulerFacts(files=(file,), extender=config))


OURS = RECOMMENDED["extenders"][0]
GPU_SHARE = {
    "urlPrefix": "http://127.0.0.1:32766/gpushare-scheduler",
    "filterVerb": "filter",
    "bindVerb": "bind",
    "nodeCacheCapable": True,
    "managedResources": [{"name": "aliyun.com/gpu-mem", "ignoredByScheduler": False}],
}
"""An entry as another extender's documents have it."""
ALSO_OURS = {"managedResources": [{"name": "k8s-rdma.io/slot"}]}

SECOND = SchedulerFile(
    location="ConfigMap k8s-rdma/k8s-rdma-extender, scheduler.yaml",
    text=(SCHEDULERS / "second-scheduler.yaml").read_text(),
)


def beside_second(text: str | None, **more: Any) -> list[Finding]:
    """A first scheduler, beside a second one that asks the extender."""
    first = SchedulerFile(location="/etc/kubernetes/scheduler.yaml", text=text, **more)
    return run(check_scheduler, SchedulerFacts(files=(first, SECOND), extender=DEFAULTS))


def registered(config: ExtenderConfig = DEFAULTS, **keys: Any) -> list[Finding]:
    """The recommended entry with other keys; None takes one out."""
    entry = {key: value for key, value in (RECOMMENDED["extenders"][0] | keys).items() if value is not None}
    return scheduler_text(yaml.safe_dump(RECOMMENDED | {"extenders": [entry]}), config)


EXTENDER = ExtenderFacts(url="http://127.0.0.1:8888", pods=(("k8s-rdma/extender-1", True),))


def extender(**more: Any) -> list[Finding]:
    return run(check_extender, replace(EXTENDER, **more))


VERSIONS = VersionFacts(
    api="v1.36.2",
    nodes=(
        NodeVersions(node="w1", kubelet="v1.36.2", runtime="containerd://2.2.1"),
        NodeVersions(node="w2", kubelet="v1.33.9", runtime="cri-o://1.33.2"),
    ),
    ours=(("k8s-rdma/a", "0.1.0"), ("k8s-rdma/b", "v0.1.0"), ("this program", "0.1.0")),
)


def versions(**more: Any) -> list[Finding]:
    return run(check_versions, replace(VERSIONS, **more))


def one_node(**more: Any) -> list[Finding]:
    return versions(nodes=(replace(VERSIONS.nodes[0], **more),))


CRD = CrdFacts(
    found=yaml.safe_load((ROOT / "deploy" / "crds" / "rdmanodes.yaml").read_text()),
    expected=frozenset({"generation", "pfs"}),
    needed=True,
)


def crd(**more: Any) -> list[Finding]:
    return run(check_crd, replace(CRD, **more))


def rights(account: str, *missing: Right) -> list[Finding]:
    return run(check_rights, RightsFacts(processes=(("agent", account, missing),)))


WANTED = frozenset({"k8s-rdma-annotation", "k8s-rdma-own-node"})


def policies(api: str, bound: frozenset[str] = frozenset()) -> list[Finding]:
    return run(check_policies, PolicyFacts(api=api, bound=bound, expected=WANTED))


WEBHOOK = WebhookFacts(location="k8s-rdma/k8s-rdma-webhook", days=3000)


def webhook(**more: Any) -> list[Finding]:
    return run(check_webhook, replace(WEBHOOK, **more))


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
    return run(check_claims, replace(CLAIMS, **more))


CAPS = CapsFact(pod="default/train", node="w1", age_s=300.0)


def claims_with(text: str) -> list[Finding]:
    """With this configuration of kube-scheduler."""
    return claims(files=(SchedulerFile(location="/etc/kubernetes/scheduler.yaml", text=text),))


NODE = PublishedNode(name="w1", ready="True")


def nodes(*published: PublishedNode, agents: frozenset[str] = frozenset()) -> list[Finding]:
    return run(check_nodes, NodeFacts(published=published, agents=agents, lease_namespace="k8s-rdma"))


POD = PodFact(name="default/a", node="w1", placed=True, running=True)


SCHEDULERS_SEEN = (
    Profile(name="default-scheduler", has_extender=False, location="pod kube-system/kube-scheduler-cp1"),
    Profile(name="rdma-scheduler", has_extender=True, location=SECOND.location),
)


def pod(schedulers: tuple[Profile, ...] = (), **more: Any) -> list[Finding]:
    return run(check_pods, PodFacts(pods=(replace(POD, **more),), schedulers=schedulers))


RATES = RatesFact(pod="default/gold", node="w1", generation=1)


def rates(**more: Any) -> list[Finding]:
    return list(check_rates([replace(RATES, **more)]))


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

GOOD: dict[str, list[Finding]] = {
    "scheduler": registered(),
    "extender": extender(),
    "versions": versions(),
    "crd": crd(),
    "rights": rights("k8s-rdma/k8s-rdma-agent"),
    "policies": policies("v1.36.2", WANTED),
    "webhook": webhook(),
    "nodes": nodes(NODE, agents=frozenset({"w1"})),
    "claims": claims_with(PACKING),
    "keys": run(check_keys, KeyFacts(named=("0123456789abcdef", "hmac", "hmac", ""))),
    "pods": pod(),
    "workloads": run(check_workloads, ()),
    "rates": rates(),
}
"""By subject: nothing above a note."""

CASES: dict[str, list[Finding]] = {
    **{f"{subject}-ok": found for subject, found in GOOD.items()},
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
    "scheduler-not-seen": run(check_scheduler, SchedulerFacts(files=(), extender=DEFAULTS)),
    "scheduler-unreadable": scheduler_text("kind: Pod"),
    "scheduler-no-configuration": scheduler_text(None, unset=True),
    "scheduler-old-api": scheduler_text(
        yaml.safe_dump(RECOMMENDED | {"apiVersion": "kubescheduler.config.k8s.io/v1beta3"})
    ),
    "scheduler-no-extender": registered(urlPrefix="http://127.0.0.1:9999/other"),
    "scheduler-not-asking": beside_second(None, unset=True),
    "scheduler-wrong-path": registered(filterVerb="filter"),
    "scheduler-no-filter": registered(filterVerb=None),
    "scheduler-no-bind": registered(bindVerb=None),
    "scheduler-no-verb": registered(preemptVerb=None),
    "scheduler-every-pod": registered(managedResources=None),
    "scheduler-ignorable": registered(ignorable=True),
    "scheduler-short-timeout": registered(httpTimeout="1500ms"),
    "scheduler-whole-nodes": registered(nodeCacheCapable=False),
    "scheduler-no-weight": registered(weight=None),
    "scheduler-refused": registered(weigth=2),
    "scheduler-second-binder": scheduler_text(yaml.safe_dump(RECOMMENDED | {"extenders": [OURS, GPU_SHARE]})),
    "scheduler-managed-twice": scheduler_text(
        yaml.safe_dump(RECOMMENDED | {"extenders": [OURS, {**GPU_SHARE, "bindVerb": "", **ALSO_OURS}]})
    ),
    "scheduler-bind-unwanted": registered(ExtenderConfig(binder="scheduler", allow_unplaced=True)),
    "extender-not-asked": extender(url=""),
    "extender-no-pod": extender(url="", pods=()),
    "extender-not-needed": extender(url="", pods=(), needed=False),
    "scheduler-not-needed": run(check_scheduler, SchedulerFacts(files=(), extender=DEFAULTS, needed=False)),
    "extender-unreachable": extender(why="no extender answers: connection refused"),
    "extender-not-ready": extender(pods=(("k8s-rdma/extender-1", False),)),
    "extender-not-reloaded": extender(warning="policyFile /p: policies[0].namespaces: is empty"),
    "extender-standby": extender(pods=(("k8s-rdma/extender-1", True), ("k8s-rdma/extender-2", False))),
    "versions-not-compared": [not_compared()],
    "versions-no-node": [no_node("w1")],
    "versions-too-old": versions(api="v1.27.16"),
    "versions-unsupported": versions(api="v1.30.14"),
    "versions-untried": versions(api="v1.41.0", nodes=()),
    "versions-kubelet-skew": one_node(kubelet="v1.32.1"),
    "versions-runtime": one_node(runtime="containerd://1.5.9"),
    "versions-no-annotations": one_node(runtime="cri-o://1.28.11"),
    "versions-touch-by-label": run(lambda api: check_requeue_by(api, DEFAULTS), "v1.29.3"),
    "versions-ours-differ": versions(ours=(("k8s-rdma/a", "0.1.0"), ("this program", "0.2.0"))),
    "crd-missing": crd(found=None),
    "crd-unused": crd(found=None, needed=False),
    "crd-version": crd(found={"spec": {"versions": [{"name": "v1", "served": True}]}}),
    "crd-fields": crd(expected=frozenset({"generation", "rails"})),
    "rights-missing": rights(
        "k8s-rdma/k8s-rdma-agent", Right(group="k8s-rdma.io", resource="rdmanodes/status", verb="update")
    ),
    "rights-no-account": rights(""),
    "policies-missing": policies("v1.30.0", frozenset({"k8s-rdma-own-node"})),
    "policies-too-old": policies("v1.29.1"),
    "webhook-not-seen": webhook(denied=True),
    "webhook-no-ca-bundle": webhook(ca_bundle=False),
    "webhook-no-certificate": webhook(unusable="there is no such Secret"),
    "webhook-expired": webhook(days=-1),
    "webhook-expiring": webhook(days=12),
    "webhook-untrusted": webhook(refused="unable to get local issuer certificate"),
    "nodes-by-http": run(
        check_nodes,
        NodeFacts(published=(), agents=frozenset(), lease_namespace="k8s-rdma", needed=False),
    ),
    "nodes-every-device": run(
        check_nodes,
        NodeFacts(
            published=(NODE,),
            agents=frozenset({"w1"}),
            lease_namespace="k8s-rdma",
            mounts={"rdma-sriov/dev-infiniband-mount": ("w1", "w2", "w3")},
        ),
    ),
    "nodes-none": nodes(),
    "nodes-not-published": nodes(NODE, agents=frozenset({"w1", "w2"})),
    "nodes-no-lease": nodes(replace(NODE, has_lease=False, silence=silence(inf, 60.0, 0.0))),
    "nodes-stale": nodes(replace(NODE, silence=silence(61.0, 60.0, 0.0))),
    "nodes-clock-skew": nodes(replace(NODE, skew_s=-3600.0)),
    "nodes-not-ready": nodes(replace(NODE, ready="False", message="PF eth0 cannot be read")),
    "nodes-problem": nodes(replace(NODE, problems=("placementKeyFile /etc/k8s-rdma/key: is empty",))),
    "keys-removed": run(
        check_keys, KeyFacts(named=(), usage=(KeyUsage(3, "0123456789abcdef", "ed25519", "removed"),))
    ),
    "pods-not-allowed": pod(
        not_allowed="namespace default may not have trust true (interface 0): no policy is for it"
    ),
    "pods-unknown-annotation": pod(
        unknown_keys=(
            "k8s-rdma.io/polcy: unknown annotation, which has no effect; did you mean k8s-rdma.io/policy?",
        )
    ),
    "pods-host-network": pod(host_network=True),
    "pods-unreadable-group": run(
        check_pods,
        PodFacts(
            pods=(replace(POD, node="", placed=False, running=False, group="training"),),
            group_versions=("v2",),
        ),
    ),
    "workloads-annotated": run(
        check_workloads,
        (
            AnnotatedWorkload(
                kind="Deployment",
                name="default/trainer",
                annotation="rdma_interfaces_required",
                template="spec.template",
            ),
        ),
    ),
    "pods-policies-unusable": run(
        check_pods, PodFacts(pods=(POD,), policies_failure="policies[0].namespaces: is empty")
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
    "rates-refused": rates(refusal="PF eth0: 900 Mb/s needed, and others leave 700 of 1000 Mb/s to the pod"),
    "rates-undecided": rates(is_decided=False, age_s=300.0),
    "rates-not-programmed": rates(is_programmed=False, age_s=300.0),
    "rates-refused-on-node": rates(
        is_programmed=False,
        refusal_on_node=(
            "the rates of generation 1 are not programmed: PF eth0: 3000 Mb/s needed, and others leave 2000 "
            "of 10000 Mb/s to the pod"
        ),
    ),
}
"""By the id that is among them."""
