"""Details of the cluster's checks that a table of cases does not show."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest
import yaml

from doctor.cases.claims import PACKING, claims, claims_with
from doctor.cases.nodes import NODE, nodes
from doctor.cases.pods import NO_AGENT, OLD_KEY, POD, SCHEDULERS_SEEN, SHORT, pod
from doctor.cases.scheduler import (
    DEFAULTS,
    RECOMMENDED,
    ROOT,
    SCHEDULERS,
    SECOND,
    beside_second,
    registered,
    scheduler_text,
)
from doctor.cases.versions import one_node, versions
from k8s_rdma.cli.doctor import query_extender
from k8s_rdma.cli.extender_client import ExtenderAddress
from k8s_rdma.config.extender import ExtenderConfig
from k8s_rdma.core.types import PodUid
from k8s_rdma.doctor.cluster.claims import ClaimFacts, check_claims
from k8s_rdma.doctor.cluster.components import KeyFacts, check_keys
from k8s_rdma.doctor.cluster.pods import PodFact, PodFacts, check_pods
from k8s_rdma.doctor.cluster.rights import ACCOUNTS, rights
from k8s_rdma.doctor.cluster.scheduler import Profile, SchedulerFacts, SchedulerFile, profiles
from k8s_rdma.doctor.cluster.versions import minor_of, tag_of
from k8s_rdma.doctor.collectors.cluster import (
    MANIFEST,
    OF_A_SECOND_SCHEDULER,
    OF_EXTENDERS_ACCOUNT,
    POLICIES,
    of_kubeadm,
)
from k8s_rdma.doctor.collectors.host import Host
from k8s_rdma.doctor.collectors.processes import key_usage_in_metrics
from k8s_rdma.doctor.finding import Finding, Severity, worst
from k8s_rdma.extender.metrics import Metrics
from k8s_rdma.extender.pod_store import PodStore
from k8s_rdma.http_server import Answer
from k8s_rdma.wire.placement_keys import FixedKeys, PlacementKeys
from web.serving import listening

WITHOUT_BIND = ExtenderConfig(binder="scheduler", allow_unplaced=True)


@pytest.mark.parametrize("name", ["recommended", "preemption", "second-scheduler"])
def test_examples_of_configurations_are_in_order(name):
    found = scheduler_text((SCHEDULERS / f"{name}.yaml").read_text())
    assert worst(found) is Severity.OK


def test_example_without_a_bind_verb_is_reported_with_its_consequence():
    found = scheduler_text((SCHEDULERS / "filter-only.yaml").read_text(), WITHOUT_BIND)
    told = {each.id for each in found if each.severity.rank > Severity.NOTE.rank}
    assert told == {"scheduler-every-pod", "scheduler-whole-nodes"}


def test_extender_of_another_project_is_not_ours():
    [found] = registered(urlPrefix="https://gpu.example/api", filterVerb="filter")
    assert found.id == "scheduler-no-extender"
    assert "https://gpu.example/api" in found.found


def ids_of(found: list[Finding]) -> set[str]:
    return {each.id for each in found}


def test_profiles_of_one_kube_scheduler_are_one_scheduler():
    schedulers = {"default-scheduler": 3, "second": 1}
    profiles = [Profile(name=name, has_extender=False, location="a.yaml") for name in schedulers]
    assert ids_of(claims(schedulers=schedulers, profiles=profiles)) == {"claims-ok"}
    assert "claims-two-schedulers" in ids_of(claims(schedulers=schedulers, profiles=profiles[:1]))
    elsewhere = [profiles[0], replace(profiles[1], location="b.yaml")]
    assert "claims-two-schedulers" in ids_of(claims(schedulers=schedulers, profiles=elsewhere))
    assert ids_of(claims(schedulers=schedulers)) == {"claims-ok", "claims-schedulers-unknown"}


def test_only_profiles_that_schedule_pods_with_claims_are_judged():
    other = "kind: KubeSchedulerConfiguration\nprofiles: [{schedulerName: other}]"
    assert ids_of(claims_with(other)) == {"claims-ok"}
    file = SchedulerFile(location="a.yaml", text=other)
    found = ids_of(claims(files=(file,), schedulers={"other": 1}))
    assert found == {"claims-ok", "claims-least-allocated", "claims-filter-timeout"}


@pytest.mark.parametrize(("timeout", "long"), [("1s", False), ("500ms", False), ("2s", True), ("0", True)])
def test_timeout_of_a_filter_is_long_above_a_second_or_without_an_end(timeout: str, *, long: bool):
    text = PACKING.replace("filterTimeout: 1s", f"filterTimeout: {timeout}")
    assert ("claims-filter-timeout" in ids_of(claims_with(text))) is long


def test_cluster_without_claims_is_in_order_whatever_its_api():
    [found] = check_claims(ClaimFacts(served=False))
    assert found.id == "claims-ok"


@pytest.mark.parametrize(
    ("timeout", "short"), [("10s", False), ("1m30s", False), ("9s", True), (None, True), ("500ms", True)]
)
def test_timeouts_are_read_as_go_writes_them(timeout, short):
    assert any(each.id == "scheduler-short-timeout" for each in registered(httpTimeout=timeout)) is short


@pytest.mark.parametrize(
    ("version", "minor"),
    [("v1.28.15-gke.100", 28), ("v1.36.0+k3s1", 36), ("unknown", None), ("v2.1.0", None)],
)
def test_minor_versions_are_read(version, minor):
    assert minor_of(version) == minor


@pytest.mark.parametrize(
    ("image", "tag"),
    [
        ("registry.example:5000/k8s-rdma:0.1.0", "0.1.0"),
        ("registry.example:5000/k8s-rdma", ""),
        ("k8s-rdma@sha256:0123456789abcdef", "0123456789ab"),
        ("k8s-rdma:0.2.0@sha256:0123456789abcdef", "0.2.0"),
    ],
)
def test_tags_of_images_are_read(image, tag):
    assert tag_of(image) == tag


@pytest.mark.parametrize(
    ("runtime", "told"),
    [
        ("containerd://1.6.20", False),
        ("cri-o://1.28.4", False),
        ("cri-o://1.27.9", True),
        ("docker://24.0.7", True),
        ("", False),
    ],
)
def test_untested_runtimes_are_reported(runtime, told):
    assert any(each.id == "versions-runtime" for each in one_node(runtime=runtime)) is told


@pytest.mark.parametrize(
    ("ours", "differ"),
    [
        ((("a", "0.1.0"), ("b", "v0.1.0")), False),
        ((("a", "stable"), ("this program", "0.1.0")), False),
        ((("a", "stable"), ("b", "edge")), True),
        ((("a", "0.1.0"), ("b", "0.2.0")), True),
        ((("a", ""), ("this program", "0.1.0")), False),
    ],
)
def test_versions_are_compared_with_versions_and_other_tags_with_each_other(ours, differ):
    assert any(each.id == "versions-ours-differ" for each in versions(ours=ours)) is differ


def test_kubelet_older_than_supported_is_an_error():
    assert [each.id for each in one_node(kubelet="v1.27.3")] == ["versions-too-old"]


# which scheduler asks


def names(text: str) -> list[tuple[str, bool]]:
    facts = SchedulerFacts(files=(SchedulerFile(location="f", text=text),), extender=DEFAULTS)
    return [(each.name, each.has_extender) for each in profiles(facts)]


def test_schedulers_are_known_by_their_profiles():
    assert names((SCHEDULERS / "recommended.yaml").read_text()) == [("default-scheduler", True)]
    assert names(str(SECOND.text)) == [("rdma-scheduler", True)]
    two = {"kind": "KubeSchedulerConfiguration", "profiles": [{"schedulerName": "a"}, {}]}
    assert names(yaml.safe_dump(two)) == [("a", False), ("default-scheduler", False)]
    assert names("kind: Pod") == []


@pytest.mark.parametrize("key", ["profiles", "extenders"])
@pytest.mark.parametrize("value", [5, True, "a", {"a": 1}])
def test_configuration_with_malformed_lists_is_reported_and_has_no_schedulers(key, value):
    text = yaml.safe_dump({**RECOMMENDED, key: value})
    [found] = scheduler_text(text)
    assert (found.id, found.found) == ("scheduler-unreadable", f"cannot be used: {key}: wanted a list")
    assert names(text) == []
    assert worst(beside_second(text)).rank <= Severity.NOTE.rank


def test_configuration_without_profiles_is_that_of_the_default_scheduler():
    assert names(yaml.safe_dump(RECOMMENDED | {"profiles": None})) == [("default-scheduler", True)]


def test_scheduler_that_asks_is_named():
    [*_, second] = beside_second(None, unset=True)
    assert second.found.startswith("rdma-scheduler asks the extender at ")


@pytest.mark.parametrize("text", [None, "kind: Pod", (SCHEDULERS / "filter-only.yaml").read_text()])
def test_first_scheduler_need_not_ask_beside_a_second(text):
    without = text and text.replace("extenders:", "others:")
    assert worst(beside_second(without)).rank <= Severity.NOTE.rank


def test_pod_of_a_scheduler_that_was_seen_to_place_is_not_reported():
    """A configuration that nobody uses any more says nothing about who asks."""
    waiting = replace(POD, name="default/b", node="", running=False, placed=False)
    placed = PodFacts(pods=(POD, waiting), schedulers=SCHEDULERS_SEEN)
    assert [each.id for each in check_pods(placed)] == ["pods-waiting"]


def test_pod_of_the_scheduler_that_asks_waits_as_any_other():
    found = pod(SCHEDULERS_SEEN, node="", running=False, placed=False, scheduler="rdma-scheduler")
    assert [each.id for each in found] == ["pods-waiting"]


def test_pod_that_names_an_unseen_scheduler_is_reported_so():
    [found] = pod(SCHEDULERS_SEEN, node="", running=False, placed=False, scheduler="rdma-sheduler")
    assert (found.id, "no scheduler of that name is known" in found.found) == ("pods-waiting", True)


def test_bound_pod_without_a_placement_is_reported_so_whatever_its_node_says():
    [found] = pod(running=False, placed=False, events=(SHORT,))
    assert (found.id, found.found) == (
        "pods-unplaced",
        f"default-scheduler bound it to w1 without a placement; {SHORT[1]}",
    )
    [found] = pod(SCHEDULERS_SEEN[1:], running=False, placed=False)
    assert found.fix.startswith("schedulerName: rdma-scheduler in the pod template")
    [found] = pod(SCHEDULERS_SEEN[1:], running=False, placed=False, scheduler="rdma-scheduler")
    assert "managedResources" in found.fix


@pytest.mark.parametrize("event", [SHORT, NO_AGENT])
def test_pod_of_another_scheduler_is_reported_so_whatever_its_node_says(event):
    [found] = pod(SCHEDULERS_SEEN, running=False, placed=False, events=(event,))
    assert (found.id, found.fix.partition(" in ")[0]) == (
        "pods-other-scheduler",
        "schedulerName: rdma-scheduler",
    )


@pytest.mark.parametrize(
    ("plugin", "id_"),
    [
        ('type="k8s-rdma-cni"', "pods-not-started"),
        ('type="k8s-rdma-cni" name="pods"', "pods-not-started"),
        ('type="rit-k8s-rdma-cni-linux-amd64"', "pods-not-started"),
        ('type="multus" failed (add): [default/a:x]: plugin type="k8s-rdma-cni"', "pods-not-started"),
        ('type="flannel"', "pods-ok"),
    ],
)
def test_pod_whose_sandbox_our_plugin_refuses_is_reported(plugin, id_):
    event = ("FailedCreatePodSandBox", f"Failed to create pod sandbox: plugin {plugin} failed (add): no: x")
    [found] = pod(running=False, events=(event,))
    assert found.id == id_
    assert id_ == "pods-ok" or found.found == "is not started on w1: no: x"


def test_pod_that_got_its_sandbox_since_is_well():
    assert [each.id for each in pod(running=False, events=(NO_AGENT, ("Pulling", "image x")))] == ["pods-ok"]
    assert [each.id for each in pod(running=False, events=(("Pulling", "image x"), NO_AGENT))] == [
        "pods-not-started"
    ]


def test_pod_whose_agent_has_another_key_is_reported_also_by_an_event_of_kubelet_alone():
    event = ("FailedCreatePodSandBox", NO_AGENT[1] + ": " + OLD_KEY[1])
    assert [each.id for each in pod(running=False, events=(event,))] == ["pods-other-key"]


def test_pod_without_a_placement_is_in_order_if_the_scheduler_binds():
    unplaced = PodFacts(pods=(replace(POD, placed=False),), extender_binds=False)
    assert [each.id for each in check_pods(unplaced)] == ["pods-ok"]


def test_pod_that_runs_without_a_placement_is_reported_and_one_with_it_is_not():
    assert [each.id for each in pod(running=True, placed=True)] == ["pods-ok"]
    assert [each.id for each in pod(running=True, placed=False)] == ["pods-unplaced"]


def test_many_stuck_pods_are_reported_in_few_lines():
    waiting = tuple(PodFact(name=f"default/p{n}", node="", placed=False, running=False) for n in range(300))
    found = list(check_pods(PodFacts(pods=waiting)))
    assert len(found) == 21
    assert found[-1].found == "and 280 more pods"


def test_problem_of_many_nodes_is_reported_once():
    shared = "placementKeyFile /key: is empty"
    found = nodes(*(replace(NODE, name=f"w{n}", problems=(shared, f"only {n}")) for n in range(100)))
    told = [each for each in found if each.id == "nodes-problem"]
    assert (told[0].about, told[0].found) == ("w0 and 99 more", shared)
    assert (len(told), told[-1].found) == (21, "and 81 other problems")


def test_keys_are_those_that_the_extender_verified_if_it_was_queried():
    keys = PlacementKeys.shared(b"a secret of a cluster")
    pods, metrics = PodStore(FixedKeys(keys)), Metrics()
    for uid, key in (("a", keys.accepted[0].id), ("b", "0123456789abcdef"), ("c", None)):
        pods.on_signature(PodUid(uid), key)
    metrics.add(pods.readings())
    found = key_usage_in_metrics(metrics.render())
    ok, *removed = check_keys(KeyFacts(named=("hmac",), usage=found))
    assert f"1 by hmac-sha256 key {keys.accepted[0].id} (signs)" in ok.found
    assert [each.id for each in removed] == ["keys-removed", "keys-removed"]
    [unasked] = check_keys(KeyFacts(named=("hmac",)))
    assert "1 by a secret (HMAC)" in unasked.found


def test_malformed_numbers_of_keys_are_left_out():
    labels = 'k8s_rdma_extender_pods_signed{key="a",algorithm="b",use="c"}'
    assert key_usage_in_metrics(f"{labels} NaN\n{labels} +Inf\n") == ()


@pytest.mark.anyio
async def test_extender_is_judged_whatever_bytes_it_answers():
    async with listening(Answer(b"\xff warning: \xff")) as url:
        facts = await asyncio.to_thread(query_extender, ExtenderAddress(url=url))
    assert (facts.warning, facts.version, facts.key_usage) == ("\ufffd", "", ())


def granted() -> set[tuple[str, str, str, str]]:
    """Account, group, resource and verb of every rule of deploy/rbac."""
    documents = [
        document
        for path in (ROOT / "deploy" / "rbac").glob("*.yaml")
        for document in yaml.safe_load_all(path.read_text())
    ]
    rules = {(each["kind"], each["metadata"]["name"]): each["rules"] for each in documents if "rules" in each}
    return {
        (subject["name"], group, resource, verb)
        for binding in documents
        if "roleRef" in binding
        for subject in binding["subjects"]
        for rule in rules[binding["roleRef"]["kind"], binding["roleRef"]["name"]]
        for group in rule["apiGroups"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
    }


@pytest.mark.parametrize("process", ACCOUNTS)
def test_manifests_grant_the_documented_rights_of_a_process(process):
    wanted = rights(
        process, leases="k8s-rdma", lease_of_binder=("kube-system", "k8s-rdma-extender"), crd=True
    )
    assert wanted
    missing = [
        str(each)
        for each in wanted
        if (ACCOUNTS[process], each.group, each.resource, each.verb) not in granted()
    ]
    assert not missing


def test_policies_that_are_wanted_are_in_the_manifests():
    files = (ROOT / "deploy" / "policies").glob("*.yaml")
    names = {
        document["metadata"]["name"] for path in files for document in yaml.safe_load_all(path.read_text())
    }
    assert names >= POLICIES | OF_A_SECOND_SCHEDULER | OF_EXTENDERS_ACCOUNT


# kubeadm's manifest


def manifest(*arguments: str, mount: str = "/etc/kubernetes", sub_path: str = "") -> str:
    volume = {"name": "config", "hostPath": {"path": "/etc/kubernetes"}}
    mounted = {"name": "config", "mountPath": mount} | ({"subPath": sub_path} if sub_path else {})
    container = {"command": ["kube-scheduler", *arguments], "volumeMounts": [mounted]}
    return yaml.safe_dump({"kind": "Pod", "spec": {"containers": [container], "volumes": [volume]}})


@pytest.fixture
def host(tmp_path):
    def made(text: str, configuration: str = "") -> Host:
        (tmp_path / "etc/kubernetes/manifests").mkdir(parents=True)
        (tmp_path / MANIFEST.removeprefix("/")).write_text(text)
        if configuration:
            (tmp_path / "etc/kubernetes/scheduler.yaml").write_text(configuration)
        return Host(tmp_path)

    return made


@pytest.mark.parametrize(
    ("argument", "mount", "sub_path"),
    [
        ("--config=/etc/kubernetes/scheduler.yaml", "/etc/kubernetes", ""),
        ("--config=/config/scheduler.yaml", "/config", ""),
        ("--config=/config.yaml", "/config.yaml", "scheduler.yaml"),
    ],
)
def test_configuration_of_kubeadm_is_found_by_its_mount(host, argument, mount, sub_path):
    found = of_kubeadm(host(manifest(argument, mount=mount, sub_path=sub_path), "kind: x"))
    assert found is not None
    assert (found.location, found.text) == ("/etc/kubernetes/scheduler.yaml", "kind: x")


def test_scheduler_of_kubeadm_without_a_configuration_is_reported(host):
    found = of_kubeadm(host(manifest("--leader-elect=true")))
    assert found is not None
    assert found.unset


@pytest.mark.parametrize(
    "text", ["kind: Pod", "[", "kind: Pod\nspec: null", "kind: Pod\nspec: {containers: []}"]
)
def test_manifest_of_another_form_is_reported(host, text):
    found = of_kubeadm(host(text))
    assert found is not None
    assert found.why.startswith("no manifest of a pod: ")


def test_configuration_that_is_not_mounted_is_reported(host):
    found = of_kubeadm(host(manifest("--config=/elsewhere/scheduler.yaml")))
    assert found is not None
    assert (found.text, found.why) == (
        None,
        "--config=/elsewhere/scheduler.yaml is in no volume of the pod: mount it by hostPath",
    )


def test_configuration_that_is_not_on_the_host_is_reported(host):
    found = of_kubeadm(host(manifest("--config=/etc/kubernetes/scheduler.yaml")))
    assert found is not None
    assert "there is no /etc/kubernetes/scheduler.yaml on the host" in found.why


def test_node_without_a_control_plane_has_no_scheduler(tmp_path):
    assert of_kubeadm(Host(tmp_path)) is None
