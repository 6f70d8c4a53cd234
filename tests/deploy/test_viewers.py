"""Objects that the chart makes for viewers: a port, its token, and roles that lead there."""

from __future__ import annotations

import base64
from typing import TYPE_CHECKING, Any

import yaml

from deploy.rendering.chart import documents, render
from k8s_rdma.cli.extender_client import VIEWS_URL
from k8s_rdma.wire.tokens import TOKENS_SECRET

if TYPE_CHECKING:
    from collections.abc import Sequence

Json = dict[str, Any]
VIEWERS = {"viewers": {"enabled": True}}


def made(values: Json, cluster: Sequence[Json] = ()) -> dict[tuple[str, str], Json]:
    found = documents(render(values, cluster=cluster))
    return {(each["kind"], each["metadata"]["name"]): each for each in found}


def configuration(objects: dict[tuple[str, str], Json], name: str, file: str) -> Json:
    return yaml.safe_load(objects["ConfigMap", name]["data"][file])


def test_viewers_have_no_rights_by_default():
    objects = made({})
    assert ("Service", "k8s-rdma-views") not in objects
    assert ("Secret", TOKENS_SECRET) not in objects
    assert "views" not in configuration(objects, "k8s-rdma-extender", "extender.yaml")
    assert configuration(objects, "k8s-rdma-node", "server.yaml")["openPaths"] == []
    assert ("Role", "k8s-rdma-viewer") not in objects


def test_users_with_view_get_only_our_objects_and_claims():
    """An aggregated ClusterRole widens the rights of existing users unasked."""
    aggregated = {
        group
        for (kind, _), each in made(VIEWERS).items()
        if kind == "ClusterRole" and "aggregate-to-view" in str(each["metadata"].get("labels"))
        for rule in each["rules"]
        for group in rule["apiGroups"]
    }
    assert aggregated == {"k8s-rdma.io", "resource.k8s.io"}


def test_planners_read_and_no_more_in_the_namespace_of_the_chart():
    objects = made({})
    rules = [rule for kind in ("ClusterRole", "Role") for rule in objects[kind, "k8s-rdma-planner"]["rules"]]
    assert {verb for rule in rules for verb in rule["verbs"]} == {"get", "list"}
    [configuration] = [rule for rule in rules if rule["resources"] == ["configmaps"]]
    assert configuration["resourceNames"] == ["k8s-rdma-extender"]


def test_viewers_reach_a_port_by_the_token_of_a_secret_that_their_role_reads():
    objects = made(VIEWERS)
    views = configuration(objects, "k8s-rdma-extender", "extender.yaml")["views"]
    [container] = [
        each
        for each in objects["Deployment", "k8s-rdma-extender"]["spec"]["template"]["spec"]["containers"]
        if each["name"] == "extender"
    ]
    assert {"name": "views", "containerPort": views["port"], "protocol": "TCP"} in container["ports"]
    assert views["tokenFile"].startswith(
        tuple(each["mountPath"] for each in container["volumeMounts"] if each["name"] == "node-tokens")
    )
    assert configuration(objects, "k8s-rdma-node", "server.yaml")["tokenFile"]
    rules = {
        resource: rule
        for rule in objects["Role", "k8s-rdma-viewer"]["rules"]
        for resource in rule["resources"]
    }
    _, _, place = VIEWS_URL.partition("://")
    assert rules["services/proxy"]["resourceNames"] == [place.partition("/")[2]]
    assert rules["secrets"]["resourceNames"] == [TOKENS_SECRET]
    assert {verb for rule in rules.values() for verb in rule["verbs"]} == {"get", "list"}


def test_token_in_the_cluster_stays():
    token = base64.b64encode(b"present").decode()
    secret = {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {"name": TOKENS_SECRET, "namespace": "k8s-rdma"},
        "data": {"tokens": token},
    }
    assert made(VIEWERS, [secret])["Secret", TOKENS_SECRET]["data"] == {"tokens": token}
    assert made(VIEWERS)["Secret", TOKENS_SECRET]["data"]["tokens"] != token


def test_secret_of_the_administrator_is_not_made_and_the_role_reads_it():
    objects = made({**VIEWERS, "node": {"server": {"tokensSecretName": "ours"}}})
    assert ("Secret", TOKENS_SECRET) not in objects
    [rule] = [
        rule for rule in objects["Role", "k8s-rdma-viewer"]["rules"] if rule["resources"] == ["secrets"]
    ]
    assert rule["resourceNames"] == ["ours"]
