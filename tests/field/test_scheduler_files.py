"""kube-scheduler configurations as people write them, with extenders of other projects."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from k8s_rdma.config.extender import ExtenderConfig
from k8s_rdma.doctor.cluster.scheduler import SchedulerFacts, SchedulerFile, check_scheduler
from k8s_rdma.doctor.finding import Severity

EXAMPLES = Path(__file__).parents[2] / "examples" / "scheduler"
API = "kubescheduler.config.k8s.io/v1"
HEAD = f"apiVersion: {API}\nkind: KubeSchedulerConfiguration\n"
OURS = yaml.safe_load((EXAMPLES / "recommended.yaml").read_text())["extenders"][0]
FILTER_ONLY = {key: value for key, value in OURS.items() if key not in {"bindVerb", "httpTimeout"}}

TWO_BINDERS = """\
extenders:
- {enableHTTPS: false, filterVerb: filter, bindVerb: bind, urlPrefix: "http://resource1/v1",
   managedResources: [{name: test.example.com/resource-1}]}
- {enableHTTPS: false, filterVerb: filter, bindVerb: bind, urlPrefix: "http://resource2/v1",
   managedResources: [{name: test.example.com/resource-2}]}
"""
"""github.com/kubernetes/kubernetes/issues/109739: refused, although the resources differ."""

HAMI = """\
leaderElection: {leaderElect: false}
profiles: [{schedulerName: hami-scheduler}]
extenders:
- urlPrefix: "https://127.0.0.1:443"
  filterVerb: filter
  bindVerb: bind
  nodeCacheCapable: true
  weight: 1
  httpTimeout: 30s
  enableHTTPS: true
  tlsConfig: {insecure: true}
  managedResources:
  - {name: nvidia.com/gpu, ignoredByScheduler: true}
  - {name: nvidia.com/gpumem, ignoredByScheduler: true}
"""
"""The ConfigMap of github.com/Project-HAMi/HAMi's chart."""

TOPOLVM = """\
extenders:
- urlPrefix: "http://127.0.0.1:9251"
  filterVerb: predicate
  prioritizeVerb: prioritize
  nodeCacheCapable: false
  weight: 1
  managedResources: [{name: topolvm.io/capacity, ignoredByScheduler: true}]
"""
"""deploy/scheduler-config/scheduler-config.yaml of github.com/topolvm/topolvm, at 45a077861977."""


def found(text: str, *, binder: str = "extender") -> set[str]:
    config = ExtenderConfig(binder=binder, allow_unplaced=binder == "scheduler")
    file = SchedulerFile(location="scheduler.yaml", text=text)
    return {each.id for each in check_scheduler(SchedulerFacts(files=(file,), extender=config))}


def beside(theirs: str, ours: dict[str, object]) -> str:
    document = yaml.safe_load(HEAD + theirs)
    return yaml.safe_dump({**document, "extenders": [*document["extenders"], ours]})


def test_two_binders_are_refused_even_if_neither_is_ours():
    assert found(HEAD + TWO_BINDERS) == {"scheduler-second-binder", "scheduler-no-extender"}


@pytest.mark.parametrize("theirs", [HAMI], ids=["HAMi"])
def test_our_entry_beside_one_that_binds_has_no_bind_verb(theirs: str):
    assert "scheduler-second-binder" in found(beside(theirs, OURS))
    assert found(beside(theirs, FILTER_ONLY), binder="scheduler") == {"scheduler-ok"}


def test_our_entry_is_taken_beside_one_that_does_not_bind():
    assert found(beside(TOPOLVM, OURS)) == {"scheduler-ok"}


@pytest.mark.parametrize("node_cache_capable", [False, None], ids=["false", "unset"])
def test_entry_that_gets_whole_nodes_has_a_warning_because_scores_leave_their_pods_out(
    node_cache_capable: bool | None,
):
    """github.com/kubernetes/kubernetes/issues/141781: registrations as others have them, by default."""
    ours = {key: value for key, value in OURS.items() if key != "nodeCacheCapable"}
    if node_cache_capable is not None:
        ours["nodeCacheCapable"] = node_cache_capable
    file = SchedulerFile(location="scheduler.yaml", text=HEAD + yaml.safe_dump({"extenders": [ours]}))
    [warning] = check_scheduler(SchedulerFacts(files=(file,), extender=ExtenderConfig()))
    assert (warning.id, warning.severity) == ("scheduler-whole-nodes", Severity.WARNING)
    assert "as if it had no pods" in warning.found


def test_resource_of_two_entries_is_refused():
    twice = beside(TOPOLVM, {**OURS, "managedResources": [{"name": "topolvm.io/capacity"}]})
    assert found(twice) == {"scheduler-managed-twice"}


@pytest.mark.parametrize(
    "change",
    [
        {"filterverb": "filter"},
        {"weight": 0},
        {"httpTimeout": 10_000_000_000},
        {"httpTimeout": "10 s"},
        {"managedResources": [{"name": "gpu"}]},
        {"managedResources": [{"name": "requests.example.com/gpu"}]},
        {"managedResources": [{"name": "node.kubernetes.io/x"}]},
        {"managedResources": ["topolvm.io/capacity"]},
        {"managedResources": [{"name": "a.example/b", "ignored": True}]},
        {"tlsConfig": {"insecureSkipVerify": True}},
        {"enableHttps": True},
        {"nodeCacheCapable": "true"},
    ],
    ids=str,
)
def test_fault_of_another_entry_has_the_file_refused(change: dict[str, object]):
    document = yaml.safe_load(HEAD + TOPOLVM)
    document["extenders"] = [OURS, {**document["extenders"][0], **change}]
    assert found(yaml.safe_dump(document)) == {"scheduler-refused"}


@pytest.mark.parametrize(
    "more",
    [
        {"profiles": [{"schedulerName": "a"}, {"schedulerName": "a"}]},
        {"profiles": [{"pluginConfig": [{"name": "NodeAffinity"}, {"name": "NodeAffinity"}]}]},
        {"profile": []},
        {"parallelism": "16"},
        {"algorithmSource": {"provider": "DefaultProvider"}},
    ],
    ids=str,
)
def test_fault_outside_of_the_extenders_has_the_file_refused(more: dict[str, object]):
    document = yaml.safe_load((EXAMPLES / "recommended.yaml").read_text())
    assert found(yaml.safe_dump(document | more)) == {"scheduler-refused"}


@pytest.mark.parametrize("path", sorted(EXAMPLES.glob("*.yaml")), ids=lambda path: path.name)
def test_examples_are_not_refused(path: Path):
    if yaml.safe_load(path.read_text()).get("kind") == "KubeSchedulerConfiguration":
        assert not found(path.read_text()) & {"scheduler-refused", "scheduler-second-binder"}


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (
            "kind: ConfigMap\ndata: {config.yaml: ''}\n",
            "found a ConfigMap; give the text of its key (config.yaml)",
        ),
        ('{"kind": "Policy", "apiVersion": "v1"}', "found a Policy, which kube-scheduler before 1.23 has"),
        ("kind: Pod\n", "the configuration is the file that its --config names"),
    ],
)
def test_other_file_is_named(text: str, says: str):
    facts = SchedulerFacts(files=(SchedulerFile(location="x", text=text),), extender=ExtenderConfig())
    [finding] = check_scheduler(facts)
    assert finding.id == "scheduler-unreadable"
    assert says in finding.found
